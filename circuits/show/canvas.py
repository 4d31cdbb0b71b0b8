"""The palette, the fonts and the sheet of all matplotlib pictures, and their files.

A sheet is one axes that fills its figure. Its unit is the point (1/72 inch), x runs right and y runs down, so
that font sizes and lengths compare. Red is the mapping in question (its key, its cell, its carriers), blue is
attention and effects for the answer, orange is effects against it. The colours differ in lightness too, for
readers who see no hue.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, get_font_names
from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle
from matplotlib.textpath import text_to_path

from circuits.errors import FileError, PromptError
from circuits.files import SIGNATURE
from circuits.results import DRAWN_AS

Theme = Literal["light", "dark"]  # the ground on which a saved figure is looked at
# Values and their colours; colours between them are mixed linearly.
Stops = tuple[tuple[float, str], ...]
Point = tuple[float, float]  # x and y

INK: Final = "#1c2430"
MUTED: Final = "#647080"
LINE: Final = "#c3ccd6"
WASH: Final = "#f5f7fa"
PAPER: Final = "#ffffff"
RED: Final = "#d62839"
BLUE: Final = "#08306b"

ATTENTION: Final[Stops] = (
    (0.0, PAPER),
    (0.2, "#cfe0f1"),
    (0.5, "#74a9d8"),
    (0.75, "#2a6cae"),
    (1.0, BLUE),
)
EFFECT: Final[Stops] = (  # as a share of the strongest effect
    (-1.0, "#a04a00"),
    (-0.5, "#f1a55a"),
    (0.0, PAPER),
    (0.5, "#74a9d8"),
    (1.0, BLUE),
)

# Font sizes in points, at the size of print. Nothing is smaller than SMALL.
BODY: Final = 7.5
SMALL: Final = 6.0
WIDTH: Final = 7.0  # inches: a page of two columns
COLUMN: Final = 3.4  # inches: one column of two

SVG_FONT: Final = "Helvetica,Arial,sans-serif"
_FONTS: Final = (
    "DejaVu Sans",  # comes with matplotlib, so that a figure looks the same on every machine
    "Noto Sans CJK SC",  # the others are for letters that it lacks, where a machine has them
    "Noto Sans CJK JP",
    "PingFang SC",
    "Microsoft YaHei",
    "Arial Unicode MS",
    "Noto Sans",
    "Noto Emoji",
    "Segoe UI Symbol",
)
_SETTINGS: Final = {
    "font.size": BODY,
    "text.color": INK,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.labelsize": SMALL,
    "axes.linewidth": 0.6,
    "axes.labelpad": 2,
    "axes.titlepad": 6,
    "axes.titlesize": BODY,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.color": MUTED,
    "ytick.labelsize": SMALL,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "legend.borderpad": 0.2,
    "legend.labelspacing": 0.25,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "image.composite_image": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "circuits",
    "pdf.fonttype": 42,
}

DOTS_PER_INCH: Final = 300
_NOTEBOOK_DOTS_PER_INCH: Final = 110
_MOST_DOTS: Final = 7_000_000  # of a PNG; a larger sheet is drawn less finely
_LONGEST_SIDE: Final = 60_000  # dots that a PNG can have along a side


# Colours


@functools.lru_cache(maxsize=4096)
def shade(value: float, stops: Stops = ATTENTION) -> str:
    """The colour of a value as `#rrggbb`; values outside the scale take its ends."""
    values = [each for each, _ in stops]
    channels = np.array(
        [list(bytes.fromhex(colour[1:])) for _, colour in stops]
    ).T  # (channel, stop)
    return "#" + bytes(round(np.interp(value, values, channel)) for channel in channels).hex()


def colormap(stops: Stops = ATTENTION) -> Colormap:
    """The same scale for matplotlib."""
    low, high = stops[0][0], stops[-1][0]
    scaled = [((value - low) / (high - low), colour) for value, colour in stops]
    return LinearSegmentedColormap.from_list("circuits", scaled)


def effect_colour(effect: float) -> str:
    """Blue for the answer, orange against it."""
    return shade(0.75) if effect >= 0 else shade(-0.7, EFFECT)


# Figures


@contextlib.contextmanager
def looks() -> Iterator[None]:
    """The settings under which everything is drawn and saved; a letter without a glyph causes no warning."""
    settings: dict[Any, Any] = _SETTINGS | {"font.family": _fonts()}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@functools.cache
def _fonts() -> list[str]:
    installed = set(get_font_names())
    return [name for name in _FONTS if name in installed]


class ShownFigure(Figure):
    """A figure that a notebook shows by itself, without `%matplotlib inline`."""

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.savefig(picture, format="png", dpi=_NOTEBOOK_DOTS_PER_INCH)
        return picture.getvalue()


def figure_around(axes: Axes) -> Figure:
    """The figure that axes stand in."""
    return cast(Figure, axes.get_figure(root=True))


def save_figure(
    figure: Figure | Axes,
    folder: str | Path,
    formats: Sequence[str] = DRAWN_AS,
    *,
    name: str = "figure",
    theme: Theme = "light",
) -> tuple[Path, ...]:
    """Write a figure as `folder/name.svg`, `.png`, `.pdf`; the same figure gives the same bytes.

    With the theme "dark" it has light letters on a transparent ground, and `-dark` behind its name.

    >>> [path.name for path in show.save_figure(found.figure(), folder, ["svg"])]
    ['figure.svg']
    """
    if isinstance(figure, Axes):
        figure = figure_around(figure)
    unknown = ", ".join(form for form in formats if form not in DRAWN_AS)
    if unknown:
        raise FileError(
            f"cannot write a figure as {unknown}; it is drawn as {', '.join(DRAWN_AS)}"
        )
    metadata = {
        "svg": {"Date": None, "Creator": SIGNATURE},
        "png": {"Software": SIGNATURE},
        "pdf": {"CreationDate": None, "Creator": SIGNATURE},
    }
    if theme not in get_args(Theme):
        raise PromptError(
            f"a figure has the theme {' or '.join(get_args(Theme))}, not {theme!r}"
        )
    colours = contextlib.nullcontext()
    look: dict[str, Any] = {"dpi": _dots_per_inch(figure)}
    if theme == "dark":
        from circuits.show.dark import dark

        colours = dark(figure)
        look["facecolor"] = "none"
        name = f"{name}-dark"
    paths = []
    with looks(), writing_to(folder), colours:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for form in formats:
            paths.append(Path(folder) / f"{name}.{form}")
            figure.savefig(paths[-1], format=form, metadata=metadata[form], **look)
    return tuple(paths)


def _dots_per_inch(figure: Figure) -> float:
    """How finely a PNG is drawn: a large figure less finely, so that the file stays small enough to open."""
    width, height = figure.get_size_inches()
    by_area = (_MOST_DOTS / (width * height)) ** 0.5
    by_side = _LONGEST_SIDE / max(width, height)
    return min(DOTS_PER_INCH, by_area, by_side)


def write_file(path: Path, data: bytes) -> Path:
    """Write a file, and its folder if there is none."""
    with writing_to(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return path


@contextlib.contextmanager
def writing_to(path: str | Path) -> Iterator[None]:
    """Turn an error of the file system into one line that names the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise FileError(f"cannot write to {path}: {reason}; choose another folder") from error


# The sheet


@dataclass(frozen=True, slots=True)
class Font:
    """Size in points, colour and weight of a text."""

    size: float = BODY
    colour: str = INK
    bold: bool = False

    @property
    def weight(self) -> str:
        return "bold" if self.bold else "normal"


PLAIN: Final = Font()
TITLE: Final = Font(9.0, bold=True)
HEADING: Final = Font(bold=True)
NAME: Final = Font(SMALL)
HEADING_SMALL: Final = Font(SMALL, bold=True)
NOTE: Final = Font(SMALL, MUTED)


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle on a sheet, in points."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


@dataclass(frozen=True, slots=True)
class Sheet:
    """Axes whose unit is the point; everything is measured from the point (left, top), y runs down."""

    axes: Axes
    left: float = 0.0
    top: float = 0.0

    def moved(self, x: float, y: float) -> Sheet:
        """The same sheet, measured from another point."""
        return Sheet(self.axes, self.left + x, self.top + y)

    def at(self, x: float, y: float) -> Point:
        """A point in the coordinates of the axes."""
        return self.left + x, self.top + y

    def write(
        self,
        x: float,
        y: float,
        text: str,
        font: Font = PLAIN,
        *,
        ha: str = "left",
        **look: Any,
    ) -> None:
        """Write text whose point `ha` of the baseline (left, center or right) is at (x, y)."""
        self.axes.text(
            *self.at(x, y),
            text,
            ha=ha,
            fontsize=font.size,
            color=font.colour,
            fontweight=font.weight,
            **look,
        )

    def line(
        self,
        x: Sequence[float],
        y: Sequence[float],
        colour: str,
        *,
        width: float,
        depth: float,
        style: Any = "-",
    ) -> None:
        """Draw a line through the points (x, y); what has more `depth` lies above."""
        points = [self.at(*point) for point in zip(x, y, strict=True)]
        across, down = zip(*points, strict=True)
        self.axes.plot(
            across, down, color=colour, linewidth=width, zorder=depth, linestyle=style
        )

    def title(self, left: float, right: float, y: float, text: str, note: str) -> None:
        """Write a title that starts at `left`, and if there is space a note that ends at `right`."""
        self.write(left, y, text, TITLE)
        if note and width_of(text, TITLE) + 8 + width_of(note, NOTE) < right - left:
            self.write(right, y, note, NOTE, ha="right")

    def polygon(
        self,
        corners: Sequence[Point],
        fill: str,
        *,
        edge: str = "none",
        line: float = 0.8,
        depth: float = 1.0,
    ) -> Polygon:
        """Draw a filled shape with these corners."""
        shape = Polygon([self.at(*corner) for corner in corners])
        shape.set(facecolor=fill, edgecolor=edge, linewidth=line, zorder=depth)
        self.axes.add_patch(shape)
        return shape

    def frame(self, area: Area, edge: str, *, line: float, depth: float) -> None:
        """Draw a rectangle that is not filled."""
        corner = self.at(area.left, area.top)
        patch = Rectangle(corner, area.width, area.height, fill=False)
        patch.set(edgecolor=edge, linewidth=line, zorder=depth)
        self.axes.add_patch(patch)

    def box(
        self,
        area: Area,
        edge: str,
        fill: str,
        *,
        line: float = 0.8,
        depth: float = 1.0,
        rounding: float = 5.0,
    ) -> FancyBboxPatch:
        """Draw a box with rounded corners."""
        radius = min(rounding, area.width / 2, area.height / 2)
        box = FancyBboxPatch(
            self.at(area.left, area.top),
            area.width,
            area.height,
            boxstyle=f"round,pad=0,rounding_size={radius}",
            edgecolor=edge,
            facecolor=fill,
            linewidth=line,
            zorder=depth,
        )
        self.axes.add_patch(box)
        return box


def new_sheet(width: float, height: float, figure: Figure | None = None) -> Sheet:
    """An empty sheet of this size in points, on a new figure unless one is given."""
    with looks():
        if figure is None:
            figure = ShownFigure(dpi=DOTS_PER_INCH)
        figure.set_size_inches(width / 72, height / 72)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
        axes.set_axis_off()
    return Sheet(axes)


@functools.lru_cache(maxsize=4096)
def width_of(text: str, font: Font) -> float:
    """How wide a text is, in points."""
    properties = FontProperties(family=_fonts(), size=font.size, weight=font.weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter without a glyph
        width, _, _ = text_to_path.get_text_width_height_descent(text, properties, ismath=False)
    return float(width)
