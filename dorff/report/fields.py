"""Plots over planes of the inputs: of a vector field arrows, divergence, vorticity and deviation; maps of outputs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver
from scipy.interpolate import RegularGridInterpolator

from dorff.kernels import FloatArray
from dorff.report.describe import Observations, Rate, Subject, common_unit, rate
from dorff.report.doubt import Doubt, color_limits, extension, largest_shown, opacity_of
from dorff.report.figures import ACCENT, INK, MOST_OUTPUTS, drawable, label_axes, new_figure, shades
from dorff.report.gaps import GREY, Gaps

LONGITUDES: Final = ("lon", "longitude")
LATITUDES: Final = ("lat", "latitude")
ARROWS: Final = 26  # along the longer side
CELLS: Final = 160
COARSE: Final = 40  # cells of what takes long, deviations
SLICE: Final = 50
LEAST_OPACITY: Final = 0.1  # of arrows that are drawn, and of places that have a say in color scales
VEIL: Final = 0.92  # the opacity of the white over places of which nothing is known
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
        """Whether a unit is as long along x as along y: equal units, and sides that are not too unlike.

        Inputs whose units are not known have equal ones if f is a field over them, or if
        they are a longitude and a latitude.
        """
        sides = self.box[1] - self.box[0]
        columns = [self.subject.inputs[place] for place in (self.i, self.j)]
        places = all(column.name.lower() in LONGITUDES + LATITUDES for column in columns)
        if common_unit(columns) is None and not places and self.subject.model.d != self.subject.model.p:
            return False
        return len({column.unit for column in columns}) == 1 and float(sides.max() / sides.min()) < 6

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

    @cached_property
    def deviations(self) -> FloatArray:
        """The posterior's standard deviations (n, p) at coarse cells."""
        return self.subject.model.std(self.points(COARSE)[2])

    def never_observed(self, grid: FloatArray) -> npt.NDArray[np.bool_]:
        """Return which inputs (n, d) of the plane are where no row had a value."""
        if self.gaps is None:
            return np.zeros(len(grid), bool)
        return self.gaps.cover(self._place(grid))

    def _place(self, inputs: FloatArray) -> FloatArray:
        """Return where inputs (n, d) lie on the map, in the lengths of its sides."""
        sides = self.box[1] - self.box[0]
        return inputs[:, [self.i, self.j]] / (sides.max() if self.square else sides)


@dataclass(frozen=True, eq=False)
class Clarity:
    """How opaque f is drawn on a plane, by the doubt at coarse cells and what lies between them."""

    plane: Plane
    doubt: Doubt

    @cached_property
    def places(self) -> FloatArray:
        """Inputs (n, d) of the plane where the data say enough for f to be shown; all if they do nowhere."""
        _, _, grid = self.plane.points(COARSE)
        opaque = self.opacity(grid) > LEAST_OPACITY
        if opaque.any():
            return grid[opaque]
        observed = ~self.plane.never_observed(grid)
        return grid[observed] if observed.any() else grid

    def opacity(self, inputs: FloatArray) -> FloatArray:
        """Return the opacity (n,) of what is drawn at inputs (n, d) of the plane; 0 where no row ever had a value."""
        return np.where(self.plane.never_observed(inputs), 0.0, self._opacity(inputs))

    def fade(self, axes: Axes) -> None:
        """Pale the parts of the plane that are in doubt."""
        x, y, grid = self.plane.points(CELLS)
        veil = np.ones((len(y), len(x), 4))
        veil[..., 3] = VEIL * (1.0 - self._opacity(grid).reshape(len(y), len(x)))
        axes.imshow(veil, extent=self.plane.extent, zorder=1.5, **_SMOOTH)

    def _opacity(self, inputs: FloatArray) -> FloatArray:
        """The opacity (n,) by the doubt alone; 1 everywhere if nothing would be left to see."""
        if not (self._coarse.values < 1).any():
            return np.ones(len(inputs))
        return opacity_of(self._coarse(inputs[:, [self.plane.j, self.plane.i]]))

    @cached_property
    def _coarse(self) -> Any:
        """The doubt at coarse cells, and between them, as a function of (y, x)."""
        x, y, grid = self.plane.points(COARSE)
        sure = self.plane.subject.model.posterior is not None
        doubt = self.doubt.at(grid, self.plane.deviations if sure else None).reshape(len(y), len(x))
        return RegularGridInterpolator((y, x), doubt, bounds_error=False, fill_value=None)


def planes(subject: Subject) -> list[Plane]:
    return [Plane(subject, i, j) for i, j in combinations(subject.varied, 2)]


def has_gaps(drawn: Iterable[Plane]) -> bool:
    """Whether a map of any of these planes has cells that never had a value."""
    return any(plane.gaps is not None for plane in drawn)


def draw_field(subject: Subject, whole: bool) -> Figure:
    """A 2-d field's arrows over its speed; observed vectors in another color; both fade where the data say little."""
    plane, doubt = Plane(subject, 0, 1), Doubt(subject, whole)
    clarity = Clarity(plane, doubt)
    figure = new_figure(9.6, plane.height(7.7))
    axes = figure.add_subplot()
    x, y, grid = plane.points(CELLS)
    length = np.linalg.norm(subject.model.predict(grid), axis=1)
    seen = subject.model.predict(clarity.places)
    top = 1.2 * largest_shown(np.linalg.norm(seen, axis=1), doubt.values)
    image = axes.pcolormesh(x, y, length.reshape(len(y), len(x)), cmap="Blues", vmin=0, vmax=top)
    clarity.fade(axes)
    unit = common_unit(subject.targets)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, extend="max")
    bar.set_label(f"length of the vectors{_in_brackets(unit)}", color=INK)
    # Fitted arrows on a grid, and observed ones, to one scale, with a key above the axes.
    _, _, grid = plane.points(ARROWS)
    vectors, opacity = subject.model.predict(grid), clarity.opacity(grid)
    shown = opacity > LEAST_OPACITY
    reference = largest_shown(np.linalg.norm(vectors[shown], axis=1), doubt.values) if shown.any() else 1.0
    style: Any = {"scale": reference * ARROWS / 2.2, "width": 0.0018, "headwidth": 4.0}  # the longest: 2.2 cells
    fitted = _fitted_arrows(axes, grid[shown], vectors[shown], opacity[shown], **style)
    _key(fitted, reference, unit, 0.0, "fitted", INK)
    if subject.data is not None:
        X, Y = _thinned(subject.data, subject)
        axes.plot(*subject.data[0].T, ".", ms=1.6, color=ACCENT, alpha=0.6)
        _key(axes.quiver(*X.T, *Y.T, color=ACCENT, alpha=0.9, **style), reference, unit, 0.32, "observed", ACCENT)
    plane.prepare(axes)
    return figure


def draw_derivatives(subject: Subject, whole: bool) -> Figure:
    """Divergence and vorticity of a 2-d field side by side, in the same colors."""
    plane = Plane(subject, 0, 1)
    clarity = Clarity(plane, Doubt(subject, whole))
    x, y, grid = plane.points(CELLS)
    unit, limit = _scale(subject, list(_derivatives(subject, clarity.places).values()))
    figure = new_figure(12.0, plane.height(5.0))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (name, values) in zip(panels, _derivatives(subject, grid).items(), strict=True):
        shown = (values * unit.factor).reshape(len(y), len(x))
        image = axes.pcolormesh(x, y, shown, cmap="RdBu_r", vmin=-limit, vmax=limit)
        clarity.fade(axes)
        plane.prepare(axes, title=name)
        axes.label_outer()
    figure.colorbar(image, ax=list(panels), shrink=0.9, pad=0.015, extend="both").set_label(
        drawable(unit.unit), color=INK
    )
    return figure


def _derivatives(subject: Subject, grid: FloatArray) -> dict[str, FloatArray]:
    J = subject.model.jacobian(grid)
    return {"Divergence": J[:, 0, 0] + J[:, 1, 1], "Vorticity": J[:, 1, 0] - J[:, 0, 1]}


def draw_maps(plane: Plane, whole: bool) -> Figure:
    """The first few outputs over a plane, with the data in the same colors, the paler the farther their other inputs
    are from the centre; below them the deviations, where the model keeps a posterior."""
    subject = plane.subject
    count, sure = min(subject.model.p, MOST_OUTPUTS), subject.model.posterior is not None
    x, y, grid = plane.points(CELLS)
    predicted = subject.model.predict(grid)
    figure = new_figure(5.6 * count, plane.height(4.4) * (1 + sure))
    if plane.square:
        figure.set_layout_engine("compressed")  # or panels keep the room that equal units leave
    panels = figure.subplots(1 + sure, count, squeeze=False, sharex=True, sharey=True)
    for output in range(count):
        doubt = Doubt(subject, whole, output)
        clarity = Clarity(plane, doubt)
        seen = subject.model.predict(clarity.places)[:, output]
        low, high = color_limits(seen, doubt.values)
        colors: Any = {"cmap": "viridis", "vmin": low, "vmax": high}
        axes, values = panels[0, output], predicted[:, output]
        image = axes.pcolormesh(x, y, values.reshape(len(y), len(x)), **colors)
        clarity.fade(axes)
        if subject.data is not None:
            X, Y = subject.data
            style: Any = {"s": 9, "ec": "w", "lw": 0.3, "alpha": shades(X, subject, [plane.i, plane.j])}
            axes.scatter(*X[:, [plane.i, plane.j]].T, c=Y[:, output], zorder=2, **style, **colors)
        label = drawable(subject.targets[output].label)
        _bar(figure, image, axes, label, extension(values[~plane.never_observed(grid)], low, high))
        if sure:
            _deviation(figure, panels[1, output], plane, doubt)
    for axes in panels.flat:
        plane.prepare(axes)
        axes.label_outer()
    return figure


def draw_deviation(subject: Subject, whole: bool) -> Figure:
    """Over a 2-d field's plane the deviation of its vectors: the root of their components' summed variances."""
    plane = Plane(subject, 0, 1)
    figure = new_figure(9.6, plane.height(7.7))
    axes = figure.add_subplot()
    _deviation(figure, axes, plane, Doubt(subject, whole))
    plane.prepare(axes)
    return figure


def _deviation(figure: Figure, axes: Axes, plane: Plane, doubt: Doubt) -> None:
    """The deviation of an output, or of all together, over a plane, and the rows to draw as dots.

    Its colors end where it is as large as the spread of the targets.
    """
    subject, j = plane.subject, doubt.output
    x, y, grid = plane.points(COARSE)
    shown = doubt.length(plane.deviations)
    seen = shown[~plane.never_observed(grid)]
    most = seen.max(initial=0.0)
    top = min(most, doubt.spread) if doubt.spread > 0 else most
    pixels = shown.reshape(len(y), len(x))
    image = axes.imshow(pixels, cmap="Purples", vmin=0, vmax=top or None, extent=plane.extent, **_SMOOTH)
    if subject.data is not None:
        axes.plot(*subject.data[0][:, [plane.i, plane.j]].T, ".", ms=1.6, color=ACCENT, alpha=0.5)
    unit = common_unit(subject.targets) if j is None else subject.targets[j].unit
    name = "vectors" if j is None else drawable(subject.targets[j].name)
    _bar(figure, image, axes, f"deviation of {name}{_in_brackets(unit)}", extension(seen, 0.0, top))


def _in_brackets(unit: str | None) -> str:
    """Return a unit as it follows a name in a label."""
    return f" ({drawable(unit)})" if unit else ""


def _bar(figure: Figure, image: Any, axes: Any, label: str, extend: str) -> None:
    bar = figure.colorbar(image, cax=axes.inset_axes((1.03, 0.0, 0.04, 1.0)), extend=extend)
    bar.set_label(label, color=INK)


@dataclass(frozen=True)
class _Quantity:
    """What a row of panels shows of a 3-d field: the values on each plane, and their color scale."""

    name: str
    colors: str
    low: float
    high: float
    values: list[FloatArray]
    fades: bool = True

    @property
    def extension(self) -> str:
        return extension(np.concatenate(self.values), self.low, self.high)

    @property
    def vanishes(self) -> bool:
        """Whether it is 0 up to rounding, such as the curl of a curl-free field."""
        return max(float(np.abs(values).max()) for values in self.values) <= 1e-6 * self.high


def draw_slices(subject: Subject, whole: bool) -> Figure:
    """The planes through the centre of a 3-d field of two inputs that vary: arrows over what crosses the plane, with
    the data, the paler the farther from it; divergence; curl; deviation where the model keeps a posterior."""
    drawn, doubt = planes(subject), Doubt(subject, whole)
    clarities = [Clarity(plane, doubt) for plane in drawn]
    quantities = [quantity for quantity in _quantities(clarities) if not quantity.vanishes]
    alone = len(drawn) == 1
    figure = new_figure(12.0, 2 * drawn[0].height(4.6) if alone else 3.4 * len(quantities) + 0.4)
    panels = figure.subplots(2, 2).reshape(-1, 1) if alone else figure.subplots(len(quantities), len(drawn))
    for axes in panels.flat[len(quantities) * len(drawn) :]:
        axes.set_axis_off()
    for row, shown in enumerate(quantities):
        for axes, clarity, values in zip(panels[row], clarities, shown.values, strict=True):
            plane = clarity.plane
            x, y, _ = plane.points(SLICE)
            pixels = values.reshape(len(y), len(x))
            image = axes.pcolormesh(x, y, pixels, cmap=shown.colors, vmin=shown.low, vmax=shown.high)
            if shown.fades:
                clarity.fade(axes)
            third = 3 - plane.i - plane.j
            at = f"{subject.inputs[third].name} = {subject.inputs[third].shown(subject.centre[third])}"
            plane.prepare(axes, title=at if row == 0 else None)
            if row == 0:
                _plane_arrows(axes, clarity)
        if alone:
            _bar(figure, image, panels[row, 0], shown.name, shown.extension)
        else:
            bar = figure.colorbar(image, ax=list(panels[row]), pad=0.015, extend=shown.extension)
            bar.set_label(shown.name, color=INK)
    return figure


def _quantities(clarities: Sequence[Clarity]) -> Iterator[_Quantity]:
    """What panels show of a 3-d field, from top to bottom; colors reach as far as values do where data are."""
    subject, doubt = clarities[0].plane.subject, clarities[0].doubt
    cells = [_plane_values(clarity.plane, clarity.plane.points(SLICE)[2]) for clarity in clarities]
    seen = [_plane_values(clarity.plane, clarity.places) for clarity in clarities]
    unit, limit = _scale(subject, [part for values in seen for part in (values.divergence, values.curl)])
    across = largest_shown(np.concatenate([values.across for values in seen]), subject.values)
    target_unit = drawable(common_unit(subject.targets) or "target units")
    per_unit = drawable(unit.unit)
    divergence, curl = ([getattr(values, name) * unit.factor for values in cells] for name in ("divergence", "curl"))
    yield _Quantity(
        f"across the plane\n({target_unit})", "RdBu_r", -across, across, [values.across for values in cells]
    )
    yield _Quantity(f"divergence\n({per_unit})", "RdBu_r", -limit, limit, divergence)
    yield _Quantity(f"length of the curl\n({per_unit})", "Purples", 0.0, limit, curl)
    if subject.model.posterior is not None:
        std = [doubt.length(subject.model.std(clarity.plane.points(SLICE)[2])) for clarity in clarities]
        most = float(np.max(np.concatenate(std)))
        top = min(most, doubt.spread) if doubt.spread > 0 else most
        yield _Quantity(f"deviation\n({target_unit})", "Purples", 0.0, top, std, fades=False)


class _PlaneValues(NamedTuple):
    """At inputs of a plane (n,): the component across the plane, the divergence, the length of the curl."""

    across: FloatArray
    divergence: FloatArray
    curl: FloatArray


def _plane_values(plane: Plane, grid: FloatArray) -> _PlaneValues:
    J = plane.subject.model.jacobian(grid)
    across = plane.subject.model.predict(grid)[:, 3 - plane.i - plane.j]
    curl = np.stack([J[:, 2, 1] - J[:, 1, 2], J[:, 0, 2] - J[:, 2, 0], J[:, 1, 0] - J[:, 0, 1]])
    return _PlaneValues(across, np.asarray(np.trace(J, axis1=1, axis2=2)), np.linalg.norm(curl, axis=0))


def _plane_arrows(axes: Axes, clarity: Clarity) -> None:
    plane, doubt = clarity.plane, clarity.doubt
    subject = plane.subject
    _, _, grid = plane.points(14)
    vectors, opacity = subject.model.predict(grid), clarity.opacity(grid)
    drawn = opacity > LEAST_OPACITY
    reference = largest_shown(np.linalg.norm(vectors[drawn], axis=1), doubt.values) if drawn.any() else 1.0
    style: Any = {"scale": reference * 14 / 1.8, "width": 0.004}
    i, j = plane.i, plane.j
    _fitted_arrows(axes, grid[drawn][:, [i, j]], vectors[drawn][:, [i, j]], opacity[drawn], **style)
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


def _fitted_arrows(axes: Axes, places: FloatArray, vectors: FloatArray, opacity: FloatArray, **style: Any) -> Quiver:
    """Draw fitted vectors (n, 2) at places (n, 2); none where nothing is known anywhere."""
    alpha = opacity if len(opacity) else None  # Matplotlib takes the smallest of the opacities
    return axes.quiver(*places.T, *vectors.T, color=INK, pivot="mid", alpha=alpha, **style)


def _scale(subject: Subject, parts: list[FloatArray]) -> tuple[Rate, float]:
    """The unit for derivatives, and a limit (in it) that one wild corner does not set."""
    largest = largest_shown(np.concatenate(parts))
    unit = rate(subject.inputs, subject.targets).scaled(largest)
    return unit, largest * unit.factor


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
