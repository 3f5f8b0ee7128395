"""Kernels that bring features of their own: polynomials, and kernels given by their eigenpairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, final

import numpy as np

from dorff.errors import InputError
from dorff.kernels.scalar import Explicit, FloatArray, IntArray
from dorff.spec.part import NotNegative, OneOf, Positive, Typed, within

MOST_DEGREE: Final = 64
MOST_PAIRS: Final = 10**6
Eigenfunctions = Callable[[FloatArray, IntArray], FloatArray]


class PolynomialSpec(Typed):
    """(scale x.z + offset)^degree."""

    degree: Annotated[int, within(1)]
    offset: NotNegative = 1.0
    scale: Positive = 1.0


@final
@dataclass(frozen=True)
class Polynomial(Explicit):
    """(scale x.z + offset)^degree. In scikit-learn's words scale is gamma and offset is coef0."""

    degree: int
    offset: float
    scale: float

    def __init__(self, degree: int, *, offset: float = 1.0, scale: float = 1.0) -> None:
        if isinstance(degree, bool) or not isinstance(degree, int | np.integer) or degree < 1:
            raise InputError(f"degree must be a whole number of at least 1, not {degree!r}")
        for name, value, least in (("offset", offset, "zero or a positive"), ("scale", scale, "a positive")):
            good = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not good or not 0 <= value < math.inf or (value == 0 and name == "scale"):
                raise InputError(f"{name} must be {least} finite number, not {value!r}")
        if degree > MOST_DEGREE or not max(scale, offset, 1.0) < 10.0 ** (300 / degree) / 2:
            raise InputError(
                f"degree {degree}, offset {offset!r} and scale {scale!r} make numbers beyond float64; use a degree of "
                f"at most {MOST_DEGREE}, and an offset and a scale near 1"
            )
        object.__setattr__(self, "degree", int(degree))
        object.__setattr__(self, "offset", float(offset))
        object.__setattr__(self, "scale", float(scale))

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        values: FloatArray = (self.scale * (X @ Z.T) + self.offset) ** self.degree
        return values

    def config(self) -> dict[str, Any]:
        return {"type": "polynomial", "degree": self.degree, "offset": self.offset, "scale": self.scale}


@final
@dataclass(frozen=True)
class Sines:
    """A named system on [0, 1]: eigenvalues 1 / (t_j pi)^2, functions sqrt(2) sin(t_j pi x), t_j = j + 1 - shift.

    j counts from zero. shift = 1/2 is Brownian motion, min(x, z); shift = 0 the bridge, min(x, z) - x z.
    """

    name: str
    shift: float

    def eigenvalues(self, count: int) -> FloatArray:
        return np.asarray(((np.arange(1, count + 1) - self.shift) * math.pi) ** -2.0, dtype=np.float64)

    def __call__(self, X: FloatArray, indices: IntArray) -> FloatArray:
        self.check(X.shape[1])
        low, high = float(np.min(X, initial=0.0)), float(np.max(X, initial=1.0))
        if low < 0 or high > 1:
            raise InputError(f"the inputs of Mercer '{self.name}' lie in [0, 1], but run from {low:g} to {high:g}")
        values: FloatArray = math.sqrt(2.0) * np.sin(X * ((indices + 1 - self.shift) * math.pi))
        return values

    def check(self, d: int) -> None:
        if d != 1:
            raise InputError(f"Mercer '{self.name}' takes one input column in [0, 1], not {d}; choose one")


# The systems that a job may name.
SYSTEMS = {system.name: system for system in (Sines("brownian", 0.5), Sines("bridge", 0.0))}


class MercerSpec(Typed):
    """The first `count` eigenpairs of a system with a name; one input in [0, 1]."""

    system: Annotated[str, OneOf(*SYSTEMS)]
    count: Annotated[int, within(1)] = 1000


@final
@dataclass(frozen=True)
class Mercer(Explicit):
    """sum_j eigenvalue_j phi_j(x) phi_j(z) over L eigenpairs (Mercer's theorem; Oono, section 6.3).

    `eigenfunctions` is a Python function (X (n, d), indices (s,)) -> (n, s) of the wanted functions, counted from
    zero, or the name of a system: brownian (min(x, z) on [0, 1]) or bridge (min(x, z) - x z), cut after L pairs.
    `Mercer.named(name, count)` fills in a system's eigenvalues. Only named systems can be stored.
    """

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
        object.__setattr__(self, "eigenvalues", tuple(values.tolist()))
        object.__setattr__(self, "eigenfunctions", eigenfunctions)

    @classmethod
    def named(cls, system: str, count: int) -> Mercer:
        """The first `count` eigenpairs of a named system."""
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= MOST_PAIRS:
            raise InputError(f"count must be a whole number from 1 to {MOST_PAIRS}, not {count!r}")
        return cls(SYSTEMS[system].eigenvalues(count) if system in SYSTEMS else (1.0,), system)

    def functions(self, X: FloatArray, indices: IntArray) -> FloatArray:
        """Eigenfunctions number `indices` (s,), counted from zero, at X (n, d): (n, s)."""
        found = np.asarray(self.eigenfunctions(X, indices), dtype=np.float64)
        if found.shape != (len(X), len(indices)):
            raise InputError(
                f"eigenfunctions must give one row an input and one column an index, {(len(X), len(indices))}; "
                f"got shape {found.shape}"
            )
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

    def config(self) -> dict[str, Any]:
        system, count = self.eigenfunctions, len(self.eigenvalues)
        if not isinstance(system, Sines) or self.eigenvalues != tuple(system.eigenvalues(count).tolist()):
            raise InputError(
                f"a Mercer kernel of Python functions cannot be stored; use Mercer.named with {' or '.join(SYSTEMS)}"
            )
        return {"type": "mercer", "system": system.name, "count": count}
