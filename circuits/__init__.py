"""Which attention heads carry the mapping from this key to that query, and what circuit are they part of?

import circuits

model = circuits.load("mini")
circuit = circuits.trace(model, 'The opposite of "large" is "', key="large", swap={"large": "hot"})
print(circuit)

Every public name is listed in `__init__.pyi`, with the module that has it, and is imported when it is first
used: `import circuits` imports no model library.
"""

from lazy_loader import attach_stub

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
