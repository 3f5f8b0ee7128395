"""Rows of variables with named dimensions: cells of a grid, observations of a ragged array.

Variables broadcast against each other by the names of their dimensions, as in xarray. `plan_rows` decides what a row is
from the variables that are asked for; nothing is read here.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dorff.data.packing import NUMBER_KINDS
from dorff.errors import InputError

CHARACTER: Final = np.dtype("S1")
# Names of counts in files that lack the attribute sample_dimension (CF conventions, 9.3.3).
COUNT_NAMES: Final = ("rowsize", "row_size")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable as stored: shape, type (`str` for text of any length), attributes.

    `dims` has "" where a dimension has no name; `chunks` is the shape of what is
    decoded at once, None where any part can be read by itself.
    """

    shape: tuple[int, ...]
    stored: np.dtype[Any]
    attributes: Mapping[str, Any]
    dims: tuple[str, ...]
    chunks: tuple[int, ...] | None = None

    @property
    def is_number(self) -> bool:
        return self.stored.kind in NUMBER_KINDS

    @property
    def is_named(self) -> bool:
        """Whether every dimension has a name; a scalar has none without one."""
        return all(self.dims)

    def text(self, key: str) -> str:
        """Return an attribute that is text; "" where there is none."""
        value = self.attributes.get(key, "")
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.item()
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class Grid:
    """The cells of a grid, a row each, in C order."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]

    def slabs(self, rows: int) -> Iterator[tuple[slice, ...]]:
        """Cut into runs of cells that follow each other, of `rows` at most."""
        axis, inner = len(self.shape) - 1, 1
        while axis and inner * self.shape[axis] <= rows:
            axis, inner = axis - 1, inner * self.shape[axis]
        step = max(1, rows // inner) if inner else 1
        rest = tuple(slice(0, n) for n in self.shape[axis + 1 :])
        for outer in np.ndindex(*self.shape[:axis]):
            for start in range(0, self.shape[axis], step):
                part = slice(start, min(start + step, self.shape[axis]))
                yield (*(slice(i, i + 1) for i in outer), part, *rest)


@dataclass(frozen=True, kw_only=True)
class Link:
    """Says which element of `instance` each element of `sample` belongs to (CF conventions, 9.3).

    `variable` holds the number of samples of each instance, in order (`counts`), or
    the instance of each sample; there are `n_instances` and `n_samples` of them.
    """

    variable: str
    instance: str
    sample: str
    counts: bool
    n_instances: int
    n_samples: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How a variable becomes columns: `dims` say where a row finds its value.

    It is one column, or `components` columns with numbers; of `characters` the last
    dimension is the length of a text.
    """

    dims: tuple[str, ...]
    components: int | None = None
    characters: bool = False


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a row of a file is: a cell of `grid`; `links` lead from its dimensions to those of instances."""

    grid: Grid
    placements: Mapping[str, Placement]
    links: Mapping[str, Link] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def sample_dim(self, dim: str) -> str:
        """Return the dimension of the grid that a dimension, of instances perhaps, is repeated along."""
        return _sample_dim(dim, self.links)

    def sample_chain(self, dim: str) -> tuple[str, ...]:
        """Return a dimension and those that it is repeated along, of instances first."""
        chain = [dim]
        while chain[-1] in self.links:
            chain.append(self.links[chain[-1]].sample)
        return tuple(chain)


def plan_table(variables: Mapping[str, Variable], name: str) -> Rows:
    """Return the rows of one variable along its first axis, whatever its dimensions are called.

    Single characters (rows, length) are text (CF conventions, 2.2).
    """
    shape = variables[name].shape
    characters = variables[name].stored == CHARACTER and len(shape) == 2
    components = None if len(shape) < 2 or characters else math.prod(shape[1:])
    placement = Placement(dims=("",), components=components, characters=characters)
    return Rows(grid=Grid(("",), shape[:1]), placements={name: placement})


def plan_rows(path: str, variables: Mapping[str, Variable], asked: Collection[str]) -> Rows | None:
    """Find what a row is, where the columns `asked` for have named dimensions.

    Rows are the cells of all dimensions of these variables, which broadcast, in the
    order of one that has all dimensions, else of another variable of the file. A
    two-dimensional variable is several columns instead where it is asked for so
    ("wind0"), or where neither another variable that is asked for nor another
    quantity of the file lies along its second dimension.

    Returns
    -------
    Rows or None
        None where rows lie along the first axis: nothing is asked for, or a
        dimension has no name.

    Raises
    ------
    InputError
        No variable of the file has all these dimensions and no others, and not all
        that are asked for are coordinates; all are scalars; a variable has a
        dimension twice.
    """
    return _Planner(path, variables, asked).plan()


class _Planner:
    def __init__(self, path: str, variables: Mapping[str, Variable], asked: Collection[str]) -> None:
        self.path, self.variables = path, variables
        self.whole = [name for name in dict.fromkeys(asked) if name in variables]
        parted = (_parted(name, variables) for name in asked if name not in variables)
        self.parted = [name for name in dict.fromkeys(parted) if name is not None]
        self.text_lengths = _text_lengths(variables)
        self.lengths = {
            dim: length
            for variable in variables.values()
            for dim, length in zip(variable.dims, variable.shape, strict=True)
        }

    def plan(self) -> Rows | None:
        asked = {name: self.variables[name] for name in (*self.whole, *self.parted)}
        if not asked or not all(variable.is_named for variable in asked.values()):
            return None

        columns = {name for name in self.whole if self._is_table(name)}
        along = {name: self._dims(name) for name in self.whole}
        along |= {name: along[name][:1] for name in columns}
        along |= {name: self._dims(name)[:1] for name in self.parted if name not in along}

        links = self._find_links({dim for dims in along.values() for dim in dims})
        mapped = {name: tuple(_sample_dim(dim, links) for dim in dims) for name, dims in along.items()}
        for name, dims in mapped.items():
            if len(set(dims)) < len(dims):
                raise InputError(f"{self.path}: {_shown({name: dims})} has a dimension twice; leave it out.")
        grid = self._grid(along, mapped)
        remarks = [remark for name in self.whole if (remark := self._remark(name, columns, grid))]
        return Rows(
            grid=grid, placements=self._placements(grid, links, columns), links=links, remarks=tuple(remarks[:1])
        )

    def _dims(self, name: str) -> tuple[str, ...]:
        """The dimensions of a variable's values: of text without its length."""
        variable = self.variables[name]
        return variable.dims[:-1] if self._is_characters(name) else variable.dims

    def _is_characters(self, name: str) -> bool:
        variable = self.variables[name]
        return variable.stored == CHARACTER and variable.dims[-1:] != () and variable.dims[-1] in self.text_lengths

    def _is_table(self, name: str) -> bool:
        """Whether a variable that is asked for is several columns."""
        dims = self._dims(name)
        if len(dims) != 2 or self._is_characters(name):
            return False
        others = (self._dims(other) for other in self.whole if other != name)
        if name in self.parted:
            return True
        return not any(dims[1] in other for other in others) and not self._witnesses(name)

    def _witnesses(self, name: str) -> list[str]:
        """Other variables of the file that show a second dimension to be more than a variable's components."""
        first, second = self._dims(name)
        found = []
        for other, variable in self.variables.items():
            dims = self._dims(other)
            coordinate = dims == (second,) and variable.is_number
            if other != name and (coordinate or {first, second} <= set(dims)):
                found.append(other)
        return found

    def _remark(self, name: str, columns: Collection[str], grid: Grid) -> str:
        """Say how to have columns where only the file shows that rows are cells."""
        dims = self._dims(name)
        if name in columns or len(dims) != 2 or len(grid.dims) != 2:
            return ""
        asked = {other: self._dims(other) for other in self.whole if other != name}
        if any(dims[1] in other and other != dims for other in asked.values()):
            return ""
        near = {other for each in self.whole for other in self.variables[each].text("coordinates").split()}
        if near & set(self.whole):  # CF conventions, 5: those of a curved grid
            return ""
        beside = [other for other in asked if asked[other] == dims] or self._witnesses(name)
        problem = f"a row is a cell of {_shown({name: dims})}, as {beside[0]} has these dimensions too"
        if self._dims(beside[0]) == dims[1:]:
            problem = f"a row is a cell of {_shown({name: dims})}, as {beside[0]} lies along {dims[1]}"
        return f"{self.path}: {problem}; name {name}0, {name}1, ... for columns"

    def _grid(self, along: Mapping[str, tuple[str, ...]], mapped: Mapping[str, tuple[str, ...]]) -> Grid:
        every = dict.fromkeys(dim for dims in mapped.values() for dim in dims)
        if not every:
            raise InputError(
                f"{self.path}: {', '.join(along)}: has no dimension, so no rows; name a variable along one."
            )
        dims = max(mapped.values(), key=len)
        if set(dims) != set(every):
            order = self._order_in_file(every)
            are_coordinates = all(own in ((), (name,)) for name, own in along.items())
            if order is None and not are_coordinates:
                problem = f"{_shown(along)}: no variable spans the dimensions {', '.join(every)}"
                raise InputError(
                    f"{self.path}: {problem}; name variables of one grid, or add one that has all these dimensions."
                )
            dims = tuple(every) if order is None else order
        return Grid(dims, tuple(self.lengths[dim] for dim in dims))

    def _order_in_file(self, dims: Collection[str]) -> tuple[str, ...] | None:
        """Return these dimensions in the order of the first variable that has them all, and no others."""
        for name in self.variables:
            own = self._dims(name)
            if len(own) == len(dims) and set(own) == set(dims):
                return own
        return None

    def _placements(self, grid: Grid, links: Mapping[str, Link], columns: Collection[str]) -> dict[str, Placement]:
        """All variables of the file that have a value in each cell."""
        placements, known = {}, {*grid.dims, *links}
        for name, variable in self.variables.items():
            dims = self._dims(name)
            as_columns = name in columns or name in self.parted or (len(dims) == 2 and dims[1] not in known)
            if as_columns and len(dims) == 2 and dims[0] in known:
                placements[name] = Placement(dims=dims[:1], components=variable.shape[1])
            elif known.issuperset(dims) and variable.is_named and len(set(dims)) == len(dims):
                placements[name] = Placement(dims=dims, characters=self._is_characters(name))
        return placements

    def _find_links(self, dims: Collection[str]) -> dict[str, Link]:
        """Find the links that lead from some of the dimensions asked for to others, by instance."""
        links: dict[str, Link] = {}
        for link in self._links(dims):
            if link.instance not in links or link.sample in dims:
                links[link.instance] = link
        needed: dict[str, Link] = {}
        for dim in dims:
            # An observation is of a profile, which is of a trajectory: all links between are needed.
            chain: list[Link] = []
            while dim in links and links[dim] not in chain:
                chain.append(links[dim])
                dim = links[dim].sample
                if dim in dims:
                    needed |= {link.instance: link for link in chain}
        for link in needed.values():
            behind = link.sample
            while behind in needed:
                behind = needed[behind].sample
                if behind == link.sample:
                    problem = f"{link.variable} says that {link.instance} is an instance of itself"
                    raise InputError(f"{self.path}: {problem}; mend the attributes of ragged arrays.")
        return needed

    def _links(self, asked_dims: Collection[str]) -> Iterator[Link]:
        for name, variable in self.variables.items():
            if len(variable.dims) != 1 or not variable.is_named or not variable.is_number:
                continue
            (dim,) = variable.dims
            instance, sample = variable.text("instance_dimension"), variable.text("sample_dimension")
            counts = not instance
            if counts and not sample and name.lower().rpartition("/")[2] in COUNT_NAMES:
                # Without the attribute: where one other dimension is asked for, it is that of the samples.
                others = [other for other in asked_dims if other != dim]
                sample = others[0] if len(others) == 1 and not self._is_spanned(dim, others[0]) else ""
            pair = (dim, sample) if counts else (instance, dim)
            if pair[0] in self.lengths and pair[1] in self.lengths and pair[0] != pair[1]:
                yield Link(
                    variable=name,
                    instance=pair[0],
                    sample=pair[1],
                    counts=counts,
                    n_instances=self.lengths[pair[0]],
                    n_samples=self.lengths[pair[1]],
                )

    def _is_spanned(self, *dims: str) -> bool:
        return any(set(dims) <= set(variable.dims) for variable in self.variables.values())


def _sample_dim(dim: str, links: Mapping[str, Link]) -> str:
    while dim in links:
        dim = links[dim].sample
    return dim


def _parted(name: str, variables: Mapping[str, Variable]) -> str | None:
    """The two-dimensional variable that a column such as "wind0" is of."""
    for other, variable in variables.items():
        number = name.removeprefix(other)
        if len(variable.shape) == 2 and name != number and number.isdecimal() and int(number) < variable.shape[1]:
            return other
    return None


def _text_lengths(variables: Mapping[str, Variable]) -> frozenset[str]:
    """The dimensions that are lengths of text: last of single characters, and of nothing else."""
    last = {variable.dims[-1] for variable in variables.values() if variable.stored == CHARACTER and variable.dims}
    for variable in variables.values():
        last -= set(variable.dims[:-1] if variable.stored == CHARACTER else variable.dims)
    return frozenset(last)


def _shown(along: Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{name} ({', '.join(dims)})" for name, dims in along.items())
