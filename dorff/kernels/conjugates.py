"""Conjugate activations: power series sum_l a_l rho^l, a_l >= 0, of sum 1, and their degrees l drawn with a_l."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any, ClassVar, Final, final

import numpy as np

from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray, IntArray, positive_number, whole
from dorff.spec.registry import Config

TABLE: Final = 4096  # degrees whose coefficients are written down
FEW_CALLS: Final = 1024  # whose degrees are drawn one by one
TOGETHER: Final = 2**22  # degrees that are drawn at a time
MOST_FACTORS: Final = 1e4  # of a feature, in the mean
MOST_DEGREE: Final = 2**40  # larger ones, one of 2 million of a step's, are drawn as this one or the next


class Conjugate(ABC):
    """f(rho) = sum_l a_l rho^l on [-1, 1], f(1) = 1: E s(x) s(z) over standard normal x, z of correlation rho, for an
    activation s with E s(x)^2 = 1 (Daniely et al. 2017, section 6). Compares and hashes by value."""

    @abstractmethod
    def __call__(self, rho: FloatArray) -> FloatArray:
        """f at rho, which may lie beyond [-1, 1] by rounding."""

    @property
    @abstractmethod
    def slope(self) -> float:
        """f'(1), the mean of the degree; infinite for a step."""

    def mean(self, most: int) -> float:
        """The mean of the degree, where degrees above `most` count as that; or more."""
        return self.slope

    @abstractmethod
    def derivatives(self, rho: FloatArray) -> tuple[FloatArray, FloatArray]:
        """f' and f'' at rho; in place of what is infinite, as at rho = 1, a large number: it comes times less than its
        reciprocal."""

    @abstractmethod
    def growth(self, rho: float) -> float:
        """f at rho of 1 or more, the mean of rho^l over degrees l; infinite where the series diverges."""

    @abstractmethod
    def sums(self, rng: np.random.Generator, calls: IntArray) -> IntArray:
        """For each of `calls` (n,) the sum of as many degrees, drawn independently: the calls that a node makes."""

    @abstractmethod
    def config(self) -> str | Config:
        """The word of JOB.yaml, or a mapping of it to its number."""


@dataclass(frozen=True)
class Exponential(Conjugate):
    """exp(rate (rho - 1)): over circles a Gaussian of chords. Degrees are Poisson."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        rate = positive_number("activation exponential", self.rate)
        if rate > MOST_FACTORS:
            raise InputError(f"activation exponential must be {MOST_FACTORS:g} at most, not {self.rate!r}")
        object.__setattr__(self, "rate", rate)

    def __call__(self, rho: FloatArray) -> FloatArray:
        return np.asarray(np.exp(self.rate * (rho - 1.0)))

    @property
    def slope(self) -> float:
        return self.rate

    def derivatives(self, rho: FloatArray) -> tuple[FloatArray, FloatArray]:
        values = self(rho)
        return self.rate * values, self.rate**2 * values

    def growth(self, rho: float) -> float:
        return math.exp(min(self.rate * (rho - 1.0), 690.0))

    def sums(self, rng: np.random.Generator, calls: IntArray) -> IntArray:
        return rng.poisson(self.rate * calls)

    def config(self) -> str | Config:
        return {"exponential": self.rate}


class Series(Conjugate):
    """Degrees by a table of coefficients; what lies beyond it, where there is anything, by `tail`."""

    radius: ClassVar[float] = 1.0  #: up to where the series converges

    @property
    @abstractmethod
    def table(self) -> FloatArray:
        """The first coefficients a_l."""

    def tail(self, rng: np.random.Generator, count: int) -> IntArray:
        """`count` degrees, given that they lie beyond the table."""
        raise AssertionError("a series without a tail")

    @final
    def growth(self, rho: float) -> float:
        if rho > self.radius:
            return math.inf
        with np.errstate(over="ignore"):
            return min(float(np.polynomial.polynomial.polyval(rho, self.table)), 1e300) if rho > 1 else 1.0

    @final
    def sums(self, rng: np.random.Generator, calls: IntArray) -> IntArray:
        totals, few = np.zeros(len(calls), dtype=np.int64), calls <= FEW_CALLS
        for start in range(0, len(calls), TOGETHER // FEW_CALLS):
            some = np.flatnonzero(few[start : start + TOGETHER // FEW_CALLS]) + start
            ends = np.cumsum(calls[some])
            degrees = np.concatenate([[0], np.cumsum(self._degrees(rng, int(ends[-1]) if len(ends) else 0))])
            totals[some] = degrees[ends] - degrees[ends - calls[some]]
        shares = np.append(self.table, max(0.0, 1.0 - float(self.table.sum())))
        for at in np.flatnonzero(~few):
            counts = rng.multinomial(calls[at], shares)
            totals[at] = counts[:-1] @ np.arange(len(self.table)) + self._beyond(rng, int(counts[-1])).sum()
        return totals

    def _degrees(self, rng: np.random.Generator, count: int) -> IntArray:
        degrees = np.searchsorted(np.cumsum(self.table), rng.random(count), side="right")
        beyond = degrees == len(self.table)
        degrees[beyond] = self._beyond(rng, int(np.count_nonzero(beyond)))
        return degrees

    def _beyond(self, rng: np.random.Generator, count: int) -> IntArray:
        if len(self.table) < TABLE:  # what lies beyond a whole series is rounding
            return np.full(count, len(self.table) - 1)
        return self.tail(rng, count)


@dataclass(frozen=True)
class PowerSeries(Series):
    """sum_l coefficients_l rho^l of a list, scaled to sum 1."""

    coefficients: tuple[float, ...]
    radius = math.inf

    def __init__(self, coefficients: Sequence[float]) -> None:
        listed = list(coefficients) if isinstance(coefficients, list | tuple | np.ndarray) else []
        fits = 1 < len(listed) < TABLE and all(isinstance(one, Real) and not isinstance(one, bool) for one in listed)
        given = np.array(listed if fits else [], dtype=np.float64)
        if not np.all(np.isfinite(given) & (given >= 0)) or not np.any(given[1:] > 0):
            wanted = f"2 to {TABLE - 1} numbers of 0 or more, not all of them 0 beyond the first"
            raise InputError(f"activation power_series must be a list of {wanted}, not {coefficients!r}")
        shares = given / given.max()  # whose sum is finite
        fits = given.max() <= 1 and abs(given.sum() - 1) <= 1e-12
        scaled = given if fits else shares / shares.sum()  # what was scaled is the same when it is read again
        object.__setattr__(self, "coefficients", tuple(scaled.tolist()))

    def __call__(self, rho: FloatArray) -> FloatArray:
        return np.asarray(np.polynomial.polynomial.polyval(rho, self.coefficients), dtype=np.float64)

    def derivatives(self, rho: FloatArray) -> tuple[FloatArray, FloatArray]:
        of = np.polynomial.polynomial
        first, second = (of.polyval(rho, of.polyder(self.coefficients, n)) for n in (1, 2))
        return np.asarray(first), np.asarray(second)

    @property
    def table(self) -> FloatArray:
        return np.array(self.coefficients)

    @property
    def slope(self) -> float:
        return float(self.table @ np.arange(len(self.coefficients)))

    def config(self) -> str | Config:
        return "identity" if self.coefficients == (0.0, 1.0) else {"power_series": list(self.coefficients)}


@cache
def _binomials() -> FloatArray:
    """C(2k, k) / 4^k for k < TABLE: the series of 1 / sqrt(1 - x)."""
    k = np.arange(1, TABLE)
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


class _Heavy(Series):
    """Coefficients that fall like l^(-power - 1): beyond the table, degrees by rejection from a law of such a tail,
    so that no part of the series is left out."""

    power: float
    first: int  #: the degree of the series' k-th term is 2 k + first

    @abstractmethod
    def falling(self, u: FloatArray) -> FloatArray:
        """The k-th coefficient times k^(power + 1), up to a factor, for u = 1 / k; to rounding from k = 2000 on."""

    @final
    def tail(self, rng: np.random.Generator, count: int) -> IntArray:
        start, kept = (TABLE - self.first + 1) // 2, [np.empty(0, dtype=np.int64)]
        most = max(self._ratio(np.array([start, 1e300])))
        while (missing := count - sum(map(len, kept))) > 0:
            with np.errstate(over="ignore", divide="ignore"):
                k = np.floor(start * rng.random(missing) ** (-1.0 / self.power))
            k = k[rng.random(missing) * most <= self._ratio(k)]
            kept.append(np.minimum(k, MOST_DEGREE // 2).astype(np.int64))
        return 2 * np.concatenate(kept) + self.first

    def _ratio(self, k: FloatArray) -> FloatArray:
        """The coefficient over what floor(start u^(-1 / power)) is k with, up to a factor; monotone in k."""
        with np.errstate(invalid="ignore"):
            law = np.where(k < 1e15, -k * np.expm1(-self.power * np.log1p(1.0 / k)), self.power)
        return np.asarray(self.falling(1 / k) / law)


def _central(u: FloatArray) -> FloatArray:
    """C(2k, k) / 4^k times sqrt(pi k), u = 1 / k, by its asymptotic series."""
    return np.asarray(1 + u * (-1 / 8 + u * (1 / 128 + u * (5 / 1024))))


@dataclass(frozen=True)
class Heaviside(_Heavy):
    """1 - arccos(rho) / pi, of sqrt(2) [x > 0]: a_0 = 1/2, a_(2k+1) = C(2k, k) / (4^k (2k + 1) pi). The mean degree is
    infinite."""

    slope = math.inf
    power, first = 0.5, 1

    def mean(self, most: int) -> float:
        degrees = np.minimum(np.arange(TABLE), most)
        return float(self.table @ degrees) + (1.0 - float(self.table.sum())) * most

    def __call__(self, rho: FloatArray) -> FloatArray:
        return np.asarray(1.0 - np.arccos(np.clip(rho, -1.0, 1.0)) / math.pi)

    def derivatives(self, rho: FloatArray) -> tuple[FloatArray, FloatArray]:
        rest = np.maximum((1.0 - rho) * (1.0 + rho), 2.0**-52)
        first = 1.0 / (math.pi * np.sqrt(rest))
        return first, rho * first / rest

    @property
    def table(self) -> FloatArray:
        return _step_table()

    def falling(self, u: FloatArray) -> FloatArray:
        return _central(u) / (2 + u)

    def config(self) -> str | Config:
        return "step"


@cache
def _step_table() -> FloatArray:
    table = np.zeros(TABLE)
    table[0] = 0.5
    table[1::2] = _binomials()[: TABLE // 2] / (math.pi * np.arange(1, TABLE, 2))
    return table


@dataclass(frozen=True)
class Relu(_Heavy):
    """(sqrt(1 - rho^2) + (pi - arccos(rho)) rho) / pi, of sqrt(2) max(x, 0) (Cho & Saul 2009): a_0 = 1 / pi, a_1 =
    1/2, a_(2k+2) = C(2k, k) / (4^k (2k + 1) (2k + 2) pi). The mean degree is 1, its variance infinite."""

    slope = 1.0
    power, first = 1.5, 2

    def __call__(self, rho: FloatArray) -> FloatArray:
        rho = np.clip(rho, -1.0, 1.0)
        return np.asarray((np.sqrt((1.0 - rho) * (1.0 + rho)) + (math.pi - np.arccos(rho)) * rho) / math.pi)

    def derivatives(self, rho: FloatArray) -> tuple[FloatArray, FloatArray]:
        return Heaviside()(rho), Heaviside().derivatives(rho)[0]

    @property
    def table(self) -> FloatArray:
        return _relu_table()

    def falling(self, u: FloatArray) -> FloatArray:
        return _central(u) / ((2 + u) * (2 + 2 * u))

    def config(self) -> str | Config:
        return "relu"


@cache
def _relu_table() -> FloatArray:
    table, k = np.zeros(TABLE), np.arange(TABLE // 2 - 1)
    table[:2] = 1 / math.pi, 0.5
    table[2::2] = _binomials()[: len(k)] / (math.pi * (2 * k + 1) * (2 * k + 2))
    return table


@dataclass(frozen=True)
class Erf(Series):
    """arcsin(2 rho / 3) / arcsin(2 / 3), of the error function (Williams 1997)."""

    radius = 1.5

    @property
    def slope(self) -> float:
        return 2 / (math.sqrt(5) * math.asin(2 / 3))

    def __call__(self, rho: FloatArray) -> FloatArray:
        return np.asarray(np.arcsin(np.clip(rho, -1.0, 1.0) * (2 / 3)) / math.asin(2 / 3))

    def derivatives(self, rho: FloatArray) -> tuple[FloatArray, FloatArray]:
        rest = 9.0 - 4.0 * rho**2
        first = 2.0 / (math.asin(2 / 3) * np.sqrt(rest))
        return first, 4.0 * rho * first / rest

    @property
    def table(self) -> FloatArray:
        odd = np.arange(1, 256, 2)  # of the others the largest is 1e-49
        table = np.zeros(256)
        table[odd] = _binomials()[: len(odd)] * (2 / 3) ** odd / (odd * math.asin(2 / 3))
        return table

    def config(self) -> str | Config:
        return "erf"


def dealt(rng: np.random.Generator, rows: IntArray, calls: IntArray, among: int) -> tuple[IntArray, IntArray, IntArray]:
    """Calls dealt out at random: row, which of those, how many; some of these may stand several times."""
    few = calls <= FEW_CALLS
    one = np.repeat(rows[few], calls[few])
    dealt = rng.multinomial(calls[~few], np.full(among, 1.0 / among))
    row, child = np.nonzero(dealt)
    return (
        np.concatenate([one, rows[~few][row]]),
        np.concatenate([rng.integers(among, size=len(one)), child]),
        np.concatenate([np.ones(len(one), dtype=np.int64), dealt[row, child]]),
    )


def _binomial(degree: int) -> list[float]:
    """The coefficients of ((1 + rho) / 2)^degree."""
    return [math.comb(degree, power) / 2**degree for power in range(degree + 1)]


ALONE: Final[dict[str, Callable[[], Conjugate]]] = {
    "relu": Relu,
    "step": Heaviside,
    "erf": Erf,
    "identity": lambda: PowerSeries((0.0, 1.0)),
    "exponential": Exponential,
}
_WITH: Final[dict[str, Callable[[Any], Conjugate]]] = {
    "exponential": Exponential,
    "polynomial": lambda degree: PowerSeries(_binomial(whole("activation polynomial", degree, 1, 64))),
    "power_series": PowerSeries,
}


def conjugate_of(value: Conjugate | str | Mapping[str, Any]) -> Conjugate:
    """The conjugate activation that `value` is, names or describes as `config` does; InputError for anything else."""
    if isinstance(value, Conjugate):
        return value
    if isinstance(value, str) and value in ALONE:
        return ALONE[value]()
    if isinstance(value, Mapping) and len(value) == 1 and (word := next(iter(value))) in _WITH:
        return _WITH[word](value[word])
    wanted = f"{', '.join(ALONE)}, {{exponential: 0.25}}, {{polynomial: 2}} or {{power_series: [0, 0.5, 0.5]}}"
    raise InputError(f"activation must be one of {wanted}, not {value!r}")
