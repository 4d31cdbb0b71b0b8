"""
A circuit on a scale of layers
==============================

All mappings of a prompt. Tokens are columns and layers are rows; a box spans the layers that hold what the output
needs of a token.
"""

import circuits

model = circuits.load("mini")
prompt = "When Mary and John went to the store, John gave a drink to"
other = prompt.replace(", John", ", Mary")
found = circuits.circuit(model, prompt, counterfactual=other)
figure = found.figure(kind="circuit")
