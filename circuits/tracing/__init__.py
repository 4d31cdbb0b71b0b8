"""From a pair to a circuit: `trace` and `circuit` measure mappings and spans, `records` hold the answer."""

from typing import Final

SHARE: Final = 0.8  # of a mapping's total that its carriers must reach, unless the user says otherwise
CARRIES: Final = 0.05  # the least total of a mapping in a circuit, unless the user says otherwise
DRAWN: Final = 0.03  # the least effect of a wire in a wiring, as a share of the gap
SHORT: Final = 64  # tokens of a prompt of which every mapping is measured
NODES: Final = 64  # nodes of a wiring that are explored
