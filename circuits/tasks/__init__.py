"""Tasks: many seeded pairs of one kind, ranked by heads or edges, and compared between models."""

from pathlib import Path
from typing import Final

from circuits.errors import PromptError

TASKS: Final = ("opposites", "indirect_object", "greater_than", "induction")


def check_task(name: str | Path) -> None:
    """Refuse what is neither the name of a task nor the path of a jsonl file; no model is needed for that."""
    if str(name) not in TASKS and Path(name).suffix != ".jsonl":
        allowed = f"there are {', '.join(TASKS)}, or the path of a .jsonl file with own items"
        raise PromptError(f"no task {str(name)!r}; {allowed}")
