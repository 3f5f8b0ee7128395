"""FeatureMap: a block of inputs in, a block of scalar features out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.frequencies.transforms import Arrays, finite
from dorff.kernels.scalar import FloatArray
from dorff.spec.registry import Config

Product = Callable[[FloatArray], FloatArray]
Roots = Callable[[int, int], Iterable[FloatArray]]


class ScalarMap(ABC):
    """phi: scaled inputs x (b, d) -> F (b, m), such that F(x) . F(z) estimates a scalar kernel k(x, z)."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def d(self) -> int:
        """Inputs."""

    @property
    @abstractmethod
    def m(self) -> int:
        """Columns of F."""

    @property
    def tile_rows(self) -> int:
        """The rows it works on at a time, so that what lies between x and F stays in cache."""
        return 256

    @property
    def work_columns(self) -> int:
        """Columns of `write`'s work space."""
        return 0

    @abstractmethod
    def write(self, x: FloatArray, out: FloatArray, work: FloatArray) -> None:
        """Write F of x (b, d), b at most `tile_rows`, into the first m columns of `out`; `work` (b, work_columns)."""

    @abstractmethod
    def config(self) -> Config:
        """What `arrays` does not say, as plain JSON; InputError where a Python function is part of the map."""

    @abstractmethod
    def arrays(self) -> Arrays:
        """The map's numbers, by name."""

    @abstractmethod
    def fits(self) -> bool:
        """Whether types, shapes and indices fit each other, and numbers are finite: they may come from a file."""

    @property
    def differentiable(self) -> bool:
        """Whether `jacobian` is to be had."""
        return False

    def jacobian(self, x: FloatArray, W: FloatArray) -> FloatArray:
        """d(F W)_i / dx_j, (b, p, d), for x (b, d) and W (m, p). InputError unless `differentiable`."""
        unknown = "a Python function, eigenfunctions, random Maclaurin features, spheres"
        problem = f"the kernel's features have no derivative (a step), or none that is known ({unknown})"
        raise InputError(f"jacobian: {problem}; use another kernel")

    def diagonal(self, x: FloatArray) -> FloatArray:
        """Return the kernel's exact k(x, x) (b,) for x (b, d)."""
        return np.ones(len(x))

    def product(self, W: FloatArray) -> Product | None:
        """A faster way to F(x) W, (b, p), for x (b, d) and W (m, p), than to make F, if there is one."""
        return None

    def square_numbers(self, count: int) -> int:
        """The numbers of a grid that `squares` makes, 0 where it gives nothing."""
        return 0

    def squares(self, roots: Roots, count: int) -> tuple[Product, FloatArray] | None:
        """A faster way to the squared lengths (b, count) of [F(x) | 1] T for all T (m + 1, n) that `roots` gives of
        each number below `count` and n at most, and how wrong its values are at most, (count,); if there is one."""
        return None

    def slopes(self, W: FloatArray) -> Product | None:
        """A faster way to `jacobian` of W, if there is one."""
        return None

    @final
    def transform(self, X: FloatArray) -> FloatArray:
        """F (n, m) for X (n, d), in new memory."""
        return FeatureMap(self, np.zeros(self.d), np.ones(self.d)).transform(X)

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        """The estimate of the kernel, (n, k), for X (n, d) and Z (k, d)."""
        return np.asarray(self.transform(X) @ self.transform(Z).T)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """F = phi((X - center) / scale). center and scale (d,), in the inputs' units. Where phi's kernel is
    shift-invariant centring moves no kernel value; it keeps the digits of projections good."""

    phi: ScalarMap
    center: FloatArray
    scale: FloatArray

    def __repr__(self) -> str:
        return f"FeatureMap(d={self.d}, m={self.m}, phi={type(self.phi).__name__})"

    @property
    def m(self) -> int:
        return self.phi.m

    @property
    def d(self) -> int:
        return self.phi.d

    def workspace(self, rows: int) -> tuple[FloatArray, FloatArray]:
        """Memory that a call for up to `rows` rows overwrites; calls at the same time need one each."""
        rows = max(1, min(rows, self.phi.tile_rows))
        return np.empty((rows, self.d)), np.empty((rows, self.phi.work_columns))

    def __call__(self, X: FloatArray, out: FloatArray, work: tuple[FloatArray, FloatArray]) -> None:
        """Write F for X (n, d) into the first m columns of `out` (n, >= m)."""
        scaled, projected = work
        for start in range(0, len(X), len(scaled)):
            rows = X[start : start + len(scaled)]
            x = np.subtract(rows, self.center, out=scaled[: len(rows)])
            x /= self.scale
            self.phi.write(x, out[start : start + len(rows)], projected[: len(rows)])

    def transform(self, X: FloatArray) -> FloatArray:
        """F (n, m) for X (n, d), in new memory. InputError when X has another number of columns."""
        inputs = np.ascontiguousarray(X, dtype=np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != self.d:
            raise InputError(f"X must be (rows, {self.d}), as the features were drawn for; got shape {inputs.shape}")
        out = np.empty((len(inputs), self.m))
        self(inputs, out, self.workspace(len(inputs)))
        return out


def check_array(
    name: str, value: npt.NDArray[Any] | None, shape: tuple[int, ...], dtype: type = np.float64, *, gaps: bool = False
) -> None:
    """InputError unless an array is there, of this shape and type, and finite but for `gaps`."""
    fits = value is not None and value.shape == shape and value.dtype == dtype
    if value is None or not fits or not (gaps or np.isfinite(value).all()):
        got = "nothing" if value is None else f"{value.dtype} of shape {value.shape}"
        raise InputError(f"array {name} should be {np.dtype(dtype)} of shape {shape}, and finite; got {got}")


def numbers(shape: tuple[int, ...], *arrays: npt.NDArray[Any]) -> bool:
    """Whether arrays are of this shape, float64 and finite."""
    return all(array.shape == shape for array in arrays) and finite(*arrays)
