"""
The heads that a task takes
===========================

The heads of a task in the order of their effects, dense above sparse; the last of those that explain 90%
is framed.
"""

import circuits
from circuits.show import comparison_grid

models = circuits.load("mini"), circuits.load("mini-sparse")
compared = circuits.compare(*models, task="opposites", units=("heads",), count=4)
figure = comparison_grid(compared)
