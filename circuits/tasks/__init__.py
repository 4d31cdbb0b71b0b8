"""Tasks: many seeded pairs of one kind, ranked by heads or edges, and compared between models."""

from circuits.tasks.names import TASKS, check_task

__all__ = ["TASKS", "check_task"]
