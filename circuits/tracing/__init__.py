"""From a pair to a circuit: which heads carry a mapping, why, and how far to trust it.

The verbs are `trace`, `circuit`, `stability` and `why`, each in the module of its name.
This package offers the records that they return (listed in `__init__.pyi`) and imports them when first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
