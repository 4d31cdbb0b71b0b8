"""
A circuit that is known
=======================

The weights of ``planted-sparse`` were set by hand so that five heads carry the mapping, and the trace finds these
five. ``planted-dense`` gives the same answer by many more heads.
"""

import circuits
from circuits.show import mapping_figure

prompt = 'The opposite of "large" is "'
question = {"key": "large", "swap": {"large": "hot"}}
dense = circuits.trace(circuits.load("planted-dense"), prompt, **question)
sparse = circuits.trace(circuits.load("planted-sparse"), prompt, **question)
figure = mapping_figure(dense, sparse)
