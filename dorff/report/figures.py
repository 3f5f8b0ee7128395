"""What every figure shares: canvas, size, colours, text that any font can draw."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import Final

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dorff.report.units import ColumnLabel

INK: Final = "#1f2933"
FAINT: Final = "#9aa5b1"
ACCENT: Final = "#d9480f"
LINES: Final = ("#1c5d99", "#d9480f", "#2b8a3e", "#8e44ad", "#b08900", "#0b7285", "#a61e4d", "#5c677d")
LONGEST_NAME: Final = 40


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that keeps its labels apart; belongs to no global state."""
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()


def drawable(text: str) -> str:
    """`text` cut to a sensible length, without what the font lacks and without the signs of TeX."""
    shown = "".join(letter if _in_font(letter) else "?" for letter in " ".join(text.split()))
    shown = shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"
    return shown.replace("\\", "\\\\").replace("$", r"\$") if "$" in shown else shown


@cache
def _in_font(letter: str) -> bool:
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    return letter == " " or (letter.isprintable() and font.get_char_index(ord(letter)) != 0)


def label_axes(axes: Axes, x: ColumnLabel, y: ColumnLabel | str, *, title: str | None = None) -> None:
    """Names and units on both axes, and a quiet frame."""
    axes.set_xlabel(drawable(x.label), color=INK)
    axes.set_ylabel(drawable(y if isinstance(y, str) else y.label), color=INK)
    if title is not None:
        axes.set_title(drawable(title), color=INK, fontsize=11)
    axes.tick_params(colors=INK, labelsize=9)
    for side in axes.spines.values():
        side.set_color(FAINT)


def alike(columns: Sequence[ColumnLabel]) -> bool:
    """Whether lengths along these axes can be compared, so that a plot should not stretch one."""
    return len({column.unit for column in columns}) == 1
