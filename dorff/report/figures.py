"""What every figure shares (canvas, size, colours, text that any font can draw), and plots for models of any shape:
each output along each input, the other inputs in the middle of their range."""

from __future__ import annotations

import io
from functools import cache
from typing import Final

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dorff.report.describe import ColumnLabel, Subject

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


MOST_INPUTS: Final = 4
MOST_OUTPUTS: Final = 4
POINTS: Final = 200


def curve_plots(subject: Subject) -> bytes:
    """A panel for each of the first few inputs and outputs."""
    across, down = min(subject.model.d, MOST_INPUTS), min(subject.model.p, MOST_OUTPUTS)
    figure = new_figure(max(3.1 * across, 7.0), max(2.5 * down, 3.6) + 0.4)
    panels = figure.subplots(down, across, squeeze=False, sharey="row", sharex="col")
    for i in range(across):
        x = np.linspace(subject.low[i], subject.high[i], POINTS)
        grid = np.tile(subject.middle, (POINTS, 1))
        grid[:, i] = x
        values = subject.model.predict(grid)
        for j in range(down):
            axes = panels[j, i]
            axes.plot(x, values[:, j], color=LINES[j % len(LINES)], lw=1.8)
            axes.grid(color=FAINT, alpha=0.3, lw=0.6)
            label_axes(axes, subject.inputs[i], subject.targets[j])
            axes.label_outer()
    return png(figure)


def shown(subject: Subject) -> str:
    """What of the model the curves show, in words."""
    d, p = subject.model.d, subject.model.p
    inputs = f"the first {MOST_INPUTS} of {d} inputs" if d > MOST_INPUTS else "each input" if d > 1 else "the input"
    outputs = (
        f"the first {MOST_OUTPUTS} of {p} outputs" if p > MOST_OUTPUTS else "each output" if p > 1 else "the output"
    )
    rest = ", the other inputs held in the middle of their range" if d > 1 else ""
    return f"{outputs} along {inputs}{rest}"
