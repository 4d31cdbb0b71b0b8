"""
What every head does
====================

The effect of each head on one mapping, at its layer: blue for the answer, orange against it; carriers are framed.
"""

import circuits
from circuits.show import effect_map

model = circuits.load("mini")
found = circuits.trace(
    model, 'The opposite of "large" is "', key="large", swap={"large": "hot"}
)
figure = effect_map(found)
