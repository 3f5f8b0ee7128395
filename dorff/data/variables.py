"""Reads variables with dimensions as columns of rows: sliced first, then decoded, then broadcast.

What formats share: a `GriddedReader` needs to know a file's variables, and how a part of one is loaded. Where chunks
have to be decoded as wholes the last ones are kept, so that rows which cross them decode none twice in a row.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from dorff.data.grids import Grid, Link, Placement, Rows, Variable, plan_rows, plan_table
from dorff.data.packing import Array, FillValues, Packing
from dorff.data.readers import ArrayInfo, ArraysReader, Numbers, reading
from dorff.data.units import TimeShift, text_attributes, time_units
from dorff.errors import InputError

Bounds = tuple[slice, ...]  # start and stop for each dimension
Places = npt.NDArray[np.int64]
KEPT_BYTES: Final = 16 * 2**20  # of a variable; more where one chunk has more
SMALL_BYTES: Final = 2**20  # a variable of so few is read once
TEXT_BYTES: Final = 64  # of a text of any length, about
MICROSECOND: Final = 1_000  # in nanoseconds; in longer units a float64 holds all times of the years 1 to 9999
MOST_EXACT: Final = 2**53  # of whole numbers, in float64
SURELY_EXACT: Final = 2.0**62  # differences up to here are those of 64 bits
STEP: Final = 65536  # neighbours along an instance dimension, or times, that are loaded together


class GriddedReader(ArraysReader):
    """A file of variables with dimensions; fill values, scale and offset are unpacked.

    `rows_plan` says what a row is, from the variables that are `asked` for. None where
    rows lie along the first axis.
    """

    def __init__(
        self, path: str, format_name: str, variables: Mapping[str, Variable], asked: Collection[str] = ()
    ) -> None:
        self.path, self.format_name, self.variables = path, format_name, variables
        self._packing = self._packings(asked)
        self._shifts: dict[str, TimeShift] = {}
        self._missing = FillValues(())  # among the stored integers of times that are shifted
        self.rows_plan = plan_rows(path, variables, asked)
        plans = dict.fromkeys(self.rows_plan.placements, self.rows_plan) if self.rows_plan is not None else {}
        self._plans = plans or {name: plan_table(variables, name) for name, v in variables.items() if v.shape}
        super().__init__(path, {name: self._info(name, plan) for name, plan in self._plans.items()})
        self.remarks = () if self.rows_plan is None else self.rows_plan.remarks
        self._links: dict[str, _Link] = {}
        with reading(path, format_name):
            for instance, link in self.rows_plan.links.items() if self.rows_plan is not None else ():
                self._links[instance] = _Counts(self, link) if link.counts else _Indices(self, link)

    def _packings(self, asked: Collection[str]) -> dict[str, Packing]:
        """How numbers are packed; InputError where that cannot be understood of one that is asked for."""
        packings = {}
        for name, variable in self.variables.items():
            if not variable.is_number:
                continue
            try:
                packings[name] = Packing.of(variable.attributes, variable.stored, f"{self.path}: variable {name!r}")
            except InputError:
                if any(column == name or column.removeprefix(name).isdecimal() for column in asked):
                    raise
                packings[name] = Packing()
        return packings

    @abstractmethod
    def load(self, name: str, bounds: Bounds) -> Array:
        """Read a part of a variable as stored; text as objects or of fixed length."""

    @property
    def grid(self) -> Grid | None:
        """The grid whose cells are the rows; None where these lie along one dimension."""
        if self.rows_plan is None or len(self.rows_plan.grid.dims) < 2:
            return None
        return self.rows_plan.grid

    def coordinates(self) -> dict[str, tuple[Numbers, dict[str, str]]]:
        """Return the numbers along the grid's dimensions, where there are any, with units and calendar."""
        found = {}
        for dim in self.grid.dims if self.grid is not None else ():
            variable = self.variables.get(dim)
            if variable is None or variable.dims != (dim,) or not variable.is_number:
                continue
            values = self._packing[dim].decode(self.load(dim, _whole(variable)))
            texts = {key: variable.text(key) for key in ("units", "calendar")}
            found[dim] = values, {key: text for key, text in texts.items() if text}
        return found

    def attributes(self, column: str) -> dict[str, str]:
        if column not in self._place:
            return {}
        name, _ = self._place[column]
        shift = self._shifts.get(name)
        shifted = {} if shift is None else {"units": shift.units}
        return text_attributes(self.variables[name].attributes) | super().attributes(column) | shifted

    def further_dimensions(self, column: str, columns: Collection[str]) -> tuple[str, ...]:
        plan = self.rows_plan
        held = {dim for other in columns for dim in self._row_dims(other)}
        if plan is None or not held:
            return ()
        return tuple(dim for dim in self._row_dims(column) if held.isdisjoint(plan.sample_chain(dim)))

    def _row_dims(self, column: str) -> tuple[str, ...]:
        """Return the dimensions that a column, or a variable, varies along; () where it is not of the rows' plan."""
        name, _ = self._place.get(column, (column, 0))
        if self.rows_plan is None or name not in self.rows_plan.placements:
            return ()
        return self.rows_plan.placements[name].dims

    def decode(self, name: str, stored: Array) -> Array:
        """Unpack stored numbers of a variable."""
        return self._packing[name].decode(stored)

    def keep_digits(self, columns: Collection[str], missing: FillValues) -> None:
        """Count from the first day those times that are integers too large for a float64.

        The origin is subtracted in integers; `attributes` have the units since that day.
        Fill values are those of the integers as they are stored.
        """
        self._missing = missing
        for column in columns:
            name = self._place.get(column, ("", 0))[0]
            if name and name not in self._shifts and (shift := self._find_shift(name)) is not None:
                self._shifts[name] = shift

    def count_times(self, shifts: Mapping[str, TimeShift]) -> None:
        self._shifts |= {self._place[column][0]: shift for column, shift in shifts.items() if column in self._place}

    @property
    def time_shifts(self) -> dict[str, TimeShift]:
        shifts = self._shifts
        if not shifts:
            return {}
        return {column: shifts[name] for column, (name, _) in self._place.items() if name in shifts}

    def _count_from_day(self, name: str, stored: Array, seen: FillValues) -> Numbers:
        """Return times (n, columns) since a variable's first day; `seen` looks at them as stored."""
        packing = self._packing[name]
        values = packing.decode(stored).astype(np.float64)
        is_whole = packing.keeps_integers(stored.dtype)
        values[seen.find_given(stored if is_whole else values)] = np.nan
        if is_whole:
            seen.check_ends(stored[~np.isnan(values)], f"{self.path}: column {name!r}")
        seen.look(values)
        count = self._shifts[name].count
        rough = values - count
        if not is_whole:
            return rough
        # Modulo 2^64, which is the difference itself unless it is as large as that.
        exact = (stored.astype(np.uint64) - np.uint64(count % 2**64)).astype(np.int64)
        return np.where(np.abs(rough) < SURELY_EXACT, exact, rough)

    def _find_shift(self, name: str) -> TimeShift | None:
        """Return what to subtract from times; None of anything else, and where a float64 holds them."""
        variable, packing = self.variables[name], self._packing.get(name)
        attributes = text_attributes(variable.attributes)
        if packing is None or not packing.keeps_integers(variable.stored) or "units" not in attributes:
            return None
        units = time_units(attributes["units"], attributes.get("calendar", ""), f"{self.path}: column {name!r}")
        if units is None or units.unit_ns > MICROSECOND:
            return None
        time = self._find_large_time(name)
        return None if time is None else units.shift_to_day(time, attributes["units"])

    def _find_large_time(self, name: str) -> int | None:
        """Return the first integer of a variable that a float64 may not hold; None where there is none."""
        variable, window = self.variables[name], Window(self, name)
        slabs = Grid(variable.dims, variable.shape).slabs(STEP) if variable.shape else [()]
        for slab in slabs:
            with reading(self.path, self.format_name):
                stored = window.cut(slab).reshape(-1)
            is_large = np.abs(self._packing[name].decode(stored).astype(np.float64)) >= MOST_EXACT
            is_large &= ~self._missing.find_given(stored)
            if is_large.any():
                return int(stored[is_large][0])
        return None

    def _info(self, name: str, plan: Rows) -> ArrayInfo:
        variable, placement = self.variables[name], plan.placements[name]
        cells = math.prod(plan.grid.shape)
        shape: tuple[int, ...] = (cells,) if placement.components is None else (cells, placement.components)
        if placement.characters:
            return ArrayInfo(shape, np.dtype(f"S{max(1, variable.shape[-1])}"))
        if self.rows_plan is None and len(variable.shape) > 2:
            shape = variable.shape  # which is refused where it is asked for
        return ArrayInfo(shape, self._packing[name].dtype(variable.stored) if variable.is_number else variable.stored)

    def stream(self, name: str, columns: Sequence[int], rows: int) -> Iterator[Numbers]:
        plan, window = self._plans[name], Window(self, name)
        placement = plan.placements[name]
        if name in self._shifts:
            seen = self._missing.another()
            for slab in plan.grid.slabs(rows):
                stored = _broadcast(self._cut(window, plan, placement, slab), plan, placement, slab)
                yield self._count_from_day(name, stored[:, columns], seen)
            column_of = {place: column for column, place in self._place.items()}
            seen.check(self.path, [column_of[name, number] for number in columns])
            return
        for slab in plan.grid.slabs(rows):
            values = self._cut(window, plan, placement, slab)
            if self.variables[name].is_number:
                values = self.decode(name, values)
            yield _broadcast(values, plan, placement, slab)[:, columns]

    def _cut(self, window: "Window", plan: Rows, placement: Placement, slab: Bounds) -> Array:
        """Read what a slab needs of a variable: an axis for each dimension, and one of columns."""
        along = dict(zip(plan.grid.dims, slab, strict=True))
        rest = _whole(window.variable)[len(placement.dims) :]
        linked = next((axis for axis, dim in enumerate(placement.dims) if dim in self._links), None)
        if linked is None:
            values = window.cut((*(along[dim] for dim in placement.dims), *rest))
        else:
            before, after = placement.dims[:linked], placement.dims[linked + 1 :]
            values = _gather(
                window.cut,
                self._instances(placement.dims[linked], along),
                before=tuple(along[dim] for dim in before),
                after=(*(along[dim] for dim in after), *rest),
            )
        if placement.characters:
            values = _joined(values)
        return values.reshape(*values.shape[: len(placement.dims)], -1)

    def _instances(self, dim: str, along: Mapping[str, slice]) -> Places:
        """Find the instance, in the dimension `dim`, of each sample of a slab."""
        link = self._links[dim]
        if (sample := link.link.sample) in along:
            return link.find(np.arange(along[sample].start, along[sample].stop))
        return link.find(self._instances(sample, along))


class Window:
    """A variable and the part of it that was read last, of whole chunks where these are not too large."""

    def __init__(self, reader: GriddedReader, name: str) -> None:
        self.variable = reader.variables[name]
        self._reader, self._name = reader, name
        self._bounds: Bounds | None = None
        self._values: Array = np.empty(0)

    def cut(self, wanted: Bounds) -> Array:
        """Return a part of the variable as stored; it is to be copied before it is changed."""
        if self._bounds is None or not _lies_within(wanted, self._bounds):
            self._bounds, self._values = None, np.empty(0)  # free it first
            bounds = self._around(wanted)
            self._values, self._bounds = self._reader.load(self._name, bounds), bounds
        pairs = zip(wanted, self._bounds, strict=True)
        return self._values[tuple(slice(one.start - b.start, one.stop - b.start) for one, b in pairs)]

    def _around(self, wanted: Bounds) -> Bounds:
        variable = self.variable
        if self._bytes(_whole(variable)) <= SMALL_BYTES:
            return _whole(variable)
        if variable.chunks is None:
            return wanted
        triples = zip(wanted, variable.chunks, variable.shape, strict=True)
        chunks = tuple(slice(p.start // c * c, min(n, -(-p.stop // c) * c)) for p, c, n in triples)
        one_chunk = self._bytes(tuple(slice(0, c) for c in variable.chunks))
        return chunks if self._bytes(chunks) <= max(KEPT_BYTES, one_chunk) else wanted

    def _bytes(self, bounds: Bounds) -> int:
        lengths: list[int] = [part.stop - part.start for part in bounds]
        return math.prod(lengths) * (self.variable.stored.itemsize or TEXT_BYTES)


class _Link(Protocol):
    link: Link

    def find(self, samples: Places) -> Places:
        """Return the instance of each sample."""
        ...


class _Counts:
    """Numbers of samples that follow each other: a contiguous ragged array (CF conventions, 9.3.3)."""

    def __init__(self, reader: GriddedReader, link: Link) -> None:
        self.link, self._reader, self._window = link, reader, Window(reader, link.variable)
        # Of each `STEP` instances the first sample, so that memory does not grow with instances.
        self._starts = [0]
        for block in range(-(-link.n_instances // STEP)):
            self._starts.append(self._starts[-1] + int(self._sizes(block).sum()))
        if self._starts[-1] != link.n_samples:
            problem = f"{link.variable} adds up to {self._starts[-1]:,}, but {link.sample} has {link.n_samples:,}"
            raise InputError(f"{reader.path}: {problem}; it cannot be told which rows belong together, mend the file.")

    def _sizes(self, block: int) -> Places:
        bounds = slice(block * STEP, min((block + 1) * STEP, self.link.n_instances))
        sizes = _whole_numbers(self._reader, self.link.variable, self._window.cut((bounds,)))
        if sizes.min(initial=0) < 0:
            problem = f"{self.link.variable}: wanted numbers of {self.link.sample}, got {sizes.min()}"
            raise InputError(f"{self._reader.path}: {problem}; mend the file.")
        return sizes

    def find(self, samples: Places) -> Places:
        instances = np.empty_like(samples)
        last = samples.max(initial=-1)
        block = int(np.searchsorted(self._starts, samples.min(initial=0), "right")) - 1
        while block + 1 < len(self._starts) and self._starts[block] <= last:
            start, stop = self._starts[block : block + 2]
            ends = start + np.cumsum(self._sizes(block))
            inside = (samples >= start) & (samples < stop)
            instances[inside] = block * STEP + np.searchsorted(ends, samples[inside], "right")
            block += 1
        return instances


class _Indices:
    """The instance of each sample: an indexed ragged array (CF conventions, 9.3.4)."""

    def __init__(self, reader: GriddedReader, link: Link) -> None:
        self.link, self._reader, self._window = link, reader, Window(reader, link.variable)

    def find(self, samples: Places) -> Places:
        stored = _gather(self._window.cut, samples)
        instances = _whole_numbers(self._reader, self.link.variable, stored)
        wrong = (instances < 0) | (instances >= self.link.n_instances)
        if wrong.any():
            place = int(np.argmax(wrong))
            problem = f"{self.link.variable}: wanted places along {self.link.instance}, 0 to"
            problem += f" {self.link.n_instances - 1}, got {instances[place]} in row {samples[place]}"
            raise InputError(f"{self._reader.path}: {problem}; mend the file.")
        return instances


def _whole_numbers(reader: GriddedReader, name: str, stored: Array) -> Places:
    values = reader.decode(name, stored)
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.trunc(values)).all()):
        raise InputError(f"{reader.path}: {name}: wanted whole numbers, got others; mend the file.")
    return values.astype(np.int64)


def _whole(variable: Variable) -> Bounds:
    return tuple(slice(0, length) for length in variable.shape)


def _lies_within(wanted: Bounds, held: Bounds) -> bool:
    return all(b.start <= one.start and one.stop <= b.stop for one, b in zip(wanted, held, strict=True))


def _gather(cut: Callable[[Bounds], Array], places: Places, *, before: Bounds = (), after: Bounds = ()) -> Array:
    """Pick elements along an axis of a variable, loading no more than `STEP` neighbours at a time."""
    steps = places // STEP
    picked, order = [], []
    for step in np.unique(steps):
        inside = np.flatnonzero(steps == step)
        low, high = int(places[inside].min()), int(places[inside].max()) + 1
        part = cut((*before, slice(low, high), *after))
        picked.append(np.take(part, places[inside] - low, axis=len(before)))
        order.append(inside)
    together = np.concatenate(picked, axis=len(before))
    return np.take(together, np.argsort(np.concatenate(order)), axis=len(before)) if len(order) > 1 else together


def _joined(characters: Array) -> Array:
    """Return single characters (..., length) as text (...)."""
    length = characters.shape[-1]
    if not length:
        return np.zeros(characters.shape[:-1], "S1")
    return np.ascontiguousarray(characters).view(f"S{length}")[..., 0]


def _broadcast(values: Array, plan: Rows, placement: Placement, slab: Bounds) -> Array:
    """Repeat values along the dimensions that a variable lacks: (rows, columns)."""
    dims = [plan.sample_dim(dim) for dim in placement.dims]
    order = sorted(range(len(dims)), key=lambda axis: plan.grid.dims.index(dims[axis]))
    lengths = [part.stop - part.start for part in slab]
    wide = [n if dim in dims else 1 for dim, n in zip(plan.grid.dims, lengths, strict=True)]
    width = values.shape[-1]
    moved = values.transpose(*order, len(dims)).reshape(*wide, width)
    return np.broadcast_to(moved, (*lengths, width)).reshape(-1, width)
