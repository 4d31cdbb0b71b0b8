"""Models: `load` finds and reads weights from any source, `Model` runs them with hooks that were checked."""
