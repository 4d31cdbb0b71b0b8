"""
The carriers of one mapping
===========================

Which heads carry ``large`` to the last position, where ``mini`` says its opposite? The figure has the map of
every carrier; the cell of the mapping is framed.
"""

import circuits

model = circuits.load("mini")
prompt = 'The opposite of "large" is "'
found = circuits.trace(model, prompt, key="large", swap={"large": "hot"})
figure = found.figure()
