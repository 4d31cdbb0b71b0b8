"""
A family of prompts
===================

Mean effects over four prompts with 95% intervals. Red diamonds are the carriers.
"""

import circuits

model = circuits.load("mini")
swap = {"large": "hot", "fast": "dark", "happy": "clean", "early": "rich"}
prompts = [f'The opposite of "{word}" is "' for word in swap]
family = circuits.trace(model, prompts, key=5, swap=swap)
figure = family.figure()
