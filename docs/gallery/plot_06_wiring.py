"""
The smallest circuit of wires
=============================

Embeddings, heads and MLPs that keep 80% of the sum's last digit while every other wire carries the
counterfactual's value.
"""

import circuits

model = circuits.load("addition")
wires = circuits.wiring(model, "12+34=4", swap={"4": "3"})
figure = wires.figure()
