"""Run the model with some of its messages changed, and read the metric: exact, and cheaper than a gradient.

1. `prepare` runs a batch of pairs once clean and once counterfactual, and keeps both runs.
2. `Runs.effects` takes rows (sets of changes) and measures all of them together, by the kind of `ablation`
   that was chosen: by our own forward (`forward`) where the model's layout is known, else by the model's own
   forward with hooks (`plain`). `Runs.path` says which.
3. `wires` measures what one component writes and another reads, one at a time; `kept` runs circuits of them.
4. `selection` adds heads greedily, `loadings` reads all edges at once, `qk` takes a score apart, and
   `other_prompts` puts other words into a prompt that was run.
"""

from circuits.engine.ablation import SWAP, Ablation, to_ablation
from circuits.engine.memory import BUDGET
from circuits.engine.other_prompts import gaps_of_noise, predictions_of_others, values_of_others
from circuits.engine.prepare import SMALLEST_GAP, prepare
from circuits.engine.rows import DIRECTIONS, Change, Direction, Given, Row
from circuits.engine.runs import Runs, every_head

__all__ = [
    "BUDGET",
    "DIRECTIONS",
    "SMALLEST_GAP",
    "SWAP",
    "Ablation",
    "Change",
    "Direction",
    "Given",
    "Row",
    "Runs",
    "every_head",
    "gaps_of_noise",
    "predictions_of_others",
    "prepare",
    "to_ablation",
    "values_of_others",
]
