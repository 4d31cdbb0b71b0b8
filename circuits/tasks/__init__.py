"""Tasks: many seeded pairs of one kind, ranked by heads or edges, and compared between models."""

from pathlib import Path
from typing import Final

from circuits.errors import PromptError
from circuits.files import check_regular

TASKS: Final = ("opposites", "indirect_object", "greater_than", "induction")


def check_task(name: str | Path) -> None:
    """Refuse what is neither the name of a task nor a jsonl file; no model is needed for that."""
    if str(name) in TASKS:
        return
    if Path(name).suffix != ".jsonl":
        allowed = f"there are {', '.join(TASKS)}, or the path of a .jsonl file with own items"
        raise PromptError(f"no task {str(name)!r}; {allowed}")
    check_regular(Path(name))
