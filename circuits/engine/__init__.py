"""Run the model with some of its messages changed, and read the metric: exact, and cheaper than a gradient.

1. `prepare` runs a batch of pairs of equal length once clean and once counterfactual, and keeps both runs.
2. `Runs.effects` takes rows (sets of changes) and a direction, and measures all of them together: by the fast
   path where the model's layout is known, else by the plain path. `Runs.path` says which.
3. `select` adds heads one after the other, greedily; `scan` measures every edge; `loadings` is the linear
   reading of all edges.
4. A row that changes nothing (its gates are shut in both runs, or it lies before the first difference) costs
   nothing: exactly 0.
"""

from circuits.engine.prepare import prepare
from circuits.engine.rows import DIRECTIONS, Change, Direction, Row
from circuits.engine.runs import Runs

__all__ = ["DIRECTIONS", "Change", "Direction", "Row", "Runs", "prepare"]
