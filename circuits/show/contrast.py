"""Figure A: the heads that a task takes, in ranked order, in one model or in two, one titled panel for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from circuits.show import scene
from circuits.show.curves import count_words
from circuits.show.grids import Panel, head_grid

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from circuits.heads import Head
    from circuits.tasks.compare import TaskComparison
    from circuits.tasks.ranking import Ranking


def contrast_grid(
    found: TaskComparison,
    *,
    titles: Sequence[str] | None = None,
    per_row: int = 9,
    figure: Figure | None = None,
) -> Figure:
    """Both models' heads for 90%, the first above the second; `titles` are one for each, by default the models' names."""
    names = found.models if titles is None else tuple(titles)
    each = zip(found.rankings[0], found.needed, found.maps, names, strict=True)
    panels = [ranking_panel(ranking, needed.heads, maps, title=name) for ranking, needed, maps, name in each]
    return head_grid(panels, per_row=per_row, figure=figure)


def ranking_panel(
    ranking: Ranking, heads: Sequence[Head], maps: Sequence[np.ndarray], *, title: str | None = None
) -> Panel:
    """A panel of heads with their maps (query, key); its note says the task and how many it takes."""
    note = f"{scene.spell(ranking.task)}: {count_words(ranking)}"
    return Panel(ranking.model if title is None else title, tuple(heads), tuple(maps), note)
