"""Features of projections, cosines and sines or any phi(omega . x); and such that move with the length-scales."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Final, Self

import numpy as np

from dorff.errors import InputError
from dorff.features.base import FeatureMap, Product, Roots, ScalarMap, numbers
from dorff.features.landmarks import LandmarkFeatures
from dorff.features.trigonometric import FEW_NUMBERS, TOLERANCE, Trigonometric, doubled, fast, numbers_of, squares
from dorff.frequencies import (
    QMC,
    Arrays,
    Dense,
    Frequencies,
    Landmarks,
    Modes,
    Orthogonal,
    Paths,
    Sparse,
    Transform,
    default_sampler,
    first_weights,
)
from dorff.kernels import (
    Decomposable,
    GaussianWeighted,
    Measure,
    OperatorKernel,
    Skeleton,
    Spectral,
    from_config,
    scalar_from_config,
)
from dorff.kernels.nonstationary import FUNCTIONS
from dorff.kernels.operator import CurlFree, DivergenceFree
from dorff.kernels.scalar import BoolArray, FloatArray, Lengthscale
from dorff.kernels.stretched import Stretched
from dorff.loops import ABSOLUTE, RAMP, SIGN, STEP, pieces, trig_pairs
from dorff.spec.registry import Config, kind_of

#: Frequencies (D, d), their log density (D,), and which terms (T, D) of the kernel they serve.
Law = tuple[FloatArray, FloatArray, BoolArray | None]

#: What a loop is for: by activation, and whether its points are reflected.
_PIECES: Final = {
    (FUNCTIONS["step"], False): STEP,
    (FUNCTIONS["relu"], False): RAMP,
    (FUNCTIONS["step"], True): SIGN,
    (FUNCTIONS["relu"], True): ABSOLUTE,
}


def layout(phi: GaussianWeighted | None, reflected: bool) -> tuple[int, float]:
    """Columns for each frequency, and the factor of the inputs as columns of their own: 0.0 where they are not."""
    split = phi.activation.split if phi is not None and reflected else None
    if phi is None or (reflected and split is None):
        return 2, 0.0
    return 1, phi.scale * split.slope if split else 0.0


def _values(phi: GaussianWeighted, t: FloatArray) -> FloatArray:
    """phi(t), looked at, since it may be anybody's function."""
    values = np.asarray(phi.activation.function(t))
    if values.shape != t.shape or not np.all(np.isfinite(values)):
        gave = f"shape {values.shape} for {t.shape}{'' if values.shape != t.shape else ', not all of them finite'}"
        raise InputError(f"{phi!r}: phi must give a finite number for every number; it gave {gave}")
    return values


@dataclass(frozen=True, eq=False)
class Projected(ScalarMap):
    """F = [a cos(x omega^T) | a sin(x omega^T)] where `phi` is None, else [a phi(x omega^T)], a (D,) the `weights`.
    Where `reflected`, each frequency stands for its negative too, and phi is `constant + slope t + gain rest(t)` (see
    `Split`): F = [a rest(x omega^T) | scale slope x], the inputs only where there is a slope. They stand for the linear
    part sum_j a_j^2 t_j t'_j, t = x omega^T, of mean x . x' (whole rules of degree (3,3) give it exactly). A phi that
    is not known to split has both: [a phi(x omega^T) | a phi(-x omega^T)]. `centre` is what no frequency carries: the
    (signed) squared weight of omega = 0 times phi(0)^2, and where `reflected` the square of phi's constant. With
    `centre_column` F has one more column, its root; else it counts in `gram` alone, a free intercept in its place."""

    projection: Transform
    weights: FloatArray
    phi: GaussianWeighted | None = None
    reflected: bool = False
    centre: float = 0.0
    centre_column: bool = False
    kind = "projected"

    @classmethod
    def of(cls, frequencies: Frequencies, phi: GaussianWeighted | None, *, centre_column: bool) -> Self:
        """The features of drawn frequencies."""
        weights, centre = frequencies.weights, frequencies.centre
        reflected = frequencies.reflected and phi is not None
        if phi is not None:
            weights = weights * phi.scale
            centre *= (phi.scale * phi.centre) ** 2
            if reflected and (split := phi.activation.split):
                centre += split.constant**2 * float(np.sum(weights**2))
                weights = weights * split.gain
            elif reflected:
                weights = weights / math.sqrt(2.0)
        if centre_column and centre < 0:
            problem = f"the centre's weight came out as {centre:.3g}, and a fit without intercept has no place for"
            remedy = "fit an intercept, set centre: redraw, or take another seed"
            raise InputError(f"sampler: {problem} a negative one; {remedy}")
        return cls(frequencies.transform, weights, phi, reflected, centre, centre_column)

    @property
    def d(self) -> int:
        return self.projection.d

    @property
    def m(self) -> int:
        each, slope = layout(self.phi, self.reflected)
        return each * self.projection.D + (self.d if slope else 0) + self.centre_column

    @property
    def tile_rows(self) -> int:
        return self.projection.tile_rows

    @property
    def work_columns(self) -> int:
        return self.projection.D

    @cached_property
    def omega(self) -> FloatArray:
        """omega (D, d), written out."""
        return self.projection.dense()

    @property
    def law_omega(self) -> FloatArray:
        """omega (D, d) as their law sees them: of a lattice with inputs that are constant (D, n, d); (D, 0) of what has
        none."""
        if not self.projection.linear:
            return np.empty((self.projection.D, 0))
        beside = self.projection.beside if isinstance(self.projection, Modes) else np.zeros((1, self.d))
        return self.omega if len(beside) == 1 else self.omega[:, None, :] + beside

    def write(self, x: FloatArray, out: FloatArray, work: FloatArray) -> None:
        D, phi = work.shape[1], self.phi
        if phi is None:
            self.projection.pairs(x, work, out, self.weights)
        else:
            self.projection.project(x, work)
            self._activated(phi, work, out)
        if slope := layout(phi, self.reflected)[1]:
            np.multiply(x, slope, out=out[:, D : D + self.d])
        if self.centre_column:
            out[:, self.m - 1] = math.sqrt(self.centre)

    def _activated(self, phi: GaussianWeighted, work: FloatArray, out: FloatArray) -> None:
        D = work.shape[1]
        if (piece := _PIECES.get((phi.activation, self.reflected))) is not None:
            pieces(work, out, self.weights, piece)
        else:
            split = phi.activation.split if self.reflected else None
            np.multiply(split.rest(work) if split else _values(phi, work), self.weights, out=out[:, :D])
            if self.reflected and not split:
                out[:, D : 2 * D] = _values(phi, -work) * self.weights

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return super().gram(X, Z) + (0.0 if self.centre_column else self.centre)

    @property
    def differentiable(self) -> bool:
        return self.projection.linear and (self.phi is None or self.phi.activation.derivative is not None)

    @property
    def equal_pairs(self) -> bool:
        """Whether features are cosine and sine pairs of equal weight, of which any part estimates the kernel."""
        equal = np.allclose(self.weights, self.weights[0], rtol=1e-12, atol=0.0)
        drawn = not isinstance(self.projection, Modes) and self.phi is None
        return bool(drawn and self.centre == 0 and equal)

    @property
    def unequal_weights(self) -> FloatArray | None:
        """The weights (D,) of pairs that are in an order of which the first ones do for fewer, though they differ."""
        ordered = isinstance(self.projection, Sparse) and self.phi is None and self.centre == 0
        return self.weights if ordered and not self.equal_pairs else None

    def first(self, count: int) -> "Projected":
        """The features of the first `count` frequencies: columns :count and D : D + count, times sqrt(D / count), or
        what `frequencies.first_weights` says of unequal weights. InputError unless these are pairs of which the first
        estimate the kernel, and nothing else."""
        D = self.projection.D
        if not self.equal_pairs and self.unequal_weights is None:
            problem = "several need cosine and sine pairs of equal weight, of which any part will do"
            remedy = "give one count, or use sampler iid or orthogonal with a shift-invariant kernel"
            raise InputError(f"features.count: {problem}; this kernel's or sampler's features are others: {remedy}")
        if not 1 <= count <= D:
            raise InputError(f"count: wanted 1 to {D} of the frequencies, got {count}; correct it")
        if count == D:
            return self
        if isinstance(self.projection, Sparse):
            return Projected(self.projection.first(count), first_weights(self.weights, count))
        return Projected(Dense(self.omega[:count].copy()), self.weights[:count] * math.sqrt(D / count))

    def jacobian(self, x: FloatArray, W: FloatArray) -> FloatArray:
        if not self.differentiable:
            return super().jacobian(x, W)
        D, omega, slope = self.projection.D, self.omega, layout(self.phi, self.reflected)[1]
        out = np.empty((len(x), W.shape[1], self.d))
        for i in range(W.shape[1]):
            out[:, i] = self._slopes(x, W[:, i]) @ omega
            if slope:
                out[:, i] += slope * W[D : D + self.d, i]
        return out

    def _slopes(self, x: FloatArray, w: FloatArray) -> FloatArray:
        """d(F w)/d(omega . x), (b, D), of the frequencies' columns, for coefficients w (m,)."""
        D = self.projection.D
        if self.phi is None:
            F = self.transform(x)
            return F[:, :D] * w[D : 2 * D] - F[:, D : 2 * D] * w[:D]
        derivative, split = self.phi.activation.derivative, self.phi.activation.split
        assert derivative is not None and split is not None  # `differentiable`
        z = np.empty((len(x), D))
        self.projection.project(x, z)
        slopes = derivative(z)
        if self.reflected:  # of rest, where phi = constant + slope t + gain rest
            slopes = (slopes - split.slope) / split.gain
        return slopes * (self.weights * w[:D])

    def product(self, W: FloatArray) -> Product | None:
        modes, plain = self.projection, self.phi is None and not self.centre_column
        if not isinstance(modes, Modes) or not plain or not fast(modes, W.shape[1]):
            return None
        return Trigonometric.of(modes, np.concatenate([self.weights, self.weights])[:, None] * W)

    def square_numbers(self, count: int) -> int:
        modes = self.projection
        if not isinstance(modes, Modes) or self.phi is not None or self.centre_column:
            return 0
        worth = fast(twice := doubled(modes), count, most=max(4 * modes.D**2, FEW_NUMBERS))
        return int(numbers_of(twice, count)) if worth else 0

    def squares(self, roots: Roots, count: int) -> tuple[Product, FloatArray] | None:
        modes = self.projection
        if not isinstance(modes, Modes) or self.square_numbers(count) == 0:
            return None
        weights = np.concatenate([self.weights, self.weights, [1.0]])[:, None]

        def weighed(output: int) -> Callable[[int], Iterable[FloatArray]]:
            return lambda most: (weights * T for T in roots(output, most))

        V = np.stack([squares(modes, weighed(output)) for output in range(count)], axis=1)
        return Trigonometric.of(doubled(modes), V), np.asarray(TOLERANCE * np.abs(V).sum(axis=0))

    def slopes(self, W: FloatArray) -> Product | None:
        if not isinstance(self.projection, Modes):
            return None
        D, (m, p) = self.projection.D, W.shape
        each = [np.concatenate([W[D:], -W[:D]]) * np.concatenate([w, w])[:, None] for w in self.omega.T]
        product = self.product(np.stack(each, axis=2).reshape(m, p * self.d))
        return None if product is None else lambda x: product(x).reshape(len(x), p, self.d)

    def config(self) -> Config:
        phi = self.phi.config() if self.phi else None
        same = {name: getattr(self, name) for name in ("reflected", "centre", "centre_column")}
        return {"type": self.kind, "transform": self.projection.kind, "phi": phi, **same}

    def fits(self) -> bool:
        held = math.isfinite(self.centre) and (self.centre >= 0 or not self.centre_column)
        return held and self.projection.fits() and numbers((self.projection.D,), self.weights)

    def arrays(self) -> Arrays:
        return {**self.projection.arrays(), "feature_weights": self.weights}


def modes_of(features: FeatureMap) -> Modes:
    """The lattice that features have their frequencies on."""
    phi = features.phi
    assert isinstance(phi, Projected) and isinstance(phi.projection, Modes)
    return phi.projection


def cut(features: FeatureMap, density: Law | None, m: int) -> tuple[FeatureMap, Law | None]:
    """Return a map, and its `Law`, of m of the features: those of the first frequencies, or of the first landmarks.

    InputError where a part would estimate another kernel.
    """
    if isinstance(features.phi, LandmarkFeatures):
        return replace(features, phi=features.phi.first(m)), None
    count = m // 2
    if not isinstance(features.phi, Projected) or (density is not None and density[2] is not None):
        problem = "several need features that are one sample of frequencies; this kernel's or sampler's are not"
        remedy = "give one count, or use sampler iid or orthogonal with a shift-invariant kernel"
        raise InputError(f"features.count: {problem}: {remedy}")
    phi = features.phi.first(count)
    if density is not None:
        density = phi.law_omega, density[1][:count], None
    return FeatureMap(phi, features.center, features.scale), density


def estimates_in_parts(features: FeatureMap, density: Law | None) -> bool:
    """Whether any part of the frequencies estimates the kernel (`cut`): one sample of them, for one law."""
    phi = features.phi
    return isinstance(phi, Projected) and phi.equal_pairs and (density is None or density[2] is None)


@dataclass(frozen=True, eq=False)
class UnitFeatures:
    """Frequencies drawn at length-scale 1, omega = units / lengthscale, and weights psi that are linear in them. units
    (D, d). psi (D, R, P) = sizes[j, i] sum_k [omega_j | 1]_k roots[i, :, k], with sizes (D, R), the roots of the
    terms' weights over the density drawn from, and roots (R, P, d + 1): a length-scale moves the kernel's density and
    the law drawn from alike, so their ratio stays. P is 1 where all terms are decomposable: one system for all. Inputs
    that are not `stretched` (d,), signs and categories of skeletons, have no length-scale: omega = units."""

    units: FloatArray
    sizes: FloatArray
    roots: FloatArray
    stretched: BoolArray

    @classmethod
    def of(cls, kernel: OperatorKernel, *, d: int, p: int, columns: int, seed: int) -> Self:
        """Of a kernel, whose own length-scales are not looked at: all its terms get one and the same. At most
        `columns` columns of psi (x) F. Orthogonal frequencies, quasi-random ones (scrambled Sobol) for laws that
        rotations change: of low variance, and smooth in the length-scales since the draw is fixed. A sum that is
        concatenated is drawn from its mixture all the same: the kernel is the same."""
        unit = with_lengthscale(kernel, 1.0, identity=True).fix(d, p)
        terms = [(weight, base) for weight, base in unit.terms() if weight > 0]
        separable = all(isinstance(base, Decomposable) for _, base in terms)
        P = 1 if separable else p
        parts = [np.eye(1, d + 1, d)[None] if separable else _linear_root(base, d, p) for _, base in terms]
        rows = min(P, sum(len(part) for part in parts))
        chosen = default_sampler(unit, d)
        if isinstance(chosen, Landmarks):
            problem = "length-scales are tuned by random features, which this skeleton has none of"
            raise InputError(f"lengthscale: {problem}; give a number, or list kernels in jobs of their own")
        if any(not base.scalar.shift_invariant for _, base in terms):
            problem = "length-scales are tuned by frequencies, which a skeleton over spheres has none of"
            raise InputError(f"lengthscale: {problem}; give numbers")
        sampler = chosen if isinstance(chosen, Orthogonal | Paths) else QMC()
        drawn = sampler.draw(unit, d=d, p=p, count=max(1, columns // (2 * rows)), seed=seed)
        stretched = np.ones(d, dtype=np.bool_)
        if isinstance(sampler, Paths):
            sizes = _sizes_of_paths(unit, drawn, parts)
            scalars = [base.scalar for _, base in terms]
            inputs = [scalar.input_lengthscales(d) if isinstance(scalar, Skeleton) else range(d) for scalar in scalars]
            stretched[:] = [any(column in columns for columns in inputs) for column in range(d)]
        else:
            assert drawn.log_density is not None  # of all samplers that mix
            sizes = []
            for (weight, base), part in zip(terms, parts, strict=True):
                assert isinstance(base.scalar, Spectral)
                log_ratio = base.scalar.log_density(drawn.omega, Measure.UNBOUNDED) - drawn.log_density
                sizes += [np.sqrt(weight) * np.exp(0.5 * log_ratio)] * len(part)
        return cls(drawn.omega, np.stack(sizes, axis=1), np.concatenate(parts), stretched)

    def omega(self, lengthscale: FloatArray) -> FloatArray:
        """Return the frequencies (D, d) for the length-scale(s) (1,) or (d,)."""
        return np.asarray(self.units / np.where(self.stretched, lengthscale, 1.0))

    def lengthscale_gradient(self, by_omega: FloatArray, lengthscale: FloatArray) -> FloatArray:
        """Return what a gradient (D, d) by omega says by the log of each input's length-scale, (d,)."""
        return np.asarray(-np.sum(by_omega * self.omega(lengthscale), axis=0) * self.stretched)

    @property
    def separable(self) -> bool:
        """Whether all outputs share one system."""
        return self.roots.shape[1] == 1 and not np.any(self.roots[:, :, :-1])

    def observed(self, C: FloatArray) -> Self:
        """The same of targets C f, C (q, p): psi C^T in place of psi."""
        return replace(self, roots=np.einsum("rpk,qp->rqk", self.roots, C))

    def columns(self, X: FloatArray, lengthscale: FloatArray) -> FloatArray:
        """F (n, 2 D) of X (n, d) and the length-scale(s) (1,) or (d,): all cosines, then all sines, over sqrt(D)."""
        D = len(self.units)
        F = np.empty((len(X), 2 * D))
        trig_pairs(X @ self.omega(lengthscale).T, F, np.full(D, D**-0.5))
        return F

    def psi(self, lengthscale: FloatArray) -> FloatArray:
        """psi (D, R, P) as above, R maybe more than P."""
        omega = np.column_stack([self.omega(lengthscale), np.ones(len(self.units))])
        return np.asarray(self.sizes[:, :, None] * np.einsum("jk,rpk->jrp", omega, self.roots))

    def omega_gradient(self, of_psi: FloatArray) -> FloatArray:
        """What a gradient (D, R, P) by psi says by omega, (D, d)."""
        return np.asarray(np.einsum("jrp,jr,rpk->jk", of_psi, self.sizes, self.roots[:, :, :-1]))


def _sizes_of_paths(kernel: OperatorKernel, drawn: Frequencies, parts: list[FloatArray]) -> list[FloatArray]:
    """Return the sizes (D,) of each row of the terms' roots `parts`, for frequencies that were drawn law by law."""
    sizes = list[FloatArray]()
    rooted = iter(parts)
    for number, (weight, _) in enumerate(kernel.terms()):
        if weight > 0:
            serves = 1.0 if drawn.serves is None else drawn.serves[number]
            size = np.sqrt(weight * len(drawn.weights)) * drawn.weights * serves
            sizes += [size] * len(next(rooted))
    return sizes


def with_lengthscale(kernel: OperatorKernel, lengthscale: Lengthscale, *, identity: bool = False) -> OperatorKernel:
    """The kernel with this length-scale (or one an input) in all terms; `identity`: without output matrices."""
    for _, base in kernel.terms():
        if not isinstance(base.scalar, Stretched | Skeleton):
            remedy = "use a kernel with one, such as gaussian"
            raise InputError(f"lengthscale: {type(base.scalar).__name__} has none to tune; {remedy}")
    value = float(np.ravel(lengthscale)[0]) if np.size(lengthscale) == 1 else np.asarray(lengthscale).tolist()
    together = {"concatenate": False} if identity and kernel.concatenated else {}

    def put(key: str, item: Any) -> Any:
        if key == "output" and identity:
            return "identity"
        if key == "scalar" and kind_of(item) == "skeleton":
            skeleton = scalar_from_config(item)
            assert isinstance(skeleton, Skeleton)
            return skeleton.with_lengthscale(lengthscale).config()
        return value if key == "lengthscale" else item

    return from_config({**mapped(kernel.config(), put), **together})


def mapped(value: Any, put: Callable[[str, Any], Any]) -> Any:
    """The same with what `put` makes of a key and its item; items that it gives back are gone through in turn."""
    if isinstance(value, dict):
        return {key: mapped(item, put) if (other := put(key, item)) is item else other for key, item in value.items()}
    return [mapped(item, put) for item in value] if isinstance(value, list | tuple) else value


def _linear_root(base: object, d: int, p: int) -> FloatArray:
    """B (r, p, d + 1) such that U = B [omega | 1] has U^T U = M(omega). For the divergence-free kernel the rows
    omega_i e_j - omega_j e_i, i < j: linear, and more than p where p > 3."""
    if isinstance(base, CurlFree):
        return np.eye(p, d + 1)[None]
    if isinstance(base, Decomposable):
        return np.eye(p)[:, :, None] * np.eye(1, d + 1, d)
    if not isinstance(base, DivergenceFree):
        raise InputError(f"lengthscale: that of {type(base).__name__} cannot be tuned; give a number, or median")
    pairs = list(combinations(range(p), 2))
    root = np.zeros((len(pairs), p, d + 1))
    for row, (i, j) in zip(root, pairs, strict=True):
        row[j, i], row[i, j] = 1.0, -1.0
    return root
