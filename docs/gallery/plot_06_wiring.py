"""
The smallest circuit of wires
=============================

Embeddings, heads and MLPs that keep 80% of the carry in 36 + 28 while every other wire carries the value of
36 + 21, which has no carry.
"""

import circuits

model = circuits.load("addition")
carry = {"counterfactual": "3 6 + 2 1 = 0", "answer": "6", "foil": "5"}
wires = circuits.wiring(model, "3 6 + 2 8 = 0", **carry)
figure = wires.figure()
