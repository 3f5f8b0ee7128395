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
from typing import Any, Final, NamedTuple

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.aliasing import LatticeBox
from dorff.frequencies.base import Cost, Frequencies, Law, Sampler
from dorff.frequencies.bodies import Body, ConstantSink, CutBody, constant_sinks, half_lattice, points_per_step
from dorff.frequencies.transforms import Modes
from dorff.kernels import CurlFree, DivergenceFree, Measure, MultiView, OperatorKernel, Spectral, View
from dorff.kernels.operator import VectorField
from dorff.kernels.scalar import BoolArray, FloatArray, IntArray, positive_number
from dorff.kernels.stretched import Stretched
from dorff.spec.part import Periods, Share, Tolerance, Typed
from dorff.spec.registry import Config

MOST_SIDES: Final = 5  # inputs that vary: with more of them the smallest lattice has more points than anybody draws
MOST_GRID: Final = 2**22  # points that sums are spread on, of a lattice that is made larger than it needs to be
LARGEST_SUMS: Final = 2**31  # of any
MOST_NODES: Final = 2**25  # of all frequencies together, along inputs that are constant
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
        modes, step, zero_kept = self._lattice(kernel, d, p, count)
        # psi^T psi = mu / rho with the weight 1: rho is that of a lattice of which half is there.
        log_density = np.full(modes.D, -math.log(2.0 * np.prod(step)))
        # 0 is its own negative; of its weight a share is kept where the constant of the copies is taken out.
        log_density[~np.any(modes.modes, axis=1)] += math.log(2.0 / zero_kept)
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
        return self._lattice(kernel, d, p, count).modes

    def box_of(self, kernel: OperatorKernel, d: int, p: int, count: int) -> LatticeBox:
        """Return the box of the inputs, and the periods with which a kernel's frequencies continue it."""
        modes, step, _ = self._lattice(kernel, d, p, count)
        varied, periods = modes.extents > 0, np.full(d, np.inf)
        periods[varied] = 2.0 * np.pi / step
        sides = np.where(varied, self.sides, 0.0)  # type: ignore[arg-type]  # that are known
        return LatticeBox(sides=sides, periods=periods, wanted=varied & self.has_period(d))

    def has_period(self, d: int) -> BoolArray:
        """Return which of d inputs have a period of their own (d,)."""
        return np.array([period is not None for period in self.periods or (None,) * d])

    def _lattice(self, kernel: OperatorKernel, d: int, p: int, count: int) -> "_Points":
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


class _Points(NamedTuple):
    """Frequencies of a lattice, the steps (v,) from one to the next along the inputs that vary, and the share of its
    weight that the frequency 0 keeps."""

    modes: Modes
    step: FloatArray
    zero_kept: float


def _changes(scalar: Stretched, sides: FloatArray, *, field: bool) -> FloatArray:
    """Return by how much a kernel changes along each side of a box (d,), over its value at lag 0.

    `field`: the curl-free and the divergence-free kernel of its derivatives, whichever changes more.
    """
    lags, origin = np.diag(sides), np.zeros((1, len(sides)))
    if not field:
        return np.asarray(1.0 - scalar.gram(lags, origin)[:, 0])

    changes = []
    for kind in (CurlFree, DivergenceFree)[: len(sides)]:  # no divergence-free field has a single input
        kernel = kind(scalar)
        at_zero = kernel.gram(origin, origin)[0, 0]
        differences = np.abs(kernel.gram(lags, origin)[:, 0] - at_zero)
        changes.append(differences.max(axis=(1, 2)) / np.abs(at_zero).max())
    return np.asarray(np.max(changes, axis=0))


@lru_cache(maxsize=16)
def _modes_of(laws: tuple[tuple[Stretched, bool], ...], of: Lattice, sides: tuple[float, ...], count: int) -> _Points:
    d, L, serves, constant, grid = len(sides), _sides(laws, sides, of.error), True, of.constant, of.grid
    turns = of.has_period(d)
    L = np.where(turns, sides, L)
    if grid is not None:  # along inputs that other kernels see, where these alone would take them for constant
        serves, L = not np.any(L[np.equal(grid[1], 0)]), np.where(np.greater(grid[1], 0), sides, 0.0)
    varied = np.flatnonzero(L > 0)
    if len(varied) > MOST_SIDES or not len(varied):
        problem = f"sampler: lattice is for 1 to {MOST_SIDES} inputs that vary, here are {len(varied)}"
        raise InputError(f"{problem}; use orthogonal or qmc")
    some = max(count - constant, 1)
    sinks = constant_sinks([field for _, field in laws], free_intercept=not constant, all_vary=len(varied) == d)
    bodies = [
        Body(
            scalar=scalar,
            field=field,
            error=of.error,
            sides=L,
            wanted=turns,
            sink=sink,
            unseen=float(_changes(scalar, np.where(L > 0, 0.0, sides), field=field).sum()),
        )
        for (scalar, field), sink in zip(laws, sinks, strict=True)
    ]
    finest = np.min([body.step for body in bodies], axis=0)
    if grid is None:
        given, most = _generous(bodies, finest, turns[varied], some)
    else:
        given, most = np.asarray(grid[0])[varied], np.asarray(grid[1])[varied]
    every = points_per_step(finest, given)
    if not serves or np.any(every < 1) or np.any(_reach(bodies, given, some) > most):
        raise InputError("sampler: lattice: the kernel needs a finer or a wider lattice than the one that is given")
    step = every * given
    k = half_lattice([CutBody(body, step, body.level_on(step, some)) for body in bodies], some)
    k = k[np.all(np.abs(k) * every <= most, axis=1)]  # of several kernels, where there are too few for all
    if constant:
        k = np.concatenate([np.zeros((1, len(varied)), np.int64), k[: count - 1]])
    if len(k) * (2.0 * len(_NODES)) ** (d - len(varied)) > MOST_NODES:
        problem = f"{d - len(varied)} inputs do not vary, and to integrate the spectrum of {len(k)} frequencies"
        remedy = "leave them out, or use orthogonal or qmc"
        raise InputError(f"sampler: lattice: {problem} along them takes too much memory; {remedy}")
    modes, steps, extents = np.zeros((len(k), d), np.int64), np.ones(d), np.zeros(d, np.int64)
    modes[:, varied], steps[varied], extents[varied] = k * every, given, most
    made = Modes(steps, modes, extents, _beside(L, [scalar.stretch(d) for scalar, _ in laws]))
    zero_kept = [body.zero_kept(step) for body in bodies if body.sink is ConstantSink.FREQUENCY_ZERO]
    return _Points(made, step, zero_kept[0] if zero_kept else 1.0)


def _sides(laws: Sequence[tuple[Stretched, bool]], sides: Sequence[float], error: float) -> FloatArray:
    """The sides (d,), 0 where the inputs vary by so little that no kernel changes by a tenth of its error; not all."""
    L = np.asarray(sides)
    moved = np.max([_changes(scalar, L, field=field) for scalar, field in laws], axis=0)
    varied = moved > 0.1 * error
    return np.where(varied, L, 0.0) if varied.any() else L


def _reach(bodies: Sequence[Body], given: FloatArray, count: int) -> IntArray:
    """The last point (v,) that these kernels need, together and each alone: their lattice serves any of them."""
    return np.asarray(np.max([body.beyond(given, count) for body in bodies], axis=0) - 1)


def _generous(bodies: Sequence[Body], finest: FloatArray, turns: BoolArray, count: int) -> tuple[FloatArray, IntArray]:
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
