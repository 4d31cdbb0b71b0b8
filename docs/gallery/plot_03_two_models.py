"""
One mapping, dense and sparse
=============================

The same question to a model and to its sparse twin, whose gate shuts all edges but a few.
"""

import circuits
from circuits.show import mapping_figure

prompt = 'The opposite of "large" is "'
question = {"key": "large", "swap": {"large": "hot"}}
dense = circuits.trace(circuits.load("mini"), prompt, **question)
sparse = circuits.trace(circuits.load("mini-sparse"), prompt, **question)
figure = mapping_figure(dense, sparse)
