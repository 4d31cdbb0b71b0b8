"""How many heads, or attention edges, does a task take? In ranked order, by joint effects of one run, with bands and a control.

1. `units` says what can be kept or swapped, `asking` measures single effects and keep curves and holds `rank`.
2. `curves` chooses sizes, finds counts and bands, and takes areas; `records` holds the answer.
"""

from circuits.ranking.asking import rank
from circuits.ranking.records import MLPS, SHARES, UNITS, Curve, Protocol, Ranked, Ranking, RoleEdge

__all__ = ["MLPS", "SHARES", "UNITS", "Curve", "Protocol", "Ranked", "Ranking", "RoleEdge", "rank"]
