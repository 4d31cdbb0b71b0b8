"""
Why a head looks there
======================

The three sides of one head, and who wrote what each of them reads.
"""

import circuits

model = circuits.load("mini")
prompt = 'The opposite of "large" is "'
found = circuits.trace(model, prompt, key="large", swap={"large": "hot"})
figure = circuits.why(found, "L5H1", model=model).figure()
