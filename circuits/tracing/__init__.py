"""From a pair to a circuit: `trace` and `circuit` measure mappings and spans, `records` hold the answer."""
