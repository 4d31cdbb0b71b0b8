"""Models: the table of known ones, and how a model reads text.

`circuits.models.load` finds and reads weights from any source, and `circuits.models.model.Model` runs them
with hooks. They are not imported here: this package is imported without torch.
"""

from circuits.models.known import TABLE, ZOO, Entry, available, cache_folder, lookup
from circuits.models.vocabulary import PlainTokenizer, Vocabulary, reads_bos_by_default

__all__ = [
    "TABLE",
    "ZOO",
    "Entry",
    "PlainTokenizer",
    "Vocabulary",
    "available",
    "cache_folder",
    "lookup",
    "reads_bos_by_default",
]
