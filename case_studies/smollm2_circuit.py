"""A circuit of a real language model that nobody has published: SmolLM2 completes `… John gave a drink to`.

Finding: 29 of 123,211 component edges, found on four pairs of one sentence, keep 81% of the gap. On other names
they keep 0.87 in the same sentence and 0.88 to 0.91 in three others (worst pair 0.65). The roles are those of
GPT-2: L8H0 looks from the second mention to the first (0.71), L17H4 behind the first (0.93), L20H0 from the end
to the second mention (0.61), L23H0 and L23H7 from the end to the other name (0.69 and 0.38).
"""

from pathlib import Path
from statistics import fmean

import circuits
from circuits.show import save_figure

HERE = Path(__file__).parent / "smollm2_circuit"
MODEL = "smollm2"
SEEN = (("Mary", "John"), ("Tom", "Anna"), ("Sarah", "Peter"), ("David", "Laura"))
UNSEEN = (("James", "Susan"), ("Alice", "Mark"), ("Paul", "Emma"), ("Lisa", "Robert"))
IO, S1, S2, END = 1, 3, 9, 13
POSITIONS = {IO: "IO", S1: "S1", S1 + 1: "S1+1", S2: "S2", END: "END"}
ROLES = {  # by where each looks, as printed below
    "L8H0": "duplicate token",
    "L17H4": "induction",
    "L19H2": "S-inhibition",
    "L20H0": "S-inhibition",
    "L23H0": "name mover",
    "L23H3": "reads S2",
    "L23H7": "name mover",
}
SENTENCES = {
    "the same sentence": "When {a} and {b} went to the store, {s} gave a drink to",
    "names in the other order": "When {b} and {a} went to the store, {s} gave a drink to",
    "another verb, longer": "Then, {a} and {b} had a long argument, and afterwards {s} said to",
    "other place and object": "After {a} and {b} walked to the park, {s} handed a book to",
}


def questions(sentence: str, names: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    """The second name gives; in the counterfactual the first one does."""
    asked = []
    for first, second in names:
        prompt = sentence.format(a=first, b=second, s=second)
        other = sentence.format(a=first, b=second, s=first)
        asked.append(
            {"prompt": prompt, "counterfactual": other, "answer": first, "foil": second}
        )
    return asked


def main() -> None:
    model = circuits.load(MODEL)
    sentence = SENTENCES["the same sentence"]
    found = circuits.wiring(model, questions(sentence, SEEN), held_out=0)
    print(found)
    print(f"\n{'kept on names that it never saw':<36}{'mean':>8}{'worst':>8}")
    for kind, other in SENTENCES.items():
        kept = found.keeps(questions(other, UNSEEN), model=model)
        print(f"{kind:<36}{fmean(kept):8.3f}{min(kept):8.3f}")
    print_attention(model, found)
    save_figure(found.figure(names=ROLES), HERE, formats=("png", "svg"), name="wiring")


def print_attention(model: circuits.Model, found: circuits.Wiring) -> None:
    """Where each head of the circuit looks from the second mention and from the end, mean over the pairs."""
    pairs = [circuits.Pair(p.prompt, p.counterfactual, p.metric) for p in found.pairs]
    layers = circuits.prepare(model, pairs).clean.cache.layers
    print(f"\n{'head':<8}{'from S2 to':>16}{'weight':>8}{'from END to':>16}{'weight':>8}")
    for head in found.heads:
        line = f"{head!s:<8}"
        for query in (S2, END):
            weights = layers[head.layer].pattern_at(query)[:, head.index].mean(0)
            key = int(weights[1:].argmax()) + 1  # beside the first token, where idle heads rest
            line += f"{POSITIONS.get(key, str(key)):>16}{float(weights[key]):8.2f}"
        print(line)


if __name__ == "__main__":
    main()
