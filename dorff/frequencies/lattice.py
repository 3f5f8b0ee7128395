"""Equispaced frequencies: the trapezoidal rule of a kernel's spectral density on a box (Greengard, Rachh & Barnett
2025, "Equispaced Fourier representations for efficient Gaussian process regression from a billion data points").

    k0(x - z) = int rho(omega) exp(i omega . (x - z)) d omega ~ sum_k v_k cos(h k . (x - z)),   v_k = prod(h) rho(h k)

Sums over the lattice h k, k whole numbers, are the kernel's periodic continuation, of period 2 pi / h: right on a box
of sides L where copies of the kernel a period away have died off, that is, where the period is L and a margin. What is
left out beyond |s omega| = R is a tail of the spectrum. The features do not contain the kernel, which is in psi alone.
Along an input with a period P the step is 2 pi / P: the continuation is what is wanted, and needs no margin.

Half of the lattice is kept, with twice the weight: cosines and sines of k and -k are the same."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.base import Cost, Frequencies, Law, Sampler
from dorff.frequencies.transforms import Modes
from dorff.kernels import Isotropic, Measure, MultiView, OperatorKernel, Spectral, View, scalar_from_config
from dorff.kernels.operator import VectorField
from dorff.kernels.scalar import BoolArray, FloatArray, IntArray, positive_number
from dorff.kernels.stretched import Stretched
from dorff.spec.part import Periods, Share, Tolerance, Typed
from dorff.spec.registry import Config, lazily

brentq = lazily("scipy.optimize", "brentq")

MOST_SIDES: Final = 5  # inputs that vary: with more of them the smallest lattice has more points than anybody draws
MOST_GRID: Final = 2**22  # points that sums are spread on, of a lattice that is made larger than it needs to be
LARGEST_SUMS: Final = 2**31  # of any
MOST_NODES: Final = 2**25  # of all frequencies together, along inputs that are constant
_FAR: Final = 1e9  # length-scales, that no margin is as wide as
_RADII: Final = np.exp(np.linspace(-12.0, 60.0, 2**14))  # in 1 / length-scales
_NODES: Final = np.exp(np.arange(-21.0, 12.0, 0.25))  # the same, along an input that is constant


class LatticeSpec(Typed):
    """Equispaced frequencies, for a few inputs; `error` is the largest of the kernel on the data's box, over k(x, x).
    `tolerance` is the largest error of the sums, relative to what is summed. `periods` of the inputs, in their own
    units: for each a number, such as 360 for a longitude in degrees, or null."""

    error: Share = 1e-3
    tolerance: Tolerance = 1e-12
    periods: Periods | None = None


@dataclass(frozen=True)
class Lattice(Sampler):
    """The trapezoidal rule: nothing is drawn, and there is no seed. Inputs lie in a box, beyond which f repeats itself.

    `error` bounds about the largest error of the kernel on the box, over k0(0); `n_features` is a ceiling: where it is
    too low, the frequencies of the largest |s omega| are left out. `sides` (d,) of the box in the scaled inputs' units
    are told by the data (`over`); before that nobody knows how many frequencies there will be: as many as may be.
    `tolerance` is that of sums of exponentials, the fast ones of a job: twice the digits cost twice the time.
    `constant`: a frequency of 0 for a fit without a free intercept, which else has its place. `grid` is the step and
    the extents of a lattice that is given (`on`), of which frequencies are every second point, or third ...

    Along an input that does not vary, or by next to nothing, the spectrum is integrated: features do not see it. All
    terms of a sum share one lattice, be it concatenated or not.

    `periods` of the inputs, in their own units, are numbers or None. Along an input with a period P the kernel is the
    sum of its copies, sum_n k(x - z + n P), and its side is P. k(x, x) is then more than without a period: by 0.07% for
    a Gaussian of the length-scale P / 4, by 27% for P / 2.

    `box`, the least and the largest of each input in their own units, is for estimators that see more rows later
    (`partial_fit`): without it theirs is that of the first rows. A job has `data.box`."""

    error: float = 1e-3
    tolerance: float = 1e-12
    sides: tuple[float, ...] | None = None
    constant: bool = False
    grid: tuple[tuple[float, ...], tuple[int, ...]] | None = None
    periods: Sequence[float | None] | None = None
    box: Sequence[tuple[float, float]] | None = None
    kind = "lattice"
    mixes = True
    sampled = False

    def __post_init__(self) -> None:
        for key, least, most in (("error", 0.0, 1.0), ("tolerance", 1e-13, 1e-3)):
            name = f"sampler: lattice: {key}"
            value = positive_number(name, getattr(self, key))
            if not least <= value <= most or value == 1:
                raise InputError(f"{name} must lie between {least:g} and {most:g}, such as 1e-3, not {value!r}")
        periods: Any = self.periods
        if periods is not None:
            if not isinstance(periods, list | tuple) and np.ndim(periods) != 1:
                problem = f"sampler: lattice: periods must be a number, or None, for each input, not {periods!r}"
                raise InputError(f"{problem}; write such as (360, None)")
            given = tuple(None if one is None else positive_number("sampler: lattice: periods", one) for one in periods)
            object.__setattr__(self, "periods", given)
        if self.box is not None:
            object.__setattr__(self, "box", _ends(self.box))

    def over(self, sides: FloatArray, *, constant: bool) -> "Lattice":
        return replace(self, sides=tuple(sides.tolist()), constant=constant)

    def on(self, lattice: Modes) -> "Lattice":
        """The same with frequencies of a given lattice. InputError, once they are made, where it does not serve."""
        return replace(self, grid=(tuple(lattice.step.tolist()), tuple(lattice.extents.tolist())))

    def of_view(self, view: View) -> "Lattice":
        check_periods(self.periods, max(len(self.periods or ()), 1 + max(view.columns)))
        sides = self.sides and tuple(self.sides[at] for at in view.columns)
        return replace(self, sides=sides, periods=self.periods and tuple(self.periods[at] for at in view.columns))

    def config(self) -> Config:
        periods = None if self.periods is None else list(self.periods)
        return {"type": self.kind, "error": self.error, "tolerance": self.tolerance, "periods": periods}

    def seeded(self, d: int, count: int) -> bool:
        return False

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        check_periods(self.periods, d)
        if not isinstance(law, Stretched):
            problem = f"sampler: lattice needs a kernel with a length-scale, which {type(law).__name__} has not"
            raise InputError(f"{problem}; use iid or qmc")
        if law.infinite_at_zero(d):
            problem = f"sampler: lattice: the spectrum of {law!r} is infinite at 0 in {d} dimensions"
            raise InputError(f"{problem}, as the kernel dies off too slowly; use a larger alpha, or iid or orthogonal")

    def rule(self, rng: np.random.Generator, law: Law, count: int, d: int) -> Frequencies:
        raise AssertionError("a lattice is made for all laws together")

    def _drawn(self, kernel: OperatorKernel, d: int, p: int, count: int, rng: np.random.Generator) -> Frequencies:
        modes, step = self._lattice(kernel, d, p, count)
        # psi^T psi = mu / rho with the weight 1: rho is that of a lattice of which half is there.
        log_density = np.full(modes.D, -math.log(2.0 * np.prod(step)))
        log_density[~np.any(modes.modes, axis=1)] += math.log(2.0)  # 0 is its own negative
        if len(modes.beside) > 1:
            nodes, apart = np.abs(modes.beside[:, modes.extents == 0]), np.log(_NODES[1] / _NODES[0])
            log_density = log_density[:, None] - np.sum(np.log(apart * nodes), axis=1)
        return Frequencies(modes, np.ones(modes.D), log_density=log_density)

    def cost(self, kernel: OperatorKernel, *, d: int, p: int, count: int) -> Cost:
        if isinstance(kernel, MultiView):
            return super().cost(kernel, d=d, p=p, count=count)
        self._scalars(kernel, d, p)
        D = count if self.sides is None else self.modes(kernel, d, p, count).D
        return Cost(D, 4 * D * d, 2.0 * D * d)

    def recipe(self, kernel: OperatorKernel, *, d: int, p: int, count: int) -> list[Config]:
        laws = super().recipe(kernel, d=d, p=p, count=count)
        of_all = {"sides": self.sides, "constant": self.constant}
        return [{**{key: value for key, value in law.items() if key != "terms"}, **of_all} for law in laws]

    def _scalars(self, kernel: OperatorKernel, d: int, p: int) -> tuple[tuple[Stretched, bool], ...]:
        """The scalar kernels of the terms, and whether these are of their derivatives; InputError without a rule."""
        self.check(kernel, d, p)
        laws = set[tuple[Stretched, bool]]()
        for base in (base for weight, base in kernel.terms() if weight > 0):
            if not isinstance(base.scalar, Stretched):
                problem = f"sampler: lattice needs a shift-invariant kernel, which {type(base.scalar).__name__} is not"
                raise InputError(f"{problem}; use orthogonal")
            laws.add((base.scalar, isinstance(base, VectorField)))
        return tuple(sorted(laws, key=repr))

    def modes(self, kernel: OperatorKernel, d: int, p: int, count: int) -> Modes:
        """The frequencies of a kernel, those of the smallest |s omega| first; of equal ones by k."""
        return self._lattice(kernel, d, p, count)[0]

    def _lattice(self, kernel: OperatorKernel, d: int, p: int, count: int) -> tuple[Modes, FloatArray]:
        """With the steps from one to the next along the inputs that vary."""
        if self.sides is None:
            raise InputError("sampler: lattice: the box that the inputs lie in is not known; give Lattice(sides=...)")
        return _modes_of(self._scalars(kernel, d, p), self, self.sides, count)


def _ends(box: Any) -> tuple[tuple[float, float], ...]:
    with suppress(TypeError, ValueError):
        ends = tuple((float(low), float(high)) for low, high in box)
        if ends and all(-math.inf < low <= high < math.inf for low, high in ends):
            return ends
    raise InputError(f"sampler: lattice: box: wanted (least, largest) of each input, not {box!r}; correct it")


def check_periods(periods: Sequence[float | None] | None, d: int) -> None:
    """InputError for periods of another number of inputs than d."""
    if periods is not None and len(periods) != d:
        problem = f"wanted a number or null for each of the {d} inputs, got {len(periods)}"
        raise InputError(f"sampler: lattice: periods: {problem}; correct features.sampler.periods, or Lattice's")


@lru_cache(maxsize=16)
def _modes_of(
    laws: tuple[tuple[Stretched, bool], ...], of: Lattice, sides: tuple[float, ...], count: int
) -> tuple[Modes, FloatArray]:
    d, L, serves, constant, grid = len(sides), _sides(laws, sides, of.error), True, of.constant, of.grid
    turns = np.array([one is not None for one in of.periods or sides]) & (of.periods is not None)
    L = np.where(turns, sides, L)
    if grid is not None:  # along inputs that other kernels see, where these alone would take them for constant
        serves, L = not np.any(L[np.equal(grid[1], 0)]), np.where(np.greater(grid[1], 0), sides, 0.0)
    varied = np.flatnonzero(L > 0)
    if len(varied) > MOST_SIDES or not len(varied):
        problem = f"sampler: lattice is for 1 to {MOST_SIDES} inputs that vary, here are {len(varied)}"
        raise InputError(f"{problem}; use orthogonal or qmc")
    some = max(count - constant, 1)
    rules = [(_rule(scalar, of.error, len(varied), field), 1.0 / scalar.stretch(d)[varied]) for scalar, field in laws]
    bodies = [_Body.of(rule, s, L[varied], turns[varied]) for rule, s in rules]
    finest = np.min([body.step for body in bodies], axis=0)
    if grid is None:
        given, most = _generous(bodies, finest, turns[varied], some)
    else:
        given, most = np.asarray(grid[0])[varied], np.asarray(grid[1])[varied]
    every = _every(finest, given)
    if not serves or np.any(every < 1) or np.any(_reach(bodies, given, some) > most):
        raise InputError("sampler: lattice: the kernel needs a finer or a wider lattice than the one that is given")
    step = every * given
    k = _half([body.end / step for body in bodies], [body.power for body in bodies], some)
    k = k[np.all(np.abs(k) * every <= most, axis=1)]  # of several kernels, where there are too few for all
    if constant:
        k = np.concatenate([np.zeros((1, len(varied)), np.int64), k[: count - 1]])
    if len(k) * (2.0 * len(_NODES)) ** (d - len(varied)) > MOST_NODES:
        problem = f"{d - len(varied)} inputs do not vary, and to integrate the spectrum of {len(k)} frequencies"
        remedy = "leave them out, or use orthogonal or qmc"
        raise InputError(f"sampler: lattice: {problem} along them takes too much memory; {remedy}")
    modes, steps, extents = np.zeros((len(k), d), np.int64), np.ones(d), np.zeros(d, np.int64)
    modes[:, varied], steps[varied], extents[varied] = k * every, given, most
    return Modes(steps, modes, extents, _beside(L, [scalar.stretch(d) for scalar, _ in laws])), step


def _sides(laws: Sequence[tuple[Stretched, bool]], sides: Sequence[float], error: float) -> FloatArray:
    """The sides (d,), 0 where the inputs vary by so little that no kernel changes by a tenth of its error; not all."""
    L = np.asarray(sides)
    ends = np.vstack([np.zeros(len(L)), np.diag(L)])
    moved = np.max([1.0 - scalar.gram(ends[1:], ends[:1])[:, 0] for scalar, _ in laws], axis=0)
    varied = moved > 0.1 * error
    return np.where(varied, L, 0.0) if varied.any() else L


@dataclass(frozen=True, eq=False)
class _Body:
    """Of a scalar kernel, along the inputs that vary: the largest step (v,) of a lattice that does, and the frequencies
    that it needs, of |omega / end|_power <= 1."""

    step: FloatArray
    end: FloatArray
    power: float

    @classmethod
    def of(cls, rule: "_Rule", s: FloatArray, sides: FloatArray, turns: BoolArray) -> "_Body":
        """For length-scales s (v,) and sides (v,), those which are a period where it `turns` (v,). The step may be
        large there: frequencies from R + step / 2 on weigh no more than the spectrum does beyond R."""
        step = 2.0 * np.pi / np.where(turns, sides, sides + s * rule.margin)
        return cls(step, rule.cutoff / s + np.where(turns, step / 2.0, 0.0), rule.power)

    def beyond(self, given: FloatArray, count: int) -> IntArray:
        """The first point (v,) along each input of a given lattice that its own `count` frequencies do without."""
        every = _every(self.step, given)
        k = _half([self.end / (every * given)], [self.power], count)
        return np.asarray((np.abs(k).max(axis=0) + 1) * every)


def _every(step: FloatArray, given: FloatArray) -> IntArray:
    """Of how many of a lattice's points one is taken, for so large a step."""
    return np.asarray(np.floor(step / given * (1 + 1e-9)), np.int64)


def _reach(bodies: Sequence[_Body], given: FloatArray, count: int) -> IntArray:
    """The last point (v,) that these kernels need, together and each alone: their lattice serves any of them."""
    return np.asarray(np.max([body.beyond(given, count) for body in bodies], axis=0) - 1)


def _generous(bodies: Sequence[_Body], finest: FloatArray, turns: BoolArray, count: int) -> tuple[FloatArray, IntArray]:
    """The step and the extents of a lattice that is finer, but along a period, and wider than these kernels need: as
    long as its sums are few, so that they serve kernels with other length-scales, too."""
    for finer, wider in ((4, 2), (2, 2), (2, 1)):
        step = np.where(turns, finest, finest / finer)
        extents = wider * np.max([body.beyond(step, count) for body in bodies], axis=0)
        if np.prod(2.0 * (4.0 * extents + 1.0)) <= MOST_GRID:
            return step, extents
    extents = _reach(bodies, finest, count)
    if np.prod(4.0 * extents + 1.0) > LARGEST_SUMS:
        problem = f"which would have {np.prod(4.0 * extents + 1.0):.1g} points; fit them in jobs of their own"
        raise InputError(f"sampler: lattice: the kernels' length-scales lie too far apart for one lattice, {problem}")
    return finest, extents


def _beside(sides: FloatArray, stretches: Sequence[FloatArray]) -> FloatArray:
    """Frequencies (n, d) along constant inputs: equispaced in their logarithm, of either sign; zeros without any."""
    nodes = np.zeros((1, len(sides)))
    for axis in np.flatnonzero(sides == 0):
        at = np.concatenate([-_NODES, _NODES]) * np.mean([stretch[axis] for stretch in stretches])
        nodes = np.repeat(nodes, len(at), axis=0)
        nodes[:, axis] = np.tile(at, len(nodes) // len(at))
    return nodes


def _half(ends: Sequence[FloatArray], powers: Sequence[float], count: int) -> IntArray:
    """Whole k (D, d), one of each pair k and -k and no zero, that are within one of the bodies |k / end|_power <= 1;
    the first `count` of them, by the least of these norms, but one at least."""
    most, d = np.max(ends, axis=0), len(ends[0])
    for _ in range(64):  # no more of the lattice is made than about what is asked for
        if np.prod(2.0 * np.floor(most) + 1.0) <= 16.0 * count * 2.0**d + 64.0:
            break
        most = most * 0.8
    axes = [np.arange(-max(math.floor(end), 1), max(math.floor(end), 1) + 1) for end in most]
    k = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, d)
    k = k[len(k) // 2 + 1 :]  # in this order the first that is not zero is positive behind the middle
    far = np.min([np.linalg.norm(k / end, ord=power, axis=1) for end, power in zip(ends, powers, strict=True)], axis=0)
    order = np.argsort(far, kind="stable")
    return k[order[: min(count, max(1, int(np.count_nonzero(far <= 1.0))))]]


@dataclass(frozen=True)
class _Rule:
    """In a kernel's length-scales: a margin beside the box, a cut-off of |s omega|, whose norm is of this power."""

    margin: float
    cutoff: float
    power: float


@lru_cache(maxsize=256)
def _rule(scalar: Stretched, error: float, d: int, field: bool) -> _Rule:
    """For an error of the kernel over k(0): half of it of copies a period away, 1 / d of that along each axis, and half
    of it of the spectrum's tail. Derivatives of the kernel (`field`) weigh the first by 1 + r^2, the latter by
    |omega|^2. A kernel that is a product over the inputs has the cut-off of each."""
    unit = scalar_from_config({**scalar.config(), "lengthscale": 1.0})
    assert isinstance(unit, Stretched)

    def left(r: float) -> float:
        return float(unit.gram(np.array([[r]]), np.zeros((1, 1)))[0, 0]) * (1.0 + field * r * r) - error / (2 * d)

    far = 2.0
    while left(far) > 0:
        far *= 2.0
        if far > _FAR:
            problem = f"sampler: lattice: derivatives of {scalar!r} die off too slowly"
            raise InputError(f"{problem}; use another kernel, or iid or qmc")
    margin = float(brentq(left, 0.0, far))
    if isinstance(scalar, Isotropic):
        return _Rule(margin, _cutoff(unit, d, error / 2, field), 2.0)
    return _Rule(margin, _cutoff(unit, 1, error / (2 * d), field), np.inf)


def _cutoff(unit: Stretched, d: int, share: float, field: bool) -> float:
    """The radius R that so large a share of the spectrum lies beyond, for a length-scale of 1."""
    at = np.zeros((len(_RADII), d))
    at[:, 0] = _RADII
    log_mass = unit.log_density(at, Measure.UNBOUNDED) + (d + 2 * field) * np.log(_RADII)
    mass = np.exp(log_mass - log_mass.max())
    beyond = np.cumsum(mass[::-1]) / mass.sum()
    some = beyond > 0
    return float(np.exp(np.interp(math.log(share), np.log(beyond[some]), np.log(_RADII[::-1][some]))))
