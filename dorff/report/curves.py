"""Plots for models of any shape: each output along each input, the other inputs in the middle of their range."""

from __future__ import annotations

from typing import Final

import numpy as np

from dorff.report.describe import Subject
from dorff.report.figures import FAINT, LINES, label_axes, new_figure, png

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
