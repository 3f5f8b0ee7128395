"""Kernels E phi(w . x) phi(w . z) over Gaussian w: arc-cosine, and any other phi."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dorff.errors import InputError
from dorff.kernels.explicit import hermite_gram
from dorff.kernels.scalar import Activation, FloatArray, Function, GaussianWeighted, Split
from dorff.spec.part import OneOf, Typed, within
from dorff.spec.registry import Config, lazily

cdist = lazily("scipy.spatial.distance", "cdist")
erf = lazily("scipy.special", "erf")
expit = lazily("scipy.special", "expit")


def _step(t: FloatArray) -> FloatArray:
    return np.heaviside(t, 0.5)


def _softplus_even(t: FloatArray) -> FloatArray:
    size = np.abs(t)
    return np.log1p(np.exp(-size)) + size / 2


# The functions that a job may name.
FUNCTIONS: dict[str, Activation] = {
    "step": Activation(_step, None, Split(np.sign, gain=0.5, constant=0.5)),
    "relu": Activation(lambda t: np.maximum(t, 0.0), _step, Split(np.abs, gain=0.5, slope=0.5)),
    "erf": Activation(erf, lambda t: 2 / math.sqrt(math.pi) * np.exp(-(t**2)), Split(erf)),
    "tanh": Activation(np.tanh, lambda t: 1 - np.tanh(t) ** 2, Split(np.tanh)),
    "sigmoid": Activation(
        expit, lambda t: expit(t) * expit(-t), Split(lambda t: np.tanh(t / 2), gain=0.5, constant=0.5)
    ),
    "softplus": Activation(lambda t: np.logaddexp(0.0, t), expit, Split(_softplus_even, slope=0.5)),
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
    """2 E phi(w . x) phi(w . z): phi the Heaviside step for `order` 0, the ramp for order 1 (Cho & Saul 2009).

    Order 0 is 1 - theta / pi and order 1 |x| |z| / pi (sin theta + (pi - theta) cos theta), theta the angle.
    With Theta(0) = 1/2 the kernel of order 0 is 1/2 wherever x or z is zero. Munkhoeva et al. (2018) leave out
    the factor 2. There is no length-scale: scaling the inputs scales order 1 and leaves order 0 as it is."""

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

    `phi` is a name (step, relu, erf, tanh, sigmoid, softplus, sin, cos) or a Python function of an array that
    gives an array of the same shape. Only names can be stored. Step and relu are half of ArcCosine; erf is
    Williams (1997); sin and cos are Gaussians. The others come from a Hermite series, to 1e-13 where phi(|x| t) is
    smooth in t; where it looks like a step or has a kink, to what `explicit.hermite_gram` says."""

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
