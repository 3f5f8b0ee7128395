"""A model in words, symbols and facts, the names and ranges of its columns, and units as in `x_km` or `u_m_s`."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from dorff import frequencies, kernels
from dorff.data.units import NO_UNITS, TimeUnits, time_units, unit_of_lengths
from dorff.errors import InputError
from dorff.features import Projected
from dorff.kernels.scalar import FloatArray
from dorff.model import Model, Sites
from dorff.model.model import bounds
from dorff.report.dates import date_text
from dorff.spec.registry import KERNELS, SAMPLERS, SCALARS, kind_of

Observations = tuple[FloatArray, FloatArray]
NOT_KEPT: Final = "not recorded"
MOST_LENGTHS: Final = 8  # length-scales of a kernel that are named
MOST_LEVELS: Final = 5  # of an input that has so few values: they are drawn, and nothing between them

# what is measured: {suffix: (unit as shown, in SI units)}
_UNITS: Final = {
    "speed": {"m_s": ("m/s", 1.0), "cm_s": ("cm/s", 0.01), "mm_s": ("mm/s", 0.001), "km_h": ("km/h", 1 / 3.6)},
    "length": {"km": ("km", 1000.0), "m": ("m", 1.0), "cm": ("cm", 0.01), "mm": ("mm", 0.001)},
    "angle": {"deg": ("°", 1.0)},
    "temperature": {"degC": ("°C", 1.0), "K": ("K", 1.0)},
    "field": {"T": ("T", 1.0), "uT": ("µT", 1e-6), "nT": ("nT", 1e-9)},
    "pressure": {"Pa": ("Pa", 1.0), "hPa": ("hPa", 100.0)},
}
# The same as people and the CF conventions write them in an attribute: (what is measured, suffix).
_SPELLINGS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "speed": {
        "m_s": ("m/s", "m s-1", "m.s-1", "m s^-1", "m s**-1", "meter second-1", "meters/second", "metre second-1"),
        "cm_s": ("cm/s", "cm s-1", "cm.s-1", "cm s^-1"),
        "mm_s": ("mm/s", "mm s-1", "mm.s-1"),
        "km_h": ("km/h", "km h-1", "km hour-1"),
    },
    "length": {
        "km": ("km", "kilometer", "kilometers", "kilometre"),
        "m": ("m", "meter", "meters", "metre", "metres"),
        "cm": ("cm", "centimeter"),
        "mm": ("mm", "millimeter"),
    },
    "angle": {
        "deg": (
            "degree", "degrees", "degrees_north", "degree_north", "degrees_N", "degree_N", "degrees_east",
            "degree_east", "degrees_E", "degree_E",
        )
    },
    "temperature": {
        "degC": ("degC", "celsius", "Celsius", "degree_C", "degrees_C", "deg_C", "degree_Celsius", "degrees_Celsius"),
        "K": ("K", "kelvin", "Kelvin"),
    },
    "field": {"T": ("T", "tesla"), "uT": ("uT",), "nT": ("nT",)},
    "pressure": {"Pa": ("Pa", "pascal"), "hPa": ("hPa", "mbar", "millibar")},
}  # fmt: skip
_SPELLED: Final = {
    spelling: (measures, suffix)
    for measures, units in _SPELLINGS.items()
    for suffix, spellings in units.items()
    for spelling in spellings
}
_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class ColumnLabel:
    """A column's name without its unit, and the unit that its attributes say, or that its name ends in where it is
    known. `time` has the units of times, and `time_unit` their unit without the origin."""

    name: str
    unit: str | None = None
    measures: str | None = None
    factor: float = 1.0
    time: TimeUnits | None = None
    time_unit: str | None = None

    @property
    def length_unit(self) -> str | None:
        """The unit of a difference of two values."""
        return self.unit or self.time_unit

    @property
    def label(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def shown(self, value: float) -> str:
        """Return a value as a reader wants it: a time as a date."""
        return f"{value:.5g}" if self.time is None else date_text(value, self.time)


class Rate(NamedTuple):
    """A derivative's unit; numbers in target units per input unit are multiplied by `factor` to be in it."""

    unit: str
    factor: float = 1.0

    def scaled(self, largest: float) -> "Rate":
        """The same with a power of ten taken out where numbers up to `largest` (unscaled) would be awkward."""
        size = abs(largest * self.factor)
        if not math.isfinite(size) or size == 0 or 0.1 <= size < 1000:
            return self
        exponent = math.floor(math.log10(size))
        power = str(exponent).translate(_SUPERSCRIPTS)
        joint = " " if self.unit == "s⁻¹" else " × "
        return Rate(f"10{power}{joint}{self.unit}", self.factor * 10.0**-exponent)


def read_column(column: str, attributes: Mapping[str, Any] | None = None) -> ColumnLabel:
    """The column that its attributes, or its name describe: `u_m_s` is u in m/s, `depth` is depth in no unit that is
    known."""
    if units := str(mapping(attributes).get("units", "")):
        return _column_of_units(column, units, str(mapping(attributes).get("calendar", "")))
    for measures, suffixes in _UNITS.items():
        for suffix, (unit, factor) in suffixes.items():
            if column.endswith(f"_{suffix}") and len(column) > len(suffix) + 1:
                return ColumnLabel(column.removesuffix(f"_{suffix}"), unit, measures, factor)
    return ColumnLabel(column)


def _column_of_units(column: str, units: str, calendar: str) -> ColumnLabel:
    if units in _SPELLED:
        measures, suffix = _SPELLED[units]
        unit, factor = _UNITS[measures][suffix]
        name = column.removesuffix(f"_{suffix}") or column
        return ColumnLabel(name, unit, measures, factor)
    with suppress(InputError):  # which are then shown as they are
        if (time := time_units(units, calendar, column)) is not None:
            return ColumnLabel(column, time=time, time_unit=unit_of_lengths({"units": units}))
    return ColumnLabel(column, None if units in ("1", NO_UNITS) else units)


def common_unit(columns: Sequence[ColumnLabel]) -> str | None:
    """The unit of all the columns, None where they differ or have none."""
    units = {column.unit for column in columns}
    return units.pop() if len(units) == 1 else None


def rate(inputs: Sequence[ColumnLabel], targets: Sequence[ColumnLabel]) -> Rate:
    """The unit of d target / d input: per second for velocities over lengths, said in words where unknown."""
    below, above = common_unit(inputs), common_unit(targets)
    if below is None or above is None:
        return Rate("target units per input unit")
    if (targets[0].measures, inputs[0].measures) == ("speed", "length"):
        return Rate("s⁻¹", targets[0].factor / inputs[0].factor)
    return Rate(f"{above} / {below}")


@dataclass(frozen=True, eq=False)
class Subject:
    """What the plots are about: the model, its columns, the box (d,) .. (d,) of its data. `known_box` is False where
    the model does not say where its data were; the box is then a guess around the centre of the features. `varied`
    are the inputs that are not constant. `centre` (d,) is what the others are held at where one is looked at, in
    words `place`: the row of `data` nearest to the medians, or the middle of the box. `data` are rows to draw, X (n,
    d) and Y (n, p). `targets` are f's outputs, `fitted` what was fitted, which is not the same where that is C f.
    `sites` say where the data never had a value; None where the model does not know. `values` (k, p) are what f is
    where data are: targets, the predictions of rows if targets are no values of f, or 0 and 1 of classes; None if the
    model keeps no rows."""

    model: Model
    inputs: tuple[ColumnLabel, ...]
    targets: tuple[ColumnLabel, ...]
    low: FloatArray
    high: FloatArray
    known_box: bool
    varied: tuple[int, ...]
    centre: FloatArray
    place: str
    data: Observations | None
    fitted: tuple[ColumnLabel, ...]
    sites: Sites | None = None
    values: FloatArray | None = None

    @classmethod
    def of(cls, model: Model, observations: Observations | None = None) -> "Subject":
        data = mapping(model.info.get("data"))
        attributes = mapping(data.get("column_attributes"))
        inputs = _columns(data.get("inputs"), model.d, "x", attributes)
        targets = _columns(data.get("targets"), model.p, "y", attributes)
        low, high = bounds(data.get("low"), model.d), bounds(data.get("high"), model.d)
        varied, known_box = list(range(model.d)), False
        if low is not None and high is not None and np.all(low <= high):
            varied, known_box = [i for i in varied if low[i] < high[i]] or varied, True
            # Every side is longer than nothing, so that a constant column can be drawn.
            flat = high - low <= 1e-12 * np.maximum(np.abs(low), np.abs(high))
            half = np.where(flat, np.maximum(0.5 * np.abs(low), 0.5), 0.0)
            low, high = low - half, high + half
        else:
            phi, centre, scale = model.feature_map.phi, model.feature_map.center, model.feature_map.scale
            spectral = isinstance(phi, Projected) and phi.projection.linear
            rms = np.sqrt(np.mean(model.frequencies**2, axis=0)) if spectral else np.ones(model.d)
            reach = 4.0 * scale / np.where(rms > 0, rms, 1.0)
            low, high = centre - reach, centre + reach
        rows, at, place = observations, (low + high) / 2, "in the middle of their range"
        if rows is None and model.held is not None:
            rows = model.held.X, model.held.Y
        if rows is not None:
            spread = rows[0].std(axis=0)
            apart = (rows[0] - np.median(rows[0], axis=0)) / np.where(spread > 0, spread, 1.0)
            nearest = int(np.argmin((apart**2).sum(axis=1)))
            at, place = rows[0][nearest], "as in the row nearest to the medians"
            if observations is None and model.held is not None:
                place += f" (row {model.held.numbers[nearest]:,} of the data)"
        fitted = targets
        if (link := model.loss.link) and "labels" not in model.info:  # f is drawn, and not what was observed
            targets = tuple(ColumnLabel(f"{link} of {one.name}") for one in targets)
            rows = None
        if model.observe is not None and not model.views:  # targets are no values of f
            rows, fitted = observations, _columns(data.get("fitted"), len(model.observe), "target ", attributes)
        sites = None if model.held is None else model.held.sites
        values = None if rows is None else rows[1]
        if values is None and model.held is not None:
            values = model.predict(model.held.X)
        if values is None and "labels" in model.info:
            values = np.repeat([[0.0], [1.0]], model.p, axis=1)
        return cls(model, inputs, targets, low, high, known_box, tuple(varied), at, place, rows, fitted, sites, values)

    @cached_property
    def _dummies(self) -> list[range]:
        return [] if self.data is None else _dummies(self.data[0])

    def places(self, i: int, count: int) -> tuple[FloatArray, bool]:
        """So many values of input i where most data are (without any in the box); or all if few, as the second says."""
        ends = self.low[i], self.high[i]
        if self.data is not None:
            column = self.data[0][:, i]
            if len(values := np.unique(column)) <= MOST_LEVELS:
                return values, True
            middle = np.percentile(column, (1, 99))
            ends = (middle[0], middle[1]) if middle[0] < middle[1] else ends
        return np.linspace(*ends, count), False

    def along(self, i: int, values: FloatArray) -> FloatArray:
        """The centre (n, d) with input i at these values (n,); where it is one of several dummies the others follow."""
        grid = np.tile(self.centre, (len(values), 1))
        grid[:, i] = values
        for columns in self._dummies:
            others = [column for column in columns if column != i]
            if i in columns:
                grid[np.ix_(values == 1, others)] = 0.0
                grid[np.flatnonzero(grid[:, columns].sum(axis=1) == 0), others[0]] = 1.0
        return grid


def _dummies(X: FloatArray) -> list[range]:
    """Runs of columns of X (n, d) that are 0 but for a single 1 in each row: what a category is turned into."""
    binary, runs, start = np.asarray(np.isin(X, (0.0, 1.0)).all(axis=0)), list[range](), 0
    while start < X.shape[1]:
        stop, total = start, np.zeros(len(X))
        while stop < X.shape[1] and binary[stop] and not total.all() and total.max() <= 1:
            total, stop = total + X[:, stop], stop + 1
        if stop - start > 1 and np.all(total == 1):
            runs.append(range(start, stop))
        start = runs[-1].stop if runs and runs[-1].start == start else start + 1
    return runs


def mapping(value: object) -> Mapping[str, Any]:
    """`value` where it is a mapping, else an empty one: a page is written for whatever a model knows."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """`value` where it is a list or the like, else an empty one."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _columns(names: object, count: int, default: str, attributes: Mapping[str, Any]) -> tuple[ColumnLabel, ...]:
    if len(given := sequence(names)) == count:
        return tuple(read_column(str(name), mapping(attributes.get(str(name)))) for name in given)
    return tuple(ColumnLabel(f"{default}{number}") for number in range(count))


class KernelTerm(NamedTuple):
    """One term of the kernel: its share of tr k(0), its name, its formula, its scalar kernel, and papers on them."""

    share: float
    name: str
    formula: str
    scalar: str
    source: str


def kernel_title(kernel: kernels.OperatorKernel) -> str:
    if isinstance(kernel, kernels.MultiView):
        return f"The mean of {kernel.V} views"
    terms = [term for weight, term in kernel.terms() if weight > 0]
    if {type(term) for term in terms} == {kernels.CurlFree, kernels.DivergenceFree}:
        return "Helmholtz (curl-free + divergence-free)"
    return _name(terms[0]) if len({type(term) for term in terms}) == 1 else "Sum of kernels"


def kernel_terms(model: Model) -> list[KernelTerm]:
    """The terms with a positive weight, those of each view; shares add to 1."""
    places, traces, parts = [], [], list[tuple[kernels.OperatorKernel, Sequence[int], str]]()
    if isinstance(model.kernel, kernels.MultiView):
        parts += [(view.kernel, view.columns, f"View {view.name}: ") for view in model.kernel.views]
    inputs = Subject.of(model).inputs
    for kernel, columns, view in parts or [(model.kernel, range(model.d), "")]:
        scale = model.feature_map.scale[list(columns)]
        labels = [inputs[column] for column in columns]
        each = zip(kernel.terms(), kernels.input_lengthscales(kernel, scale), strict=True)
        for (weight, term), lengths in each:
            if weight > 0:
                traces.append(weight * term.trace(len(columns), model.p))
                formula, scalar = KERNELS.formula(term.config()), _scalar(term, lengths, labels)
                if np.any(scale != 1) and "lengthscale" in term.scalar.config():
                    scalar += f" ({_brief(term.scalar.config()['lengthscale'])} standard deviations)"
                if isinstance(term, kernels.Decomposable):
                    formula = "k₀ I" if _independent(term) else "k₀ A"
                if isinstance(term, kernels.CurlFree | kernels.DivergenceFree):  # of the law of its frequencies
                    scalar += f"; {frequencies.from_config(model.sampler).measure(term, len(columns))} measure"
                entries = KERNELS.get(kind_of(term.config())), SCALARS.get(kind_of(term.scalar.config()))
                sources = dict.fromkeys(entry.source for entry in entries if entry is not None and entry.source)
                places.append((view + _name(term), f"{weight:.4g} {formula}", scalar, "; ".join(sources)))
    shares = np.array(traces) / sum(traces)
    return [KernelTerm(float(share), *words) for share, words in zip(shares, places, strict=True)]


def _name(term: kernels.BaseKernel) -> str:
    if isinstance(term, kernels.CurlFree):
        return "Curl-free"
    if isinstance(term, kernels.DivergenceFree):
        return "Divergence-free"
    if not isinstance(term, kernels.Decomposable):
        return type(term).__name__
    if _independent(term):
        return "Decomposable, independent outputs"
    if (p := term.output.p) is None:
        return f"Decomposable, output {term.output.config()}"
    return f"Decomposable, output matrix of rank {len(term.output.root(p))}"


def _independent(term: kernels.Decomposable) -> bool:
    p = term.output.p
    return term.output == kernels.Identity() if p is None else np.array_equal(term.output.matrix(p), np.eye(p))


def _brief(value: object) -> str:
    if isinstance(value, list | tuple):
        more = ", …" if len(value) > MOST_LENGTHS else ""
        return ", ".join(_brief(item) for item in value[:MOST_LENGTHS]) + more
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _lengths(lengths: Mapping[int, float], columns: Sequence[ColumnLabel]) -> str:
    """Length-scales in the inputs' own units: one for all inputs where they are the same, else by the inputs' names."""

    def shown(column: ColumnLabel, length: float) -> str:
        return f"{length:.4g}{f' {column.length_unit}' if column.length_unit else ''}"

    each = [shown(column, length) for column, length in zip(columns, lengths.values(), strict=True)]
    if len(set(each)) == 1:
        return each[0]
    named = [f"{column.name} {text}" for column, text in zip(columns, each, strict=True)]
    return ", ".join(named[:MOST_LENGTHS]) + (", …" if len(named) > MOST_LENGTHS else "")


def _scalar(term: kernels.BaseKernel, lengths: Mapping[int, float] | None, columns: Sequence[ColumnLabel]) -> str:
    config = term.scalar.config()
    words = {name.replace("_", " "): _brief(value) for name, value in config.items() if name != "type"}
    if lengths is not None:
        words["lengthscale"] = _lengths(lengths, [columns[at] for at in lengths])
    if isinstance(term.scalar, kernels.Gaussian):
        return f"k₀ = {SCALARS.formula(config)}, s = {words['lengthscale']}"
    shown = ", ".join(f"{name} {text}" for name, text in words.items())
    return f"k₀ = {SCALARS.formula(config)}{f'; {shown}' if shown else ''}"


def features_text(model: Model) -> str:
    """How many features, and of what kind."""
    m, own = model.feature_map.m, not isinstance(model.feature_map.phi, Projected)
    return f"{m} features on a lattice" if _on_lattice(model) else f"{m} {'' if own else 'random '}features"


def frequencies_text(model: Model) -> str:
    if not isinstance(model.feature_map.phi, Projected):
        return f"none: {model.feature_map.phi.kind}, seed {model.seed}"
    options = {key: value for key, value in mapping(model.sampler).items() if value is not None}
    entry, name = SAMPLERS.get(kind_of(options)), str(options.pop("type", "?")).replace("_", " ")
    seed = [] if _on_lattice(model) else [f"seed {model.seed}"]
    words = ", ".join([name, *(f"{key} {value}" for key, value in options.items()), *seed])
    return f"{words} ({entry.source})" if entry is not None and entry.source else words


def _on_lattice(model: Model) -> bool:
    return bool(kind_of(model.sampler) == "lattice")


def number(value: object, unit: str = "") -> str:
    """A number as a reader wants it, a word as it is, and a word for nothing."""
    if value is None:
        return NOT_KEPT
    if isinstance(value, dict):
        return ", ".join(f"{name}: {number(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}{unit}"
    return f"{value:.4g}{unit}" if math.isfinite(value) else str(value)
