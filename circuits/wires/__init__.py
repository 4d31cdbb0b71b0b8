"""From questions to the smallest set of wires that keeps the answer: search, verb and record."""
