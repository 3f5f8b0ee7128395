"""Plots of a vector field: arrows, divergence and vorticity of 2-d fields; slices of 3-d ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.quiver import Quiver
from scipy.spatial import cKDTree

from dorff.kernels import Spectral
from dorff.kernels.scalar import FloatArray
from dorff.report.describe import ColumnLabel, Rate, Subject, common_unit, rate
from dorff.report.figures import ACCENT, INK, drawable, label_axes, new_figure, png

ARROWS: Final = 26  # along the longer side
CELLS: Final = 160
FAR: Final = 2.0  # length-scales from the nearest observation, beyond which the data say next to nothing
MOST_TRACKED: Final = 350  # observed arrows that can be told apart

Observations = tuple[FloatArray, FloatArray]


@final
@dataclass(frozen=True, eq=False)
class Plane:
    """A rectangle of the input space: inputs `i` along x and `j` along y, the others in the middle."""

    subject: Subject
    i: int
    j: int

    def points(self, longest: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Coordinates (a,), (b,) and inputs (b * a, d), row by row; cells about square, `longest` along a side."""
        low, high = self.subject.low[[self.i, self.j]], self.subject.high[[self.i, self.j]]
        sides = high - low if self.square else np.ones(2)
        counts = np.maximum(np.round(longest * sides / sides.max()).astype(int), 4)
        half = (high - low) / counts / 2
        x, y = (np.linspace(low[k] + half[k], high[k] - half[k], counts[k]) for k in (0, 1))
        grid = np.tile(self.subject.middle, (len(x) * len(y), 1))
        grid[:, self.i], grid[:, self.j] = (part.ravel() for part in np.meshgrid(x, y))
        return x, y, grid

    @cached_property
    def square(self) -> bool:
        """Whether a unit is as long along x as along y: equal units, and sides that are not too unlike."""
        sides = (self.subject.high - self.subject.low)[[self.i, self.j]]
        return self.x.unit == self.y.unit and float(sides.max() / sides.min()) < 6

    def height(self, width: float) -> float:
        """The height of a figure whose axes are about `width` inches wide."""
        sides = (self.subject.high - self.subject.low)[[self.i, self.j]]
        return float(np.clip(width * (sides[1] / sides[0] if self.square else 0.8), 2.5, 10.0)) + 1.0

    @property
    def x(self) -> ColumnLabel:
        return self.subject.inputs[self.i]

    @property
    def y(self) -> ColumnLabel:
        return self.subject.inputs[self.j]

    def prepare(self, axes: Axes, *, title: str | None = None) -> None:
        low, high = self.subject.low, self.subject.high
        axes.set_xlim(low[self.i], high[self.i])
        axes.set_ylim(low[self.j], high[self.j])
        if self.square:
            axes.set_aspect("equal")
        label_axes(axes, self.x, self.y, title=title)


def field_plot(subject: Subject, observations: Observations | None) -> bytes:
    """The field's arrows over its speed; observed vectors in another colour; pale far from all observations."""
    plane = Plane(subject, 0, 1)
    figure = new_figure(9.6, plane.height(7.7))
    axes = figure.add_subplot()
    x, y, grid = plane.points(CELLS)
    distance = _distance(subject, grid, observations)
    length = np.linalg.norm(subject.model.predict(grid), axis=1)
    image = axes.pcolormesh(
        x, y, length.reshape(len(y), len(x)), cmap="Blues", vmin=0, vmax=1.2 * _top(length[distance < FAR])
    )
    _veil(axes, plane, distance.reshape(len(y), len(x)))
    unit = common_unit(subject.targets)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, extend="max")
    bar.set_label(f"length of the vectors{f' ({unit})' if unit else ''}", color=INK)
    _arrows(axes, plane, observations, unit)
    plane.prepare(axes)
    return png(figure)


def _arrows(axes: Axes, plane: Plane, observations: Observations | None, unit: str | None) -> None:
    """Fitted arrows on a grid, and observed ones, to one scale, with a key above the axes."""
    subject = plane.subject
    _, _, grid = plane.points(ARROWS)
    vectors = subject.model.predict(grid)
    near = _distance(subject, grid, observations) < FAR
    reference = max(_top(np.linalg.norm(vectors[near], axis=1)), 1e-300)
    style: Any = {"scale": reference * ARROWS / 2.2, "width": 0.0018, "headwidth": 4.0}  # the longest: 2.2 cells
    fitted = axes.quiver(*grid[near].T, *vectors[near].T, color=INK, pivot="mid", **style)
    _key(fitted, reference, unit, 0.0, "fitted", INK)
    if observations is not None:
        X, Y = _thinned(observations, subject)
        axes.plot(*observations[0].T, ".", ms=1.6, color=ACCENT, alpha=0.6)
        seen = axes.quiver(*X.T, *Y.T, color=ACCENT, alpha=0.9, **style)
        _key(seen, reference, unit, 0.32, "observed", ACCENT)


def derivative_plots(subject: Subject, observations: Observations | None) -> bytes:
    """Divergence and vorticity of a 2-d field side by side, in the same colours."""
    plane = Plane(subject, 0, 1)
    x, y, grid = plane.points(CELLS)
    distance = _distance(subject, grid, observations)
    J = subject.model.jacobian(grid)
    parts = {"Divergence": J[:, 0, 0] + J[:, 1, 1], "Vorticity": J[:, 1, 0] - J[:, 0, 1]}
    unit, limit = _scale(subject, [values[distance < FAR] for values in parts.values()])
    figure = new_figure(12.0, plane.height(5.0))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (name, values) in zip(panels, parts.items(), strict=True):
        shown = (values * unit.factor).reshape(len(y), len(x))
        image = axes.pcolormesh(x, y, shown, cmap="RdBu_r", vmin=-limit, vmax=limit)
        _veil(axes, plane, distance.reshape(len(y), len(x)))
        plane.prepare(axes, title=name)
        axes.label_outer()
    bar = figure.colorbar(image, ax=list(panels), shrink=0.9, pad=0.015, extend="both")
    bar.set_label(unit.unit, color=INK)
    return png(figure)


def slice_plots(subject: Subject) -> bytes:
    """Three planes through the middle of a 3-d field: arrows over what crosses the plane, divergence, curl."""
    figure = new_figure(12.0, 10.6)
    panels = figure.subplots(3, 3)
    planes = [Plane(subject, 0, 1), Plane(subject, 0, 2), Plane(subject, 1, 2)]
    data = [_plane_values(plane) for plane in planes]
    divergence, curl = [one[3] for one in data], [one[4] for one in data]
    unit, limit = _scale(subject, divergence + curl)
    across = _top(np.concatenate([np.abs(one[2]) for one in data])) or 1.0
    rows = (
        ("arrows in the plane, colour across it", "RdBu_r", -across, across, [one[2] for one in data]),
        ("divergence", "RdBu_r", -limit, limit, [value * unit.factor for value in divergence]),
        ("length of the curl", "Purples", 0.0, limit, [value * unit.factor for value in curl]),
    )
    target_unit = common_unit(subject.targets) or "target units"
    for row, (name, colours, low, high, values) in enumerate(rows):
        for axes, plane, (x, y, *_), shown in zip(panels[row], planes, data, values, strict=True):
            image = axes.pcolormesh(x, y, shown.reshape(len(y), len(x)), cmap=colours, vmin=low, vmax=high)
            third = 3 - plane.i - plane.j
            at = f"{drawable(subject.inputs[third].name)} = {subject.middle[third]:.3g}"
            plane.prepare(axes, title=at if row == 0 else None)
            if row == 0:
                _plane_arrows(axes, plane)
        bar = figure.colorbar(image, ax=list(panels[row]), pad=0.015)
        bar.set_label(f"{name}\n({target_unit if row == 0 else unit.unit})", color=INK)
    return png(figure)


def _plane_values(plane: Plane) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """x, y, the component across the plane, the divergence, the length of the curl (row by row)."""
    x, y, grid = plane.points(50)
    J = plane.subject.model.jacobian(grid)
    across = plane.subject.model.predict(grid)[:, 3 - plane.i - plane.j]
    curl = np.stack([J[:, 2, 1] - J[:, 1, 2], J[:, 0, 2] - J[:, 2, 0], J[:, 1, 0] - J[:, 0, 1]])
    divergence: FloatArray = np.trace(J, axis1=1, axis2=2)
    return x, y, across, divergence, np.linalg.norm(curl, axis=0)


def _plane_arrows(axes: Axes, plane: Plane) -> None:
    _, _, grid = plane.points(14)
    vectors = plane.subject.model.predict(grid)[:, [plane.i, plane.j]]
    reference = max(_top(np.linalg.norm(vectors, axis=1)), 1e-300)
    axes.quiver(
        grid[:, plane.i], grid[:, plane.j], *vectors.T, color=INK, scale=reference * 14 / 1.8, width=0.004, pivot="mid"
    )


def _scale(subject: Subject, parts: list[FloatArray]) -> tuple[Rate, float]:
    """The unit for derivatives, and a limit (in it) that one wild corner does not set."""
    largest = _top(np.abs(np.concatenate(parts)))
    unit = rate(subject.inputs, subject.targets).scaled(largest)
    return unit, largest * unit.factor or 1.0


def _top(values: FloatArray) -> float:
    """The 99th percentile."""
    return float(np.percentile(values, 99))


def _key(arrows: Quiver, reference: float, unit: str | None, at: float, what: str, colour: str) -> None:
    """A key above the axes: how long an arrow of a round length is."""
    step = 10.0 ** np.floor(np.log10(reference))
    size = step * max(factor for factor in (1, 2, 5) if factor * step <= reference * (1 + 1e-9))
    text = f"{what}, {size:g}{f' {unit}' if unit else ''}"
    axes: Any = arrows.axes
    axes.quiverkey(arrows, 0.06 + at, 1.025, size, text, labelpos="E", color=colour, labelcolor=colour)


def _thinned(observations: Observations, subject: Subject) -> Observations:
    """At most one observation in each of many cells, so that the arrows can be told apart."""
    X, Y = observations
    if len(X) <= MOST_TRACKED:
        return X, Y
    cells = np.floor((X - subject.low) / (subject.high - subject.low) * 2 * ARROWS)
    _, first = np.unique(cells, axis=0, return_index=True)
    keep = np.sort(first)[:: -(-len(first) // MOST_TRACKED)]
    return X[keep], Y[keep]


def _distance(subject: Subject, grid: FloatArray, observations: Observations | None) -> FloatArray:
    """Length-scales (len(grid),) from each point to the nearest observation; 0 where either is not known."""
    reach = _reach(subject)
    if observations is None or reach is None:
        return np.zeros(len(grid))
    distance: FloatArray = cKDTree(observations[0] / reach).query(grid / reach)[0]
    return distance if (distance < FAR).any() else np.zeros(len(grid))


def _veil(axes: Axes, plane: Plane, distance: FloatArray) -> None:
    """Pale the parts of the plane that are far from every observation; `distance` (rows, columns)."""
    veil = np.ones((*distance.shape, 4))
    veil[..., 3] = 0.92 * np.clip(distance - FAR + 1.0, 0.0, 1.0)
    low, high = plane.subject.low, plane.subject.high
    extent: Any = (low[plane.i], high[plane.i], low[plane.j], high[plane.j])
    axes.imshow(veil, extent=extent, origin="lower", aspect="auto", interpolation="bilinear", zorder=1.5)


def _reach(subject: Subject) -> FloatArray | None:
    """The longest length-scale (d,) in input units; None where a scalar kernel has none."""
    scalars = [term.scalar for weight, term in subject.model.kernel.terms() if weight > 0]
    spectral = [scalar for scalar in scalars if isinstance(scalar, Spectral)]
    if len(spectral) < len(scalars):
        return None
    stretches = np.array([1.0 / scalar.stretch(subject.model.d) for scalar in spectral])
    reach: FloatArray = stretches.max(axis=0) * subject.model.feature_map.scale
    return reach
