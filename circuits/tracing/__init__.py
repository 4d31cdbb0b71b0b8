"""From a pair to a circuit: `trace` and `circuit` measure mappings and spans, `records` hold the answer."""

from typing import Final

SHARE: Final = 0.8  # of a mapping's total that its carriers must reach, unless the user says otherwise
CARRIES: Final = 0.05  # the least total of a mapping in a circuit, unless the user says otherwise
