"""
A patching map
==============

The residual stream replaced at one layer and one position at a time: where does the model hold the word?
"""

import circuits

model = circuits.load("mini")
patched = circuits.patch(
    model, 'The opposite of "large" is "', "residual", swap={"large": "hot"}
)
figure = patched.figure()
