"""What the paper on gated attention claims, measured on every pair of models here: one table.

Finding: what is claimed of loadings is found in every pair (90% lies on 15 to 338 times fewer edges on the
tasks of `mini`, 7 to 9 in the stories). What is claimed of effects is not: the dense models explain 90% with
few heads too (1.2 to 2.2 times fewer in most twins), and the twin of stories takes more attention edges, not
fewer.
"""

import argparse
from functools import partial
from hashlib import sha256
from pathlib import Path

from claims_table import HEADER, Claim, figure_claims, load_both, measured_once, task_claims

from circuits.models import ZOO
from circuits.tasks.names import ORDERS, OrderName

STORIES = Path(__file__).parent / "stories" / "names.jsonl"
CARRIES = Path(__file__).parent / "addition" / "carries.jsonl"
OPPOSITE = {"text": 'The opposite of "large" is "', "swap": {"large": "hot"}, "key": "large"}
NAMES = "Tom and Ben went to the park. {} gave the ball to"
GIVEN = {"text": NAMES.format("Ben"), "counterfactual": NAMES.format("Tom"), "key": 9}
CARRY = {"text": "3 6 + 2 8 = 0", "counterfactual": "3 6 + 2 1 = 0", "key": 5}
CARRY |= {"answer": "6", "foil": "5"}
TASKS = ("opposites", "indirect_object", "greater_than", "induction")
ALL = ("loading", "heads", "edges", "wires")
TWINS = {  # the figure's question, the tasks, how many pairs of each, and what is counted
    "mini-sparse": (OPPOSITE, TASKS, 6, ALL),
    "stories15m-sparse": (GIVEN, (STORIES, "indirect_object", "greater_than"), 12, ALL),
    "addition-sparse": (CARRY, (CARRIES,), 12, ALL),
    "smollm2-sparse": (
        OPPOSITE,
        ("indirect_object", "greater_than"),
        5,
        ("loading", "heads", "wires"),
    ),
}
MOST = 1000  # component edges that are measured exactly


def measure(twin: str, task: str | Path, quantity: str, order: OrderName) -> list[Claim]:
    question, _, count, _ = TWINS[twin]
    models = load_both(twin)
    if quantity == "figure":
        return figure_claims(twin, models, **question)
    return task_claims(twin, models, task, quantity, count=count, most=MOST, order=order)


def main(names: list[str], keep: Path | None = None, order: OrderName = "search") -> None:
    print(f"| {' | '.join(HEADER)} |\n|---|---|---|---:|---:|---:|---|---|")
    for twin in names or TWINS:
        _, tasks, count, quantities = TWINS[twin]
        weights = sha256((ZOO / twin / "circuits.json").read_bytes()).hexdigest()[:12]
        parts = [
            ("", "figure"),
            *((task, quantity) for task in tasks for quantity in quantities),
        ]
        for task, quantity in parts:
            part = f"{Path(task).stem} {quantity}".strip()
            key = f"{twin}, {part}, {count} pairs, {MOST} exact, {weights}"
            if quantity == "wires":
                key += f", by {order}"
            claims = partial(measure, twin, task, quantity, order)
            for claim in measured_once(keep, key, claims):
                print(claim, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("twins", nargs="*", help="by default all")
    parser.add_argument("--keep", type=Path, help="a file; what it holds is not measured again")
    parser.add_argument(
        "--order", choices=ORDERS, default="search", help="of component edges; default: search"
    )
    asked = parser.parse_args()
    main(asked.twins, asked.keep, asked.order)
