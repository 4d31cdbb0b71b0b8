"""The names of the tasks that come with the package, and the check of a name, which needs no model; and the
names of the orders in which component edges are ranked."""

from pathlib import Path
from typing import Final, Literal

from circuits.errors import PromptError, shortened
from circuits.files import check_regular

TASKS: Final = ("opposites", "indirect_object", "greater_than", "induction")
OrderName = Literal["search", "effect", "eap", "eap-ig"]
ORDERS: Final[tuple[OrderName, ...]] = ("search", "effect", "eap", "eap-ig")


def check_task(name: str | Path) -> None:
    """Refuse what is neither the name of a task nor a jsonl file."""
    if str(name) in TASKS:
        return
    if not isinstance(name, str | Path) or Path(name).suffix != ".jsonl":
        allowed = f"there are {', '.join(TASKS)}, or the path of a .jsonl file with own items"
        shown = shortened(str(name) if isinstance(name, Path) else name)
        raise PromptError(f"no task {shown}; {allowed}")
    check_regular(Path(name))
