"""The pieces of a problem: its linear systems, and the sums about its rows that go into no system."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dorff.moments import BoolArray, FloatArray

IntArray = npt.NDArray[np.int64]
EPS: Final = float(np.finfo(np.float64).eps)
# LAPACK counts in 32 bits: a matrix of k columns has k^2 numbers, and dsyevd's workspace 1 + 6 k + 2 k^2.
LARGEST_DIRECT: Final = 46_340
LARGEST_EVD: Final = 32_766


@final
@dataclass(frozen=True, eq=False)
class Block:
    """(G (x) diag(a) + l ridge I) x = rhs with G (k, k), a (c,), rhs (k, c): a system that touches no other one.

    `at` says where x goes in h (m, r): the indices of the rows of a general system (c = 1), or the columns that
    x rotation^T fills. `columns` (c,) says which of the problem's `directions` each column of x is about. `known`
    and `turned` are the spectrum and V^T rhs where they come from elsewhere; `squared` is False where that was the
    features' own singular values, so that nothing lost digits by being squared. `removed` bounds the largest
    eigenvalue of what centring took off G: sums were rounded with that still in them.
    """

    G: FloatArray
    a: FloatArray
    rhs: FloatArray
    at: Any
    rotation: FloatArray | None = None
    columns: IntArray | None = None
    known: tuple[FloatArray, FloatArray] | None = None
    turned: FloatArray | None = None
    squared: bool = True
    removed: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether one Cholesky factor serves all columns at one ridge, and nothing better is known already."""
        return self.known is None and bool(np.ptp(self.a) <= 1e-14 * float(np.max(self.a)))

    @property
    def floor(self) -> float:
        """Of the largest eigenvalue: those below are rounding."""
        rounding = EPS * len(self.rhs)
        return rounding if self.squared else rounding**2

    @cached_property
    def spectrum(self) -> tuple[FloatArray, FloatArray]:
        """Eigenvalues (k,) and vectors (k, k) of G, or `known`; those that rounding made negative count as zero."""
        if self.known is not None:
            return self.known
        driver = "evd" if len(self.G) <= LARGEST_EVD else "evr"
        values, vectors = scipy.linalg.eigh(self.G, driver=driver)
        return np.maximum(values, 0.0), vectors

    @cached_property
    def rotated(self) -> FloatArray:
        """V^T rhs (k, c), V the eigenvectors of G."""
        return self.spectrum[1].T @ self.rhs if self.turned is None else self.turned

    def place(self, h: FloatArray, x: FloatArray) -> None:
        """Write x (k, c) to where it belongs in h (m, r)."""
        if self.rotation is None:
            h[self.at] = x[:, 0]
        else:
            h[:, self.at] = x @ self.rotation.T


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Sums over the rows that have the same targets: features s (m,), scaled targets y (q,) and products of these
    (q, q), about `y0`; the rows' summed weight n and their number; which targets they have."""

    s: FloatArray
    y: FloatArray
    squares: FloatArray
    n: float
    count: int
    y0: FloatArray
    mask: BoolArray


@final
@dataclass(frozen=True, eq=False)
class Totals:
    """Of each direction of the scaled targets (J,), or of all together (J = 1): their squares about what the
    intercept alone takes (`energy`), and as they were summed, or more (`squares`); the entries observed, their summed
    weight, the intercept's degrees of freedom, and the log determinant of its own system."""

    energy: FloatArray
    squares: FloatArray
    entries: FloatArray
    weight: FloatArray
    spent: FloatArray
    log_free: FloatArray
