"""Which frequencies of a lattice a kernel needs for an error: how far apart, and how far out.

Half of the error is for copies of the kernel that the lattice adds (`aliasing`), which are summed; the rest is for the
part of the spectrum that is left out. That is cut off where the density is the same all around: of all sets of
frequencies of the same weight such a body has the fewest (a ball for isotropic kernels, |omega|_1 <= R for a Cauchy
kernel, a hyperbolic cross for a Laplacian kernel).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.aliasing import Aliases, LatticeBox, aliases, relative_size, unit_kernel
from dorff.kernels import Isotropic, Measure
from dorff.kernels.scalar import BoolArray, FloatArray, IntArray
from dorff.kernels.stretched import Stretched
from dorff.spec.registry import lazily

brentq = lazily("scipy.optimize", "brentq")

FARTHEST_MARGIN: Final = 1e9  # length-scales, that no margin is as wide as
LEAST_MARGIN: Final = 1.0  # of kernels that decay slowly, whose copies may add hardly more than a constant
COPIES_SHARE: Final = 0.5  # of the error, for copies of such kernels: takes about the fewest features
PRODUCT_COPIES_SHARE: Final = 0.7  # the same for such products, whose copies along an axis decay the slowest
MOST_COPIES_SHARE: Final = 0.6  # the same for kernels that decay fast
LEAST_TAIL_SHARE: Final = 0.1  # of the error, for the part of the spectrum that is left out
FARTHEST_LEVEL: Final = 16.0  # at which a spectrum is cut off, in cut-offs of the integral
LEAST_KEPT: Final = 2.0**-20  # of the weight of the frequency 0
_RADII: Final = np.exp(np.linspace(-12.0, 60.0, 2**14))  # in 1 / length-scales


class ConstantSink(Enum):
    """What takes the constant that copies of a kernel add to it."""

    INTERCEPT = "a free intercept"
    FREQUENCY_ZERO = "the weight of the frequency 0, which is lowered"
    NOTHING = "nothing"


def constant_sinks(fields: Sequence[bool], *, free_intercept: bool, all_vary: bool) -> list[ConstantSink]:
    """Return what takes the constant of each kernel that shares a lattice.

    Parameters
    ----------
    fields : sequence of bool
        For each kernel whether it is of second derivatives.
    free_intercept : bool
        Whether the fit has an intercept, which takes all constants.
    all_vary : bool
        Whether no input is constant.
    """
    if free_intercept:
        return [ConstantSink.INTERCEPT] * len(fields)
    # The frequency 0 has one weight. Where an input is constant it is shared with the fields.
    has_own_zero = fields.count(False) == 1 and (all_vary or len(fields) == 1)
    return [ConstantSink.FREQUENCY_ZERO if has_own_zero and not field else ConstantSink.NOTHING for field in fields]


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """The frequencies of a lattice that a kernel needs; of v inputs that vary.

    Parameters
    ----------
    scalar : Stretched
        k0, with its length-scales.
    field : bool
        Whether the kernel is of second derivatives of k0.
    error : float
        Largest error of the kernel, over its size at lag 0.
    sides, wanted : arrays of shape (d,)
        As those of `LatticeBox`.
    sink : ConstantSink
        What takes the constant of the copies.
    unseen : float
        A part of the error that is made already, by inputs that vary by too little to have frequencies.
    """

    scalar: Stretched
    field: bool
    error: float
    sides: FloatArray
    wanted: BoolArray
    sink: ConstantSink
    unseen: float = 0.0

    @cached_property
    def unit(self) -> Stretched:
        """The kernel with a length-scale of 1."""
        return unit_kernel(self.scalar)

    @cached_property
    def varied(self) -> IntArray:
        """The inputs (v,) that vary."""
        return np.flatnonzero(self.sides > 0)

    @cached_property
    def lengthscale(self) -> FloatArray:
        """The length-scales (v,) along these."""
        return np.asarray(1.0 / self.scalar.stretch(len(self.sides))[self.varied])

    @cached_property
    def cutoff(self) -> float:
        """The radius R, in 1 / length-scales, beyond which the spectrum weighs half of the error.

        Of a product kernel it is that along one input, and `level_on` goes further.
        """
        dimensions = len(self.varied) if isinstance(self.scalar, Isotropic) else 1
        return cutoff_radius(self.unit, dimensions, self.error / 2, field=self.field)

    @cached_property
    def step(self) -> FloatArray:
        """The largest steps (v,) that keep copies far enough apart."""
        margin = 0.0 if self.wanted[self.varied].all() else self._margin()
        return self._step_for(margin)

    @cached_property
    def end(self) -> FloatArray:
        """The largest frequency (v,) along each axis.

        Along a period the step may be large: frequencies from R + step / 2 on weigh no more than the spectrum beyond R.
        """
        extra = np.where(self.wanted[self.varied], self.step / 2.0, 0.0)
        return np.asarray(self.cutoff / self.lengthscale + extra)

    def levels(self, omega: FloatArray) -> FloatArray:
        """Return how far out frequencies omega (n, v) are: 1 where the spectrum is cut off."""
        return self.levels_of_ratios(omega / self.end)

    def levels_of_ratios(self, ratios: FloatArray) -> FloatArray:
        """Return the same for frequencies (n, v) over `end`."""
        if isinstance(self.scalar, Isotropic):
            return np.asarray(np.linalg.norm(ratios, axis=1))
        return self.unit.density_radius(ratios * self.cutoff) / self.cutoff

    def aliases_on(self, step: FloatArray) -> Aliases:
        """Return what a lattice of these steps (v,) adds to the kernel."""
        sides, wanted = tuple(self.sides.tolist()), tuple((self.wanted & (self.sides > 0)).tolist())
        return _cached_aliases(self.scalar, self.field, sides, wanted, tuple(step.tolist()))

    def copies_error(self, step: FloatArray) -> float:
        """Return the error, over k(0), that copies make on a lattice of these steps (v,)."""
        added = self.aliases_on(step)
        return added.largest(self._constant_taken(added))

    def zero_kept(self, step: FloatArray) -> float:
        """Return the share of its weight that the frequency 0 keeps."""
        added = self.aliases_on(step)
        return float(1.0 - self._constant_taken(added)[0] / added.constant[0])

    def level_on(self, step: FloatArray, count: int) -> float:
        """Return at which level to cut off the spectrum on a lattice of these steps (v,).

        That is 1, or more where the sum over the lattice, unlike the integral, leaves too much there. With fewer
        than so many frequencies; else the level does not matter.
        """
        made = self.copies_error(step) + self.unseen
        allowed = max(self.error - made, LEAST_TAIL_SHARE * self.error)
        level = 1.0
        while level < FARTHEST_LEVEL:
            k = half_lattice([CutBody(self, step, level)], count)
            if len(k) >= count:
                return level
            left_out = _LeftOut(self, step, k)
            if left_out.share(len(k)) <= allowed:
                return 1.0 if level == 1.0 else self._first_level(k * step, left_out, allowed)
            level *= 1.1
        return level

    def beyond(self, given: FloatArray, count: int) -> IntArray:
        """Return the first point (v,) along each input of a given lattice that its own frequencies do without."""
        every = points_per_step(self.step, given)
        step = every * given
        k = half_lattice([CutBody(self, step, self.level_on(step, count))], count)
        return np.asarray((np.abs(k).max(axis=0) + 1) * every)

    def _first_level(self, omega: FloatArray, left_out: "_LeftOut", allowed: float) -> float:
        """Return the least level whose frequencies leave out no more than is allowed."""
        levels = self.levels(omega)
        is_last_of_shell = np.append(np.diff(levels) > 1e-9 * levels[-1], True)
        sizes = np.flatnonzero(is_last_of_shell) + 1
        first = bisect_left(sizes, True, key=lambda size: left_out.share(int(size)) <= allowed)
        return max(1.0, float(levels[sizes[first] - 1]) * (1.0 + 1e-9))

    def _constant_taken(self, added: Aliases) -> FloatArray:
        """Return the constants (entries,) that are taken out of the copies."""
        if self.sink is ConstantSink.INTERCEPT:
            return added.centre()
        if self.sink is ConstantSink.FREQUENCY_ZERO:
            return np.clip(added.centre(), 0.0, (1.0 - LEAST_KEPT) * added.constant)
        return np.zeros(len(added.constant))

    def _step_for(self, margin: float) -> FloatArray:
        sides = self.sides[self.varied]
        periods = np.where(self.wanted[self.varied], sides, sides + self.lengthscale * margin)
        return np.asarray(2.0 * np.pi / periods)

    def _margin(self) -> float:
        """Return how much longer than the sides periods are, in length-scales."""
        if self.scalar.heavy_tailed and not (self.field and not isinstance(self.scalar, Isotropic)):
            return self._margin_of_sums()
        margin = _margin_of_nearest(self.unit, self.error, len(self.varied), self.field)
        while self.copies_error(self._step_for(margin)) > MOST_COPIES_SHARE * self.error:
            margin = 1.1 * margin + 0.1
        return margin

    def _margin_of_sums(self) -> float:
        """Return the least margin for which the sum of all copies is small enough."""
        share = COPIES_SHARE if isinstance(self.scalar, Isotropic) else PRODUCT_COPIES_SHARE
        high, low = LEAST_MARGIN, 0.0
        while self.copies_error(self._step_for(high)) > share * self.error:
            high, low = 2.0 * high, high
            if high > FARTHEST_MARGIN:
                raise InputError(
                    f"sampler: lattice: {self.scalar!r} dies off too slowly; use another kernel, or iid or qmc"
                )
        while low > 0.0 and high / low > 1.005:
            middle = math.sqrt(low * high)
            if self.copies_error(self._step_for(middle)) > share * self.error:
                low = middle
            else:
                high = middle
        return high


class CutBody(NamedTuple):
    """A body on a lattice of steps (v,), cut off at a level."""

    body: Body
    step: FloatArray
    level: float

    @property
    def ends(self) -> FloatArray:
        """The largest k (v,), as real numbers."""
        return np.asarray(self.level * self.body.end / self.step)

    def levels(self, k: FloatArray | IntArray) -> FloatArray:
        """Return how far out points k (n, v) are: 1 at the surface."""
        ratios = k / (self.body.end / self.step)
        return self.body.levels_of_ratios(ratios) / self.level

    def points(self, level: float) -> IntArray:
        """Return points k (n, v) of both signs, among them all within a level of this body."""
        ends = np.floor(level * self.ends).astype(np.int64)
        if isinstance(self.body.scalar, Isotropic):
            axes = [np.arange(-end, end + 1) for end in ends]
            return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(ends))
        # Axis by axis: a cross is a small part of the box around it.
        k = np.zeros((1, len(ends)), dtype=np.int64)
        for axis, end in enumerate(ends):
            reach = self._reach_along(k, axis, int(end), level)
            counts = 2 * reach + 1
            firsts = np.repeat(np.cumsum(counts) - counts + reach, counts)
            k = np.repeat(k, counts, axis=0)
            k[:, axis] = np.arange(len(k)) - firsts
        return k

    def _reach_along(self, k: IntArray, axis: int, end: int, level: float) -> IntArray:
        """Return the largest value (n,) of a coordinate with which points k (n, v) are within the level."""
        low, high = np.zeros(len(k), dtype=np.int64), np.full(len(k), end + 1, dtype=np.int64)
        moved = k.copy()
        while np.any(high - low > 1):
            middle = (low + high) // 2
            moved[:, axis] = middle
            inside = self.levels(moved) <= level
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        return low


def half_lattice(bodies: Sequence[CutBody], count: int) -> IntArray:
    """Return whole k (D, v), one of each pair k and -k and no zero, that are within one of the bodies.

    They are in the order of how far out they are, of equal ones by k; at most the first `count`, at least one.
    """
    if all(isinstance(cut.body.scalar, Isotropic) for cut in bodies):
        k = _points_of_balls(bodies, count)
    else:
        k = _points_of_crosses(bodies, count)
    levels = np.min([cut.levels(k) for cut in bodies], axis=0)
    order = np.argsort(levels, kind="stable")
    return k[order[: min(count, max(1, int(np.count_nonzero(levels <= 1.0))))]]


def _points_of_balls(bodies: Sequence[CutBody], count: int) -> IntArray:
    """Return points (n, v) in the order of k, among them the first `count`; no more than about what is asked for."""
    most = np.max([cut.ends for cut in bodies], axis=0)
    d = len(most)
    for _ in range(64):
        if np.prod(2.0 * np.floor(most) + 1.0) <= 16.0 * count * 2.0**d + 64.0:
            break
        most = most * 0.8
    axes = [np.arange(-max(math.floor(end), 1), max(math.floor(end), 1) + 1) for end in most]
    k = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, d)
    return np.asarray(k[len(k) // 2 + 1 :])  # in this order the first that is not zero is positive behind the middle


def _points_of_crosses(bodies: Sequence[CutBody], count: int) -> IntArray:
    """As `_points_of_balls`, of ever larger parts of the bodies."""
    d = len(bodies[0].step)
    level = min(1.0, 1.0 / max(float(cut.ends.max()) for cut in bodies))
    while True:
        k = np.unique(np.concatenate([np.eye(d, dtype=np.int64), *(cut.points(level) for cut in bodies)]), axis=0)
        first = k[np.arange(len(k)), np.argmax(k != 0, axis=1)]
        k = np.asarray(k[first > 0], dtype=np.int64)
        inside = np.min([cut.levels(k) for cut in bodies], axis=0) <= level
        if level >= 1.0 or np.count_nonzero(inside) >= count:
            return k
        level = min(1.25 * level, 1.0)


def points_per_step(step: FloatArray, given: FloatArray) -> IntArray:
    """Return of how many of a lattice's points one is taken, for so large a step."""
    return np.asarray(np.floor(step / given * (1 + 1e-9)), np.int64)


class _LeftOut:
    """The weight, over k(0), that the first n of some frequencies leave out."""

    def __init__(self, body: Body, step: FloatArray, k: IntArray) -> None:
        added = body.aliases_on(step)
        d, varied, omega = len(body.sides), body.varied, k * step
        log_density = body.unit.log_density(omega * body.lengthscale, Measure.UNBOUNDED)
        weights = 2.0 * np.exp(log_density + np.sum(np.log(step * body.lengthscale)))
        self._at_zero = added.at_zero
        total = added.at_zero + added.added_at_zero
        if not body.field:
            each = weights[:, None]
        else:
            each = np.zeros((len(k), len(total)))
            diagonal = np.flatnonzero(np.equal(*np.triu_indices(d)))
            each[:, diagonal[varied]] = weights[:, None] * omega**2
            # Along constant inputs the spectrum is integrated, and between two inputs the body is symmetric.
            total = np.where(np.isin(np.arange(len(total)), diagonal[varied]), total, 0.0)
        self._rest = total - np.concatenate([np.zeros((1, len(total))), np.cumsum(each, axis=0)])

    def share(self, number: int) -> float:
        """Return what is left out by the first `number` frequencies and their negatives."""
        rest = self._rest[number]
        return relative_size(np.abs(rest), rest[:, None], self._at_zero)


@lru_cache(maxsize=256)
def _cached_aliases(
    scalar: Stretched, field: bool, sides: tuple[float, ...], wanted: tuple[bool, ...], step: tuple[float, ...]
) -> Aliases:
    box = LatticeBox(sides=np.array(sides), periods=np.full(len(sides), np.inf), wanted=np.array(wanted))
    box.periods[box.sides > 0] = 2.0 * np.pi / np.array(step)
    return aliases(scalar, box, derivatives=field)


@lru_cache(maxsize=256)
def _margin_of_nearest(unit: Stretched, error: float, dimensions: int, field: bool) -> float:
    """Return the margin at which the nearest copies, one along each axis, come to half of the error.

    Derivatives of the kernel weigh them by 1 + r^2.
    """

    def excess(r: float) -> float:
        value = float(unit.gram(np.array([[r]]), np.zeros((1, 1)))[0, 0])
        return value * (1.0 + field * r * r) - error / (2 * dimensions)

    far = 2.0
    while excess(far) > 0:
        far *= 2.0
        if far > FARTHEST_MARGIN:
            problem = f"sampler: lattice: derivatives of {unit!r} die off too slowly"
            raise InputError(f"{problem}; use another kernel, or iid or qmc")
    return float(brentq(excess, 0.0, far))


@lru_cache(maxsize=256)
def cutoff_radius(unit: Stretched, dimensions: int, share: float, *, field: bool) -> float:
    """Return the radius R beyond which lies a share of the spectrum of an isotropic kernel.

    Parameters
    ----------
    unit : Stretched
        The kernel with a length-scale of 1.
    dimensions : int
        The number of inputs.
    share : float
        Of the spectrum.
    field : bool
        Whether the spectrum is weighed by |omega|^2, as that of second derivatives is.
    """
    at = np.zeros((len(_RADII), dimensions))
    at[:, 0] = _RADII
    log_mass = unit.log_density(at, Measure.UNBOUNDED) + (dimensions + 2 * field) * np.log(_RADII)
    mass = np.exp(log_mass - log_mass.max())
    beyond = np.cumsum(mass[::-1]) / mass.sum()
    some = beyond > 0
    return float(np.exp(np.interp(math.log(share), np.log(beyond[some]), np.log(_RADII[::-1][some]))))
