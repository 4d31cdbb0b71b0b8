"""The classic instruments: patching maps, paths between named components, readings, scores of heads."""
