"""Tasks: many seeded pairs of one kind, ranked by heads or edges, and compared between models."""
