"""What all sums over rows have in common: they say what they are of, they are written by pieces, and they add."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import Any, ClassVar, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError, PatternsError
from dorff.moments.blas import FloatArray, SingleArray

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
#: Which fold, and which targets its rows have: "" for all of them, else a 1 or a 0 for each.
Part = tuple[int, str]
UNIT: Final = 2.0**-52
#: By how much more than its average over all directions a rounding error may show along `probe`: 64 for one of chance
#: (a tail of exp(-64), Hanson & Wright 1971), and in sums of fewer columns the most there is.
SHOWN: Final = 64.0
_PROBE_SEED: Final = 6


@lru_cache(maxsize=16)
def probe(width: int) -> FloatArray:
    """A fixed direction u (width,), along which sums over rows Z are looked at, to see that no number in them was
    changed: u^T Z^T Z u is |Z u|^2, of which one side is had from the sums at a leaf's end, the other is summed beside
    them while the rows are in cache (Huang & Abraham 1984, checksums of matrices; here one number for all of a leaf).
    Of either sign, sizes from 1 to 2: equal columns do not cancel. The same for ever: checkpoints hold its sums."""
    bits = np.random.PCG64(_PROBE_SEED).random_raw(width)
    u = np.asarray(1.0 + (bits >> np.uint64(12)) * 2.0**-52, np.float64)
    u[bits & np.uint64(1) > 0] *= -1.0
    u.setflags(write=False)
    return u


class Kind(StrEnum):
    """What a pass sums, as plans and files say it: Z^T Z, the R of a QR of Z, or Z^T Z times given columns; of features
    on a lattice sums of exponentials."""

    GRAM = "gram"
    TRIANGLE = "triangle"
    PRODUCT = "product"
    TOEPLITZ = "toeplitz"


HEADER: Final = ("m", "q", "n", "observed", "unit")  # what a file says of sums beside their numbers


class Described(ABC):
    """Sums, or an accumulator of them: over rows Z (n, w) = sqrt(weight) [F | 1 | Y - y0], w = m + 1 + q columns. `n`
    counts the rows, `y0` (q,) is the constant the targets were shifted by before summing (sums of uncentred targets
    lose digits). `observed` is "" where the rows have all targets, else a 1 for each that they have and a 0 for each
    that they miss, whose columns are zero. `unit`: their rounding error over their largest singular value."""

    kind: ClassVar[str]
    m: int
    q: int
    n: int
    y0: FloatArray
    observed: str
    unit: float

    @property
    def width(self) -> int:
        return self.m + 1 + self.q

    @property
    def length(self) -> int:
        """How many numbers the pieces hold: those of an upper triangle, unless a class says otherwise."""
        return self.width * (self.width + 1) // 2

    @abstractmethod
    def pieces(self) -> Iterator[FloatArray]:
        """The numbers, in order, in contiguous pieces."""


class Sums(Described):
    """Sums over the rows of a run of the data. A class that says its `kind` is one of `kinds`, by which files tell it.
    `by_numbers`: two of them are added number by number; where not, files of them are added whole, by `absorb`."""

    by_numbers: ClassVar[bool] = True
    kinds: ClassVar[dict[str, "type[Sums]"]] = {}

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            Sums.kinds[cls.kind] = cls

    @classmethod
    @abstractmethod
    def fits(cls, width: int, length: int) -> bool:
        """Whether sums of w = `width` columns may have so many numbers."""

    @property
    def mask(self) -> BoolArray:
        """(q,): which targets the rows have."""
        return np.array([letter == "1" for letter in self.observed or "1" * self.q])

    @classmethod
    @abstractmethod
    def read(cls, header: Mapping[str, Any], y0: FloatArray, values: FloatArray) -> Self:
        """The sums whose pieces, end to end, are `values`; a file's `header` has m, q, n, observed and unit."""

    @abstractmethod
    def absorb(self, other: Self) -> Self:
        """The sum of two disjoint sets of rows, written over this one's array: no third array is in memory."""

    def __add__(self, other: Self) -> Self:
        """The sum of two disjoint sets of rows, exact but for rounding."""
        return copy.deepcopy(self).absorb(other)

    def check_same(self, other: "Sums") -> None:
        """InputError where the two are not of the same plan."""
        mine, others = ((one.kind, one.m, one.q, one.observed, one.length) for one in (self, other))
        if mine != others or not np.array_equal(self.y0, other.y0):
            raise InputError("moments of different plans cannot be added: m, q, y0 and targets must be the same")


@dataclass(frozen=True, eq=False)
class Valued(Sums):
    """Sums that are one array of numbers, `values`."""

    m: int
    q: int
    n: int
    y0: FloatArray
    values: FloatArray
    observed: str = ""
    unit: float = UNIT

    @property
    def length(self) -> int:
        return self.values.size

    def pieces(self) -> Iterator[FloatArray]:
        yield self.values.reshape(-1)

    @classmethod
    def read(cls, header: Mapping[str, Any], y0: FloatArray, values: FloatArray) -> Self:
        m, q, n, observed, unit = itemgetter(*HEADER)(header)
        return cls(m, q, n, y0, values, observed, unit)

    def absorb(self, other: Self) -> Self:
        """Commutative to the bit, where a class does not say otherwise."""
        self.check_same(other)
        np.add(self.values, other.values, out=self.values)
        return replace(self, n=self.n + other.n, unit=max(self.unit, other.unit))


@dataclass(frozen=True, eq=False)
class Solvable(Valued):
    """Sums that say what Z^T Z is: an upper triangle, `packed` column by column, (w (w + 1) / 2,)."""

    @property
    def packed(self) -> FloatArray:
        return self.values

    @property
    @abstractmethod
    def full(self) -> FloatArray:
        """Z^T Z (w, w), made anew at each call: ask once and slice."""

    @property
    @abstractmethod
    def corner(self) -> FloatArray:
        """(1 + q, 1 + q): the sums over the column of ones and the shifted targets alone."""

    @property
    def diagonal(self) -> FloatArray:
        """That of Z^T Z, (w,)."""
        return np.diag(self.full).copy()

    @property
    def largest(self) -> float:
        """A bound of the largest eigenvalue of Z^T Z over features and ones."""
        square = self.full[: self.m + 1, : self.m + 1]
        return float(np.sqrt(np.einsum("ij,ij->", square, square)))

    def operator(self) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        """The last columns of Z^T Z, those of ones and targets (w, 1 + q), and products V (w, c) -> Z^T Z V."""
        square = self.full
        return square[:, self.m :].copy(), lambda V: np.asarray(square @ V)

    @abstractmethod
    def squares(self, V: FloatArray) -> FloatArray:
        """(c,): the squared norms of Z V, V (w, c)."""

    @abstractmethod
    def columns(self, at: IntArray, factor: float | FloatArray) -> Self:
        """The sums of the features `at` (m',), each times `factor`, (m',) or one for all. Whole pairs of m' of m
        features of weight 1/sqrt(m/2) want sqrt(m/m') (DESIGN 1)."""

    @classmethod
    def fits(cls, width: int, length: int) -> bool:
        return length == width * (width + 1) // 2


class Adder(Described):
    """Adds blocks of rows Z (n, w), in the order they come. `witness` (k,) holds sums along `probe` (w,), made apart
    from the others, that tell whether those are right."""

    square: FloatArray | None = None  # (w, w), which the next accumulator may take over, where there is one

    def __init__(self, m: int, q: int, y0: FloatArray, *, observed: str = "", witnesses: int = 1) -> None:
        self.m, self.q, self.n, self.y0, self.observed, self.unit = m, q, 0, y0, observed, UNIT
        self.probe, self.witness = probe(m + 1 + q), np.zeros(witnesses)

    @abstractmethod
    def add(self, Z: FloatArray, *, along: FloatArray | None = None) -> None:
        """Add rows Z (n, w), C-contiguous; `along` (n,) is Z times `probe`, where the caller has it already."""

    @abstractmethod
    def held(self) -> Iterator[FloatArray]:
        """All its numbers, in its own memory, contiguous, the witness last: with `n` and `unit` all of its state."""

    @abstractmethod
    def compared(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(k,) each: sums along `probe` from the numbers, the same from the witness, and what rounding may change."""

    @abstractmethod
    def moments(self) -> Sums:
        """What has been added so far."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Sums below the first may be of rounding near zero alone, and sums beyond the second may overflow."""
        return 1e-290, 1e290

    def _seen(self, Z: FloatArray | SingleArray, along: FloatArray | None) -> FloatArray:
        """Z u (n,), which the first number of the witness has taken in."""
        with np.errstate(over="ignore", invalid="ignore"):  # `overflowed` tells
            v: FloatArray = np.dot(Z, self.probe) if along is None else along
            self.witness[0] += np.dot(v, v)
        return v

    def intact(self) -> bool:
        """Whether the numbers are what the witness says, up to rounding; if not, memory or processor changed one.
        True where they are too large to be compared: see `overflowed`."""
        if self._large():
            return True
        with np.errstate(all="ignore"):  # whatever is in them now
            summed, wanted, slack = self.compared()
            return bool(np.all(np.isfinite(summed) & (np.abs(summed - wanted) <= slack + self.bounds[0])))

    def overflowed(self) -> bool:
        """Whether a number of intact sums is not finite."""
        return self._large() and not all(np.isfinite(piece).all() for piece in self.pieces())

    def _large(self) -> bool:
        return not np.all(np.abs(self.witness) < self.bounds[1])


class PackedAdder(Adder):
    """An adder whose sums are the upper triangle of `square` (w, w), column-major: memory to use again, or new."""

    square: FloatArray

    def held(self) -> Iterator[FloatArray]:
        yield from packed_columns(self.square)
        yield self.witness


_Either = TypeVar("_Either", FloatArray, SingleArray)


def packed_columns(square: _Either) -> Iterator[_Either]:
    """The upper triangle, column by column."""
    for column in range(len(square)):
        yield square[: column + 1, column]


def unpack(packed: FloatArray, square: FloatArray) -> None:
    """Write packed columns into the upper triangle of `square` (w, w)."""
    for column in range(len(square)):
        square[: column + 1, column] = packed[column * (column + 1) // 2 : (column + 1) * (column + 2) // 2]


def zeroed(width: int, square: FloatArray | None) -> FloatArray:
    """`square` (w, w), its upper triangle set to zero; or a new one, column-major. New memory costs the kernel a page
    fault for every 4096 bytes."""
    if square is None:
        return np.zeros((width, width), order="F")
    for piece in packed_columns(square):
        piece[:] = 0.0
    return square


MOST_PATTERNS: Final = 8  # of targets that are there and missing; each costs moments of its own
S = TypeVar("S", bound="Sums")


def patterns_of(there: BoolArray) -> Iterator[tuple[str, BoolArray]]:
    """Of which targets (n, q) are there: each pattern, as `Sums.observed` says it, and the rows (n,) that have it."""
    for pattern in np.unique(there, axis=0):
        observed = "" if pattern.all() else "".join("1" if one else "0" for one in pattern)
        yield observed, np.all(there == pattern, axis=1)


def by_fold(parts: Mapping[Part, S]) -> list[list[S]]:
    """The sums of each fold that has rows, one for each pattern of targets; folds and patterns in order."""
    folds: dict[int, list[S]] = {}
    for (fold, _), sums in sorted(parts.items(), key=lambda item: item[0]):
        if sums.n:
            folds.setdefault(fold, []).append(sums)
    return [folds[fold] for fold in sorted(folds)]


def pooled(folds: Iterable[Sequence[S]]) -> list[S]:
    """The sums over all folds, pattern by pattern."""
    total: dict[str, S] = {}
    for sums in (sums for fold in folds for sums in fold):
        earlier = total.get(sums.observed)
        total[sums.observed] = sums if earlier is None else earlier + sums
    return [total[pattern] for pattern in sorted(total)]


def unseen(folds: Iterable[Sequence[S]]) -> list[int]:
    """The targets that no row has."""
    masks = [sums.mask for fold in folds for sums in fold]
    return [int(target) for target in np.flatnonzero(~np.any(masks, axis=0))] if masks else []


def merge_folds(left: dict[Part, S], right: dict[Part, S]) -> dict[Part, S]:
    """Sums fold by fold and pattern by pattern; overwrites `left`'s arrays, which the caller owns."""
    check_patterns(left.keys() | right.keys())
    return left | {part: left[part].absorb(sums) if part in left else sums for part, sums in right.items()}


def check_patterns(parts: Iterable[Part]) -> None:
    """PatternsError where there are more patterns of targets than `MOST_PATTERNS`."""
    if len(patterns := {observed for _, observed in parts}) > MOST_PATTERNS:
        raise PatternsError(
            "rows that miss targets have sums of their own for each pattern of what is there, at most "
            f"{MOST_PATTERNS} patterns, but there are more ({', '.join(sorted(patterns)[:3])}, ...; 1 is there, "
            "0 is missing); leave such rows out (in a job, data.nan: drop), or fit fewer targets"
        )
