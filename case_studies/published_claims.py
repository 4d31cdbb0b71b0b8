"""What the paper on gated attention claims, measured on every pair of models here: one table.

Finding: what is claimed of loadings is found (on `mini`, 90% of the loading of opposites lies on 7.4 times
fewer heads and 71.7 times fewer edges; on stories 1.7 and 11.4 times). What is claimed of effects is not: the
dense models explain 90% with few heads too (1.3 times fewer in the twin on opposites, 1.8 on stories).
"""

import sys
from pathlib import Path

import circuits
from circuits.sparsify.measure import original_of
from circuits.tasks.claims import figure_claims, task_claims

STORIES = Path(__file__).parent / "stories"  # prompts with two names, in frames of three kinds
OPPOSITE = ('The opposite of "large" is "', {"swap": {"large": "hot"}, "key": "large"})
NAMES = "Tom and Ben went to the park. {} gave the ball to"
GIVEN = (NAMES.format("Ben"), {"counterfactual": NAMES.format("Tom"), "key": 9})
TWINS = {  # the figure's question, and the tasks that the pair can do
    "mini-sparse": (OPPOSITE, ("opposites", "indirect_object", "greater_than")),
    "stories15m-sparse": (GIVEN, (STORIES / "names.jsonl",)),
}
COUNT = 6


def main(names: list[str] | None = None, count: int = COUNT) -> None:
    print("| twin | quantity | dense | sparse | ratio | published |\n|---|---|---:|---:|---:|---:|")
    for name in names or TWINS:
        (text, asked), tasks = TWINS[name]
        models = tuple(circuits.load(each) for each in (original_of(name), name))
        for claim in figure_claims(name, models, text, **asked):
            print(claim, flush=True)
        for claim in (claim for task in tasks for claim in task_claims(name, models, task, count=count)):
            print(claim, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
