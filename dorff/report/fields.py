"""Plots over planes of the inputs: of a vector field arrows, divergence, vorticity and deviation; maps of outputs."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver
from scipy.spatial import cKDTree

from dorff.kernels import FloatArray, Spectral
from dorff.report.describe import Observations, Rate, Subject, common_unit, rate
from dorff.report.figures import ACCENT, INK, MOST_OUTPUTS, drawable, label_axes, new_figure, png, shades
from dorff.report.gaps import GREY, Gaps

ARROWS: Final = 26  # along the longer side
CELLS: Final = 160
COARSE: Final = 40  # cells of what takes long, deviations
SLICE: Final = 50
FAR: Final = 2.0  # length-scales from the nearest observation, beyond which the data say next to nothing
MOST_TRACKED: Final = 350  # observed arrows that can be told apart
_SMOOTH: Final[Any] = {"origin": "lower", "aspect": "auto", "interpolation": "bilinear"}
_SHARP: Final[Any] = {"origin": "lower", "aspect": "auto", "interpolation": "nearest"}


@dataclass(frozen=True, eq=False)
class Plane:
    """A rectangle of the input space: inputs `i` along x and `j` along y, the others at the centre."""

    subject: Subject
    i: int
    j: int

    @cached_property
    def box(self) -> tuple[FloatArray, FloatArray]:
        """Its corners, (2,) both."""
        return self.subject.low[[self.i, self.j]], self.subject.high[[self.i, self.j]]

    def points(self, longest: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Coordinates (a,), (b,) and inputs (b * a, d), row by row; cells about square, `longest` along a side."""
        low, high = self.box
        sides = high - low if self.square else np.ones(2)
        counts = np.maximum(np.round(longest * sides / sides.max()).astype(int), 4)
        half = (high - low) / counts / 2
        x, y = (np.linspace(low[k] + half[k], high[k] - half[k], counts[k]) for k in (0, 1))
        grid = np.tile(self.subject.centre, (len(x) * len(y), 1))
        grid[:, self.i], grid[:, self.j] = (part.ravel() for part in np.meshgrid(x, y))
        return x, y, grid

    @cached_property
    def square(self) -> bool:
        """Whether a unit is as long along x as along y: equal units, and sides that are not too unlike."""
        sides = self.box[1] - self.box[0]
        units = {self.subject.inputs[place].unit for place in (self.i, self.j)}
        return len(units) == 1 and float(sides.max() / sides.min()) < 6

    def height(self, width: float) -> float:
        """The height of a figure whose axes are about `width` inches wide."""
        sides = self.box[1] - self.box[0]
        return float(np.clip(width * (sides[1] / sides[0] if self.square else 0.8), 2.5, 10.0)) + 1.0

    @property
    def extent(self) -> Any:
        """Its ends along x and along y, as matplotlib wants them."""
        return tuple(np.column_stack(self.box).ravel().tolist())

    def prepare(self, axes: Axes, *, title: str | None = None) -> None:
        if self.gaps is not None:
            x, y, grid = self.points(CELLS)
            cover = np.zeros((len(y), len(x), 4))
            cover[self.never_observed(grid).reshape(len(y), len(x))] = GREY
            axes.imshow(cover, extent=self.extent, zorder=1.6, **_SHARP)
        axes.axis(self.extent)
        if self.square:
            axes.set_aspect("equal")
        label_axes(axes, self.subject.inputs[self.i], self.subject.inputs[self.j], title=title)

    @cached_property
    def gaps(self) -> Gaps | None:
        """Where no row had a value; None where that is not known."""
        if (sites := self.subject.sites) is None:
            return None
        return Gaps.find(self._place(sites.inputs), sites.observed)

    def never_observed(self, grid: FloatArray) -> npt.NDArray[np.bool_]:
        """Return which inputs (n, d) of the plane are where no row had a value."""
        if self.gaps is None:
            return np.zeros(len(grid), bool)
        return self.gaps.cover(self._place(grid))

    def _place(self, inputs: FloatArray) -> FloatArray:
        """Return where inputs (n, d) lie on the map, in the lengths of its sides."""
        sides = self.box[1] - self.box[0]
        return inputs[:, [self.i, self.j]] / (sides.max() if self.square else sides)


def planes(subject: Subject) -> list[Plane]:
    return [Plane(subject, i, j) for i, j in combinations(subject.varied, 2)]


def has_gaps(drawn: Iterable[Plane]) -> bool:
    """Whether a map of any of these planes has cells that never had a value."""
    return any(plane.gaps is not None for plane in drawn)


def field_plot(subject: Subject, whole: bool) -> bytes:
    """A 2-d field's arrows over its speed; observed vectors in another colour; pale where the data say next to
    nothing, which is far from all rows to draw if these are the `whole` data, else where deviations are large."""
    plane = Plane(subject, 0, 1)
    figure = new_figure(9.6, plane.height(7.7))
    axes = figure.add_subplot()
    x, y, grid = plane.points(CELLS)
    length = np.linalg.norm(subject.model.predict(grid), axis=1)
    doubt = _Doubt(plane, whole)
    top = 1.2 * _top(np.linalg.norm(subject.model.predict(doubt.sure), axis=1))
    image = axes.pcolormesh(x, y, length.reshape(len(y), len(x)), cmap="Blues", vmin=0, vmax=top)
    doubt.veil(axes)
    unit = common_unit(subject.targets)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, extend="max")
    bar.set_label(f"length of the vectors{_in_brackets(unit)}", color=INK)
    # Fitted arrows on a grid, and observed ones, to one scale, with a key above the axes.
    _, _, grid = plane.points(ARROWS)
    vectors, near = subject.model.predict(grid), (doubt.of(grid) < FAR) & ~plane.never_observed(grid)
    reference = max(_top(np.linalg.norm(vectors[near], axis=1)), 1e-300)
    style: Any = {"scale": reference * ARROWS / 2.2, "width": 0.0018, "headwidth": 4.0}  # the longest: 2.2 cells
    fitted = axes.quiver(*grid[near].T, *vectors[near].T, color=INK, pivot="mid", **style)
    _key(fitted, reference, unit, 0.0, "fitted", INK)
    if subject.data is not None:
        X, Y = _thinned(subject.data, subject)
        axes.plot(*subject.data[0].T, ".", ms=1.6, color=ACCENT, alpha=0.6)
        _key(axes.quiver(*X.T, *Y.T, color=ACCENT, alpha=0.9, **style), reference, unit, 0.32, "observed", ACCENT)
    plane.prepare(axes)
    return png(figure)


def derivative_plots(subject: Subject, whole: bool) -> bytes:
    """Divergence and vorticity of a 2-d field side by side, in the same colours."""
    plane = Plane(subject, 0, 1)
    x, y, grid = plane.points(CELLS)
    doubt = _Doubt(plane, whole)
    unit, limit = _scale(subject, list(_derivatives(subject, doubt.sure).values()))
    figure = new_figure(12.0, plane.height(5.0))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (name, values) in zip(panels, _derivatives(subject, grid).items(), strict=True):
        shown = (values * unit.factor).reshape(len(y), len(x))
        image = axes.pcolormesh(x, y, shown, cmap="RdBu_r", vmin=-limit, vmax=limit)
        doubt.veil(axes)
        plane.prepare(axes, title=name)
        axes.label_outer()
    figure.colorbar(image, ax=list(panels), shrink=0.9, pad=0.015, extend="both").set_label(
        drawable(unit.unit), color=INK
    )
    return png(figure)


def _derivatives(subject: Subject, grid: FloatArray) -> dict[str, FloatArray]:
    J = subject.model.jacobian(grid)
    return {"Divergence": J[:, 0, 0] + J[:, 1, 1], "Vorticity": J[:, 1, 0] - J[:, 0, 1]}


def map_plots(subject: Subject, i: int, j: int) -> bytes:
    """The first few outputs over two inputs, with the data in the same colours, the paler the farther their other
    inputs are from the centre; below them the deviations, where the model keeps a posterior."""
    plane, count, sure = Plane(subject, i, j), min(subject.model.p, MOST_OUTPUTS), subject.model.posterior is not None
    x, y, grid = plane.points(CELLS)
    values, seen = subject.model.predict(grid), ~plane.never_observed(grid)
    figure = new_figure(5.6 * count, plane.height(4.4) * (1 + sure))
    if plane.square:
        figure.set_layout_engine("compressed")  # or panels keep the room that equal units leave
    panels = figure.subplots(1 + sure, count, squeeze=False, sharex=True, sharey=True)
    for at in range(count):
        ends: Any = dict(zip(("vmin", "vmax"), np.percentile(values[seen, at], (0.5, 99.5)), strict=True))
        image = panels[0, at].pcolormesh(x, y, values[:, at].reshape(len(y), len(x)), cmap="viridis", **ends)
        if subject.data is not None:
            X, Y = subject.data
            style: Any = {"s": 9, "ec": "w", "lw": 0.3, "cmap": "viridis", "alpha": shades(X, subject, [i, j])}
            panels[0, at].scatter(*X[:, [i, j]].T, c=Y[:, at], zorder=2, **style, **ends)
        _bar(figure, image, panels[0, at], drawable(subject.targets[at].label))
        if sure:
            _deviation(figure, panels[1, at], plane, at)
    for axes in panels.flat:
        plane.prepare(axes)
        axes.label_outer()
    return png(figure)


def deviation_plot(subject: Subject) -> bytes:
    """Over a 2-d field's plane the deviation of its vectors: the root of their components' summed variances."""
    plane = Plane(subject, 0, 1)
    figure = new_figure(9.6, plane.height(7.7))
    axes = figure.add_subplot()
    _deviation(figure, axes, plane, None)
    plane.prepare(axes)
    return png(figure)


def _deviation(figure: Figure, axes: Axes, plane: Plane, j: int | None) -> None:
    """The deviation of output j, or of all together, over a plane, and the rows to draw as dots."""
    subject = plane.subject
    x, y, grid = plane.points(COARSE)
    std = subject.model.std(grid)
    shown = np.sqrt((std**2).sum(axis=1)) if j is None else std[:, j]
    largest = shown[~plane.never_observed(grid)].max(initial=0.0) or None
    shown = shown.reshape(len(y), len(x))
    image = axes.imshow(shown, cmap="Purples", vmin=0, vmax=largest, extent=plane.extent, **_SMOOTH)
    if subject.data is not None:
        axes.plot(*subject.data[0][:, [plane.i, plane.j]].T, ".", ms=1.6, color=ACCENT, alpha=0.5)
    unit = common_unit(subject.targets) if j is None else subject.targets[j].unit
    name = "vectors" if j is None else drawable(subject.targets[j].name)
    _bar(figure, image, axes, f"deviation of {name}{_in_brackets(unit)}")


def _in_brackets(unit: str | None) -> str:
    """Return a unit as it follows a name in a label."""
    return f" ({drawable(unit)})" if unit else ""


def _bar(figure: Figure, image: Any, axes: Any, label: str) -> None:
    figure.colorbar(image, cax=axes.inset_axes((1.03, 0.0, 0.04, 1.0))).set_label(label, color=INK)


def slice_plots(subject: Subject) -> bytes:
    """The planes through the centre of a 3-d field of two inputs that vary: arrows over what crosses the plane, with
    the data, the paler the farther from it; divergence; curl; deviation where the model keeps a posterior."""
    drawn = planes(subject)
    data = [_plane_values(plane) for plane in drawn]
    divergence, curl = [one[3] for one in data], [one[4] for one in data]
    unit, limit = _scale(subject, divergence + curl)
    across = _top(np.concatenate([np.abs(one[2]) for one in data])) or 1.0
    target_unit = drawable(common_unit(subject.targets) or "target units")
    per_unit = drawable(unit.unit)
    rows = [
        (f"across the plane\n({target_unit})", "RdBu_r", -across, across, [one[2] for one in data]),
        (
            f"divergence\n({per_unit})",
            "RdBu_r",
            -limit,
            limit,
            [value * unit.factor for value in divergence],
        ),
        (
            f"length of the curl\n({per_unit})",
            "Purples",
            0.0,
            limit,
            [value * unit.factor for value in curl],
        ),
    ]
    if subject.model.posterior is not None:
        std = [np.linalg.norm(subject.model.std(plane.points(SLICE)[2]), axis=1) for plane in drawn]
        rows.append((f"deviation\n({target_unit})", "Purples", 0.0, float(np.max(np.concatenate(std))), std))
    rows = [row for row in rows if max(_top(np.abs(value)) for value in row[4]) > 1e-6 * row[3]]  # not of no curl
    alone = len(drawn) == 1
    figure = new_figure(12.0, 2 * drawn[0].height(4.6) if alone else 3.4 * len(rows) + 0.4)
    panels = figure.subplots(2, 2).reshape(-1, 1) if alone else figure.subplots(len(rows), len(drawn))
    for axes in panels.flat[len(rows) * len(drawn) :]:
        axes.set_axis_off()
    for row, (name, colours, low, high, values) in enumerate(rows):
        for axes, plane, (x, y, *_), shown in zip(panels[row], drawn, data, values, strict=True):
            image = axes.pcolormesh(x, y, shown.reshape(len(y), len(x)), cmap=colours, vmin=low, vmax=high)
            third = 3 - plane.i - plane.j
            at = f"{subject.inputs[third].name} = {subject.inputs[third].shown(subject.centre[third])}"
            plane.prepare(axes, title=at if row == 0 else None)
            if row == 0:
                _plane_arrows(axes, plane)
        if alone:
            _bar(figure, image, panels[row, 0], name)
        else:
            figure.colorbar(image, ax=list(panels[row]), pad=0.015).set_label(name, color=INK)
    return png(figure)


def _plane_values(plane: Plane) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """x, y, the component across the plane, the divergence, the length of the curl (row by row)."""
    x, y, grid = plane.points(SLICE)
    J = plane.subject.model.jacobian(grid)
    across = plane.subject.model.predict(grid)[:, 3 - plane.i - plane.j]
    curl = np.stack([J[:, 2, 1] - J[:, 1, 2], J[:, 0, 2] - J[:, 2, 0], J[:, 1, 0] - J[:, 0, 1]])
    divergence: FloatArray = np.trace(J, axis1=1, axis2=2)
    return x, y, across, divergence, np.linalg.norm(curl, axis=0)


def _plane_arrows(axes: Axes, plane: Plane) -> None:
    subject = plane.subject
    _, _, grid = plane.points(14)
    vectors = subject.model.predict(grid)
    style: Any = {"scale": max(_top(np.linalg.norm(vectors, axis=1)), 1e-300) * 14 / 1.8, "width": 0.004}
    i, j = plane.i, plane.j
    axes.quiver(grid[:, i], grid[:, j], vectors[:, i], vectors[:, j], color=INK, pivot="mid", **style)
    if subject.data is None:
        return
    X, Y = _thinned(subject.data, subject)
    third = 3 - plane.i - plane.j
    reach = 0.05 * (subject.high[third] - subject.low[third])
    shades = np.exp(-0.5 * ((X[:, third] - subject.centre[third]) / reach) ** 2)
    X, Y, shades = (part[shades > 0.05] for part in (X, Y, shades))
    if not len(X):
        return
    axes.scatter(X[:, i], X[:, j], s=5, color=ACCENT, alpha=shades, lw=0)
    axes.quiver(X[:, i], X[:, j], Y[:, i], Y[:, j], color=ACCENT, alpha=shades, **style)


def _scale(subject: Subject, parts: list[FloatArray]) -> tuple[Rate, float]:
    """The unit for derivatives, and a limit (in it) that one wild corner does not set."""
    largest = _top(np.abs(np.concatenate(parts)))
    unit = rate(subject.inputs, subject.targets).scaled(largest)
    return unit, largest * unit.factor or 1.0


def _top(values: FloatArray) -> float:
    return float(np.percentile(values, 99))


def _key(arrows: Quiver, reference: float, unit: str | None, at: float, what: str, colour: str) -> None:
    """A key above the axes: how long an arrow of a round length is."""
    step = 10.0 ** np.floor(np.log10(reference))
    size = step * max(factor for factor in (1, 2, 5) if factor * step <= reference * (1 + 1e-9))
    text = f"{what}, {size:g}{f' {drawable(unit)}' if unit else ''}"
    axes: Any = arrows.axes
    axes.quiverkey(arrows, 0.06 + at, 1.025, size, text, labelpos="E", color=colour, labelcolor=colour)


def _thinned(rows: Observations, subject: Subject) -> Observations:
    """At most one row in each of many cells, so that the arrows can be told apart; rows that miss no component."""
    X, Y = (part[np.isfinite(rows[1]).all(axis=1)] for part in rows)
    if len(X) <= MOST_TRACKED:
        return X, Y
    cells = np.floor((X - subject.low) / (subject.high - subject.low) * 2 * ARROWS)
    _, first = np.unique(cells, axis=0, return_index=True)
    keep = np.sort(first)[:: -(-len(first) // MOST_TRACKED)]
    return X[keep], Y[keep]


class _Doubt:
    """How little the data say over the plane of a 2-d field: FAR where that is next to nothing."""

    def __init__(self, plane: Plane, whole: bool) -> None:
        self._plane, self._whole = plane, whole
        x, y, self._grid = plane.points(CELLS if whole else COARSE)
        self._values = self.of(self._grid)
        self._empty = plane.never_observed(self._grid)
        self._shape = len(y), len(x)

    @property
    def sure(self) -> FloatArray:
        """The inputs (n, 2) of the plane where they say something."""
        sure = (self._values < FAR) & ~self._empty
        return self._grid[sure if sure.any() else self._values < FAR]

    def of(self, grid: FloatArray) -> FloatArray:
        """Of inputs (n, 2), (n,): length-scales to the nearest of the whole data; else deviations, FAR where they are
        as large as vectors are long. 0 where nothing is known, or nothing would be left."""
        subject, reach = self._plane.subject, _reach(self._plane.subject)
        doubt = np.zeros(len(grid))
        if self._whole:
            if subject.data is not None and reach is not None:
                doubt = cKDTree(subject.data[0] / reach).query(grid / reach)[0]
        elif subject.model.posterior is not None:
            vectors = subject.model.predict(grid) if subject.data is None else subject.data[1]
            long = float(np.sqrt(np.mean(np.nansum(vectors**2, axis=1))))
            doubt = FAR * np.linalg.norm(subject.model.std(grid), axis=1) / (long or 1.0)
        return doubt if (doubt < FAR).any() else np.zeros(len(grid))

    def veil(self, axes: Axes) -> None:
        """Pale the parts of the plane that are in doubt."""
        veil = np.ones((*self._shape, 4))
        veil[..., 3] = 0.92 * np.clip(self._values.reshape(self._shape) - FAR + 1.0, 0.0, 1.0)
        axes.imshow(veil, extent=self._plane.extent, zorder=1.5, **_SMOOTH)


def _reach(subject: Subject) -> FloatArray | None:
    """The longest length-scale (d,) in input units; None where a scalar kernel has none."""
    scalars = [term.scalar for weight, term in subject.model.kernel.terms() if weight > 0]
    spectral = [scalar for scalar in scalars if isinstance(scalar, Spectral) and not scalar.sampler]
    if len(spectral) < len(scalars):
        return None
    stretches = np.array([1.0 / scalar.stretch(subject.model.d) for scalar in spectral])
    return np.asarray(stretches.max(axis=0) * subject.model.feature_map.scale)
