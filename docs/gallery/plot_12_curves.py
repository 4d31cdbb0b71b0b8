"""
How many heads explain a task
=============================

The first heads are kept and all others swapped, in one run. The dashed line keeps as many random heads.
"""

import circuits
from circuits.show import keep_curves

ranking = circuits.rank(circuits.load("mini"), "opposites", count=4)
figure = keep_curves(ranking)
