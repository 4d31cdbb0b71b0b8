"""The names of the tasks that come with the package, and the check of a name, which needs no model."""

from pathlib import Path
from typing import Final

from circuits.errors import PromptError
from circuits.files import check_regular

TASKS: Final = ("opposites", "indirect_object", "greater_than", "induction")


def check_task(name: str | Path) -> None:
    """Refuse what is neither the name of a task nor a jsonl file."""
    if str(name) in TASKS:
        return
    if Path(name).suffix != ".jsonl":
        allowed = f"there are {', '.join(TASKS)}, or the path of a .jsonl file with own items"
        raise PromptError(f"no task {str(name)!r}; {allowed}")
    check_regular(Path(name))
