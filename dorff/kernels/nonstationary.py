"""Not shift-invariant: polynomials and given eigenpairs, which bring their features; E phi(w . x) phi(w . z)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np

import dorff.kernels.scalar as scalars
from dorff.errors import InputError
from dorff.kernels.scalar import Activation, FloatArray, Function, GaussianWeighted, IntArray, ScalarKernel, Split
from dorff.spec.part import NotNegative, OneOf, Positive, Typed, within
from dorff.spec.registry import Config, Entry, lazily

MOST_DEGREE: Final = 64
MOST_PAIRS: Final = 10**6
Eigenfunctions = Callable[[FloatArray, IntArray], FloatArray]


class PolynomialSpec(Typed):
    """(scale x.z + offset)^degree."""

    degree: Annotated[int, within(1)]
    offset: NotNegative = 1.0
    scale: Positive = 1.0


@dataclass(frozen=True)
class Polynomial(ScalarKernel):
    """(scale x.z + offset)^degree. In scikit-learn's words scale is gamma and offset is coef0."""

    degree: int
    offset: float
    scale: float

    def __init__(self, degree: int, *, offset: float = 1.0, scale: float = 1.0) -> None:
        if isinstance(degree, bool) or not isinstance(degree, int | np.integer) or degree < 1:
            raise InputError(f"degree must be a whole number of at least 1, not {degree!r}")
        offset, scale = scalars.positive_number("offset", offset, or_zero=True), scalars.positive_number("scale", scale)
        if degree > MOST_DEGREE or not max(scale, offset, 1.0) < 10.0 ** (300 / degree) / 2:
            problem = f"degree {degree}, offset {offset!r} and scale {scale!r} make numbers beyond float64"
            raise InputError(f"{problem}; use a degree of at most {MOST_DEGREE}, and an offset and a scale near 1")
        vars(self).update(degree=int(degree), offset=offset, scale=scale)

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return np.asarray((self.scale * (X @ Z.T) + self.offset) ** self.degree)

    def config(self) -> Config:
        return {"type": "polynomial", "degree": self.degree, "offset": self.offset, "scale": self.scale}


@dataclass(frozen=True)
class Sines:
    """A named system on [0, 1]: eigenvalues 1 / (t_j pi)^2, functions sqrt(2) sin(t_j pi x), t_j = j + 1 - shift. j
    counts from zero. shift = 1/2 is Brownian motion, min(x, z); shift = 0 the bridge, min(x, z) - x z."""

    name: str
    shift: float

    def eigenvalues(self, count: int) -> FloatArray:
        return np.asarray(((np.arange(1, count + 1) - self.shift) * math.pi) ** -2.0, dtype=np.float64)

    def __call__(self, X: FloatArray, indices: IntArray) -> FloatArray:
        self.check(X.shape[1])
        low, high = float(np.min(X, initial=0.0)), float(np.max(X, initial=1.0))
        if low < 0 or high > 1:
            raise InputError(f"the inputs of Mercer '{self.name}' lie in [0, 1], but run from {low:g} to {high:g}")
        return np.asarray(math.sqrt(2.0) * np.sin(X * ((indices + 1 - self.shift) * math.pi)))

    def check(self, d: int) -> None:
        if d != 1:
            raise InputError(f"Mercer '{self.name}' takes one input column in [0, 1], not {d}; choose one")


# The systems that a job may name.
SYSTEMS = {system.name: system for system in (Sines("brownian", 0.5), Sines("bridge", 0.0))}


class MercerSpec(Typed):
    """The first `count` eigenpairs of a system with a name; one input in [0, 1]."""

    system: Annotated[str, OneOf(*SYSTEMS)]
    count: Annotated[int, within(1)] = 1000


@dataclass(frozen=True)
class Mercer(ScalarKernel):
    """sum_j eigenvalue_j phi_j(x) phi_j(z) over L eigenpairs (Mercer's theorem; Oono, section 6.3). `eigenfunctions`
    is a Python function (X (n, d), indices (s,)) -> (n, s) of the wanted functions, counted from zero, or the name of
    a system: brownian (min(x, z) on [0, 1]) or bridge (min(x, z) - x z), cut after L pairs. `Mercer.named(name,
    count)` fills in a system's eigenvalues. Only named systems can be stored."""

    eigenvalues: tuple[float, ...] = field(repr=False)
    eigenfunctions: Eigenfunctions

    def __init__(self, eigenvalues: Sequence[float] | FloatArray, eigenfunctions: Eigenfunctions | str) -> None:
        values = np.asarray(eigenvalues, dtype=np.float64)
        if values.ndim != 1 or not values.size or not np.all(np.isfinite(values)) or np.any(values <= 0):
            raise InputError("eigenvalues must be a list of positive finite numbers, leave out those that are zero")
        if isinstance(eigenfunctions, str):
            if eigenfunctions not in SYSTEMS:
                raise InputError(f"eigenfunctions: {eigenfunctions!r} is not known; use {' or '.join(SYSTEMS)}")
            eigenfunctions = SYSTEMS[eigenfunctions]
        vars(self).update(eigenvalues=tuple(values.tolist()), eigenfunctions=eigenfunctions)

    @classmethod
    def named(cls, system: str, count: int) -> "Mercer":
        """The first `count` eigenpairs of a named system."""
        pairs = scalars.whole("count", count, 1, MOST_PAIRS)
        return cls(SYSTEMS[system].eigenvalues(pairs) if system in SYSTEMS else (1.0,), system)

    def functions(self, X: FloatArray, indices: IntArray) -> FloatArray:
        """Eigenfunctions number `indices` (s,), counted from zero, at X (n, d): (n, s)."""
        found = np.asarray(self.eigenfunctions(X, indices), dtype=np.float64)
        if found.shape != (len(X), len(indices)):
            problem = f"eigenfunctions must give one row an input and one column an index, {(len(X), len(indices))}"
            raise InputError(f"{problem}; got shape {found.shape}")
        return found

    def check(self, d: int) -> None:
        if isinstance(self.eigenfunctions, Sines):
            self.eigenfunctions.check(d)

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        values, total = np.asarray(self.eigenvalues), np.zeros((len(X), len(Z)))
        for start in range(0, len(values), 256):
            indices = np.arange(start, min(start + 256, len(values)))
            total += (self.functions(X, indices) * values[indices]) @ self.functions(Z, indices).T
        return total

    def config(self) -> Config:
        system, count = self.eigenfunctions, len(self.eigenvalues)
        if not isinstance(system, Sines) or self.eigenvalues != tuple(system.eigenvalues(count).tolist()):
            remedy = f"use Mercer.named with {' or '.join(SYSTEMS)}"
            raise InputError(f"a Mercer kernel of Python functions cannot be stored; {remedy}")
        return {"type": "mercer", "system": system.name, "count": count}


TERMS = 1024
_REACH, _POINTS = 13.0, 2001  # exp(-u^2 / 4) is below rounding beyond 12.5
_BLOCK = 2**16


def hermite_gram(phi: Function, x: FloatArray, z: FloatArray, cosine: FloatArray) -> FloatArray:
    """E phi(|x| u) phi(|z| v) for standard normal u, v of correlation `cosine` (n, k); x (n,), z (k,) are norms.
    Mehler's formula (Daniely et al. 2017, section 8): sum_l h_l(|x|) h_l(|z|) cosine^l, h_l(a) = E phi(a u) He_l(u)
    with He_l normalised, by the trapezium rule. It is what a bivariate Gauss-Hermite rule of many nodes gives, at n +
    k one-dimensional integrals. What is left of the series after 1024 terms (known, since the squares sum to E phi^2)
    is added at the first powers left out, even and odd apart: so z = x and z = -x are exact, the gram matrix stays
    positive semi-definite, and the error is at most the rest itself. Measured against two-dimensional rules: 1e-13 for
    tanh and softplus up to |x| = 4; for tanh 1e-6 at |x| = 10 and 1e-3 at 30, and that only where x and z are within 8
    degrees of a line; 1e-5 |x| |z| for a kink at 0, 1e-3 for a jump. phi may grow like powers."""
    u, table = _hermite_functions()
    left, left_rest = _coefficients(phi, x, u, table)
    right, right_rest = _coefficients(phi, z, u, table)
    size = max(_needed(left), _needed(right))
    if size < TERMS:
        left, right = left[:, :size], right[:, :size]
        left_rest, right_rest = 0 * left_rest, 0 * right_rest
    values = np.empty_like(cosine)
    step = max(1, _BLOCK // max(1, len(z)))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        c = cosine[rows]
        # Horner from the two terms that stand for the rest of the series.
        total = np.outer(left_rest[rows, 1], right_rest[:, 1]) * c + np.outer(left_rest[rows, 0], right_rest[:, 0])
        for order in range(left.shape[1] - 1, -1, -1):
            total *= c
            total += np.outer(left[rows, order], right[:, order])
        values[rows] = total
    return values


def _hermite_functions() -> tuple[FloatArray, FloatArray]:
    """Points u (P,) and He_l(u) sqrt(density * step), (TERMS, P): orthonormal rows, for the degrees below TERMS."""
    u = np.linspace(-_REACH, _REACH, _POINTS)
    step = u[1] - u[0]
    table = np.empty((TERMS, _POINTS))
    table[0] = np.exp(-0.25 * u**2) * math.sqrt(step / math.sqrt(2 * math.pi))
    table[1] = u * table[0]
    for order in range(1, TERMS - 1):
        table[order + 1] = (u * table[order] - math.sqrt(order) * table[order - 1]) / math.sqrt(order + 1)
    return u, table


def _coefficients(phi: Function, norms: FloatArray, u: FloatArray, table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """h (n, TERMS), and the roots (n, 2) of what is missing from E phi^2 in even and odd degrees."""
    h, rest = np.empty((len(norms), TERMS)), np.empty((len(norms), 2))
    for start in range(0, len(norms), 256):
        rows = slice(start, start + 256)
        at = norms[rows, None] * u
        values = np.asarray(phi(at), dtype=np.float64)
        if values.shape != at.shape or not np.all(np.isfinite(values)):
            gave = "values that are not finite" if values.shape == at.shape else f"shape {values.shape}"
            wanted = "phi must give finite numbers, an array of the shape it is handed"
            raise InputError(f"{wanted}; for shape {at.shape} it gave {gave}")
        weighted = values * table[0]
        h[rows] = weighted @ table.T
        for parity, sign in enumerate((1.0, -1.0)):
            part = 0.5 * (weighted + sign * weighted[:, ::-1])
            missing = np.sum(part**2, axis=1) - np.sum(h[rows, parity::2] ** 2, axis=1)
            rest[rows, parity] = np.sqrt(np.maximum(missing, 0.0))
    return h, rest


def _needed(h: FloatArray) -> int:
    """How many degrees hold all but 1e-20 of the sum of squares of every row; TERMS if the series is cut."""
    squares = h**2
    tails = np.cumsum(squares[:, ::-1], axis=1)[:, ::-1]
    return int(np.count_nonzero(np.any(tails > 1e-20 * squares.sum(axis=1, keepdims=True), axis=0)))


cdist = lazily("scipy.spatial.distance", "cdist")
erf = lazily("scipy.special", "erf")
expit = lazily("scipy.special", "expit")


def _step(t: FloatArray) -> FloatArray:
    return np.heaviside(t, 0.5)


# The functions that a job may name.
FUNCTIONS: dict[str, Activation] = {
    "step": Activation(_step, None, Split(np.sign, gain=0.5, constant=0.5)),
    "relu": Activation(lambda t: np.maximum(t, 0.0), _step, Split(np.abs, gain=0.5, slope=0.5)),
    "erf": Activation(erf, lambda t: 2 / math.sqrt(math.pi) * np.exp(-(t**2)), Split(erf)),
    "tanh": Activation(np.tanh, lambda t: 1 - np.tanh(t) ** 2, Split(np.tanh)),
    "sigmoid": Activation(expit, lambda t: expit(t) * expit(-t), Split(lambda t: np.tanh(t / 2), 0.5, constant=0.5)),
    "softplus": Activation(
        lambda t: np.logaddexp(0.0, t), expit, Split(lambda t: np.log1p(np.exp(-np.abs(t))) + np.abs(t) / 2, slope=0.5)
    ),
    "sin": Activation(np.sin, np.cos, Split(np.sin)),
    "cos": Activation(np.cos, lambda t: -np.sin(t), Split(np.cos)),
}


class ArcCosineSpec(Typed):
    """Cho & Saul's kernel: a step (order 0) or a ramp (order 1) of Gaussian projections."""

    order: Annotated[int, within(0, 1)] = 1


class PointwiseSpec(Typed):
    """E phi(w . x) phi(w . z) over Gaussian w, phi a function with a name."""

    function: Annotated[str, OneOf(*FUNCTIONS)]


@dataclass(frozen=True)
class ArcCosine(GaussianWeighted):
    """2 E phi(w . x) phi(w . z): phi the Heaviside step for `order` 0, the ramp for order 1 (Cho & Saul 2009). Order 0
    is 1 - theta / pi and order 1 |x| |z| / pi (sin theta + (pi - theta) cos theta), theta the angle. With Theta(0) =
    1/2 the kernel of order 0 is 1/2 wherever x or z is zero. Munkhoeva et al. (2018) leave out the factor 2. There is
    no length-scale: scaling the inputs scales order 1 and leaves order 0 as it is."""

    order: int = 1
    scale = math.sqrt(2.0)

    def __post_init__(self) -> None:
        if isinstance(self.order, bool) or self.order not in (0, 1):
            raise InputError(f"order must be 0 or 1, not {self.order!r}; other orders are not built")
        object.__setattr__(self, "order", int(self.order))

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return 2 * (_step_gram(X, Z) if self.order == 0 else _ramp_gram(X, Z))

    @property
    def activation(self) -> Activation:
        return FUNCTIONS["relu" if self.order else "step"]

    def config(self) -> Config:
        return {"type": "arc_cosine", "order": self.order}


@dataclass(frozen=True)
class Pointwise(GaussianWeighted):
    """E phi(w . x) phi(w . z), w ~ N(0, I) (the "pointwise nonlinear Gaussian" kernels of Munkhoeva et al. 2018).
    `phi` is a name (step, relu, erf, tanh, sigmoid, softplus, sin, cos) or a Python function of an array that gives an
    array of the same shape. Only names can be stored. Step and relu are half of ArcCosine; erf is Williams (1997); sin
    and cos are Gaussians. The others come from a Hermite series, to 1e-13 where phi(|x| t) is smooth in t; where it
    looks like a step or has a kink, to what `hermite_gram` says."""

    phi: str | Function

    def __post_init__(self) -> None:
        if not callable(self.phi) and self.phi not in FUNCTIONS:
            raise InputError(f"phi must be a function or one of {', '.join(FUNCTIONS)}, not {self.phi!r}")

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        if isinstance(self.phi, str) and self.phi in _EXACT:
            return _EXACT[self.phi](X, Z)
        x, z, angles = _polar(X, Z)
        return hermite_gram(self.activation.function, x, z, np.cos(angles))

    @property
    def activation(self) -> Activation:
        return FUNCTIONS[self.phi] if isinstance(self.phi, str) else Activation(self.phi)

    def config(self) -> Config:
        if not isinstance(self.phi, str):
            raise InputError(f"a Pointwise kernel of a function cannot be stored; name one of {', '.join(FUNCTIONS)}")
        return {"type": "pointwise", "function": self.phi}


def _polar(X: FloatArray, Z: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Norms (n,) and (k,), and angles (n, k) in [0, pi], which are pi/2 where a vector is zero."""
    x, z = np.linalg.norm(X, axis=1), np.linalg.norm(Z, axis=1)
    a = X / np.where(x > 0, x, 1.0)[:, None]
    b = Z / np.where(z > 0, z, 1.0)[:, None]
    # An arccos loses half of the digits near 0 and pi; this form (Kahan 2006, section 12) keeps them.
    return x, z, 2 * np.arctan2(cdist(a, b), cdist(a, -b))


def _step_gram(X: FloatArray, Z: FloatArray) -> FloatArray:
    x, z, angles = _polar(X, Z)
    values: FloatArray = 0.5 - angles / (2 * math.pi)
    values[x == 0] = 0.25
    values[:, z == 0] = 0.25
    return values


def _ramp_gram(X: FloatArray, Z: FloatArray) -> FloatArray:
    x, z, angles = _polar(X, Z)
    shape = np.sin(angles) + (math.pi - angles) * np.cos(angles)
    return np.asarray(np.outer(x, z) * shape / (2 * math.pi))


def _erf_gram(X: FloatArray, Z: FloatArray) -> FloatArray:
    """(2 / pi) arcsin(2 x.z / sqrt((1 + 2 |x|^2)(1 + 2 |z|^2))) (Williams 1997, eq. 11), as an arctan2."""
    x, z, angles = _polar(X, Z)
    both = 2 * np.outer(x, z)
    across = np.sqrt(1 + 2 * x[:, None] ** 2 + 2 * z**2 + (both * np.sin(angles)) ** 2)
    return np.asarray(2 / math.pi * np.arctan2(both * np.cos(angles), across))


def _waves(X: FloatArray, Z: FloatArray, sign: float) -> FloatArray:
    apart, together = cdist(X, Z, "sqeuclidean"), cdist(X, -Z, "sqeuclidean")
    return np.asarray(0.5 * (np.exp(-0.5 * apart) + sign * np.exp(-0.5 * together)))


_EXACT: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "step": _step_gram,
    "relu": _ramp_gram,
    "erf": _erf_gram,
    "sin": lambda X, Z: _waves(X, Z, -1.0),
    "cos": lambda X, Z: _waves(X, Z, 1.0),
}


_DOUBLE = "2 E φ(w·x) φ(w·z), φ a step (order 0) or a ramp (order 1)"
ENTRIES: Final = (  # of the registry of scalar kernels
    Entry("arc_cosine", ArcCosine, ArcCosineSpec, _DOUBLE, "Cho & Saul 2009"),
    Entry("polynomial", Polynomial, PolynomialSpec, "(scale x·z + offset)^degree"),
    Entry("pointwise", lambda function: Pointwise(function), PointwiseSpec, "E φ(w·x) φ(w·z)", "Munkhoeva 2018"),
    Entry("mercer", Mercer.named, MercerSpec, "Σ λⱼ φⱼ(x) φⱼ(z)", "Mercer 1909"),
)
