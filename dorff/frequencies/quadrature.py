"""Spherical-radial quadrature rules of degree (1,1), (1,3) and (3,3)."""

import math
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.base import Frequencies, Law, Sampler, isotropic, unbounded
from dorff.frequencies.samplers import directions, frame, frame_numbers, orthogonal_directions, some_rows
from dorff.frequencies.transforms import BUTTERFLY_FROM, ButterflyRules, Dense, Transform, settled
from dorff.kernels import FloatArray, Isotropic, Measure, Spectral
from dorff.loops import simplex_vertices
from dorff.spec.part import Degrees, OneOf, Typed
from dorff.spec.registry import SAMPLERS, Config, Entry

FACTORS: Final = 3  # butterflies and permutations in one rotation
DEGREES: Final = ((1, 1), (1, 3), (3, 3))


class QuadratureSpec(Typed):
    """Spherical-radial rules: degree (radial, spherical), how they are rotated, their radii and their centre."""

    degree: Degrees = (3, 3)
    mixing: Annotated[str, OneOf("butterfly", "haar")] = "butterfly"
    radii: Annotated[str, OneOf("own", "shared")] = "own"
    centre: Annotated[str, OneOf("signed", "redraw", "drop")] = "signed"


@dataclass(frozen=True)
class Quadrature(Sampler):
    """Means of randomly rotated spherical-radial rules (Genz & Monahan 1998; Munkhoeva et al. 2018, section 2).

    `degree` (radial, spherical): (1,1) one direction a rotation, which is IID; (1,3) the axes of a rotation, which is
    Orthogonal when each has a radius of its own (Munkhoeva's Prop. 2.2 needs it); (3,3) the d + 1 vertices v_j of a
    regular simplex, at radii rho_j ~ chi(d + 2), with squared weights d / ((d + 1) rho_j^2) and the centre's weight

        a_0^2 = 1 - sum_j d / ((d + 1) rho_j^2),  averaged over the rules

    (the paper prints it without d + 1). Other rotation-invariant spectra: rho from the density r^2 p(r) / E r^2, and
    E r^2 in place of d. The heavier the tails, the more the weights vary: for Matern kernels
    (1,3) is the better rule. Every point is used with its negative, which costs columns only where phi is a Python
    function (a second one for each point) or has a linear part (d in all): see `kernels.scalar.Split`. A rule for
    the spectrum itself: the vector fields' weights at its points are their matrices M(omega), zero at the centre.

    `mixing`: "haar" rotations are uniform, and written out; "butterfly" ones are products of three butterfly matrices
    and random permutations (Genz 1998), O(d) numbers and O(d log d) operations, for any d, and slightly biased at
    small d. `radii`: "own" for each point (the paper's variant) or one "shared" by a rule's.

    `centre`: a_0^2 has mean zero and so is negative half the time. "signed" keeps it as it is, unbiased: it counts in
    `ScalarMap.gram`, and a fit leaves it to the free intercept, where it is idle; a fit without intercept refuses a
    negative one (not so for step and sigmoid, whose own constant makes up for it). "drop" leaves it out. "redraw" is
    the paper's: a rule's radii are drawn again until its a_0^2 >= 0, which biases (+0.1 at d = 4).

    A count that is no whole number of rules takes a random part of one more, weighed so that the mean stays right."""

    degree: tuple[int, int] = (3, 3)
    mixing: str = "butterfly"
    radii: str = "own"
    centre: str = "signed"
    kind = "quadrature"
    reflected = True

    def __post_init__(self) -> None:
        if isinstance(self.degree, list | np.ndarray):
            object.__setattr__(self, "degree", tuple(int(part) for part in self.degree))
        words = {"mixing": ("butterfly", "haar"), "radii": ("own", "shared"), "centre": ("signed", "redraw", "drop")}
        choices: dict[str, tuple[object, ...]] = {"degree": DEGREES, **words}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(map(str, known))}, not {getattr(self, name)!r}")
        idle = ("centre",) if self.degree == (1, 3) else ("mixing", "radii", "centre") if self.degree == (1, 1) else ()
        for name in idle:
            if (value := getattr(self, name)) != choices[name][0]:
                problem = f"sampler.{name} has no effect on a rule of degree {self.degree}, came {value!r}"
                raise InputError(f"{problem}; leave it out")

    @property
    def centred(self) -> bool:
        return self.degree == (3, 3) and self.centre != "drop"

    def config(self) -> Config:
        return super().config() | {"degree": list(self.degree)}

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        law = isotropic(law, measure, "quadrature")
        unbounded(measure, "quadrature")
        if self.degree[0] == 3:
            try:
                _ = law.variance
            except InputError as error:
                problem = f"needs frequencies of a finite second moment, which those of {law!r} have not"
                remedy = "set degree: [1, 3], or use orthogonal"
                raise InputError(f"sampler: quadrature of degree (3,3) {problem}; {remedy}") from error

    def rule(self, rng: np.random.Generator, law: Law, count: int, d: int) -> Frequencies:
        spectrum = isotropic(law.spectrum, law.measure, "quadrature")
        if self.degree[0] == 1:
            radii = self._radii(rng, spectrum, Measure.UNBOUNDED, count, d)
            weights, centre = np.full(count, 1 / math.sqrt(count)), 0.0
        else:
            moment = d * spectrum.variance
            radii = self._radii(rng, spectrum, Measure.TRACE, count, d)
            if self.centre == "redraw":
                self._redraw(rng, spectrum, radii, moment, d)
            weights = np.sqrt(moment / count) / radii
            centre = 0.0 if self.centre == "drop" else float(1.0 - np.sum(weights**2))
        return Frequencies(self._points(rng, spectrum, radii, d), weights, centre, reflected=True)

    def _width(self, d: int) -> int:
        return {(1, 1): 1, (1, 3): d, (3, 3): d + 1}[self.degree]

    def _radii(self, rng: np.random.Generator, law: Isotropic, measure: Measure, count: int, d: int) -> FloatArray:
        if self.radii == "own":
            return law.radii(rng, count, d, measure)
        width = self._width(d)
        return np.repeat(law.radii(rng, -(-count // width), d, measure), width)[:count]

    def _redraw(self, rng: np.random.Generator, law: Isotropic, radii: FloatArray, moment: float, d: int) -> None:
        """Draw each rule's radii again, in place, until its centre's weight is not negative."""
        width = self._width(d)
        for start in range(0, len(radii), width):
            rule = radii[start : start + width]
            while np.mean(moment / rule**2) > 1:
                rule[:] = self._radii(rng, law, Measure.TRACE, len(rule), d)

    def _points(self, rng: np.random.Generator, law: Isotropic, radii: FloatArray, d: int) -> Transform:
        count, stretch = len(radii), law.stretch(d)
        if self.degree == (1, 1):
            return Dense(directions(rng, count, d) * radii[:, None] * stretch)
        if self.mixing == "butterfly":
            return settled(self._butterflies(rng, stretch, radii, d), BUTTERFLY_FROM)
        if self.degree == (1, 3):
            return Dense(orthogonal_directions(rng, count, d) * radii[:, None] * stretch)
        vertices, omega = simplex_vertices(d), np.empty((count, d))
        for start in range(0, count, d + 1):
            rows = min(d, count - start)  # vertex j lies in the span of the first j axes
            np.matmul(vertices[: count - start, :rows], frame(rng, rows, d), out=omega[start : start + d + 1])
        omega *= radii[:, None]
        omega *= stretch
        return Dense(omega)

    def _butterflies(self, rng: np.random.Generator, stretch: FloatArray, radii: FloatArray, d: int) -> ButterflyRules:
        shape = (-(-len(radii) // self._width(d)), FACTORS, d)
        permutations = rng.permuted(np.tile(np.arange(d, dtype=np.int32), (*shape[:2], 1)), axis=-1)
        cosines, sines = butterfly_angles(directions(rng, shape[0] * FACTORS, d).reshape(shape))
        rows = some_rows(rng, self._width(d), len(radii))
        vertices = np.array([self.degree == (3, 3)])
        return ButterflyRules(stretch, permutations, cosines, sines, vertices, rows, radii)

    def numbers(self, d: int, count: int) -> int:
        if self.mixing == "haar" or self.degree == (1, 1) or d < BUTTERFLY_FROM:
            return super().numbers(d, count) + frame_numbers(count, d) + (d + 1) * d
        return (3 * FACTORS + 2) * -(-count // self._width(d)) * self._width(d) + d + 1

    def flops(self, d: int, count: int) -> float:
        if self.mixing == "haar" or self.degree == (1, 1) or d < BUTTERFLY_FROM:
            return super().flops(d, count)
        width = self._width(d)
        return 3.0 * FACTORS * -(-count // width) * width * (1 + math.log2(d))


def butterfly_angles(u: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines (..., d - 1) of the butterfly matrices whose first columns are the unit vectors u (..., d).
    With u uniform on the sphere the first column is, and no other (Genz 1998, after Anderson, Olkin & Underhill 1987).
    A group's angle shares its length between its halves; angles are numbered from stride 1 on, group by group."""
    values = u  # one number for each group of entries: its one entry, or its length
    cosines, sines = [values[..., :0]], [values[..., :0]]
    while values.shape[-1] > 1:
        pairs = values.shape[-1] // 2
        left, right = values[..., 0 : 2 * pairs : 2], values[..., 1 : 2 * pairs : 2]
        length = np.hypot(left, right)
        safe = np.where(length > 0, length, 1.0)
        cosines.append(np.where(length > 0, left / safe, 1.0))
        sines.append(right / safe)
        values = np.concatenate([length, values[..., 2 * pairs :]], axis=-1)
    return np.concatenate(cosines, axis=-1), np.concatenate(sines, axis=-1)


SAMPLERS.add(Entry("quadrature", Quadrature, QuadratureSpec, source="Munkhoeva et al. 2018"))
