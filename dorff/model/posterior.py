"""Posterior: how far the coefficients of a fit may lie from their mean, and what that makes of its values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.features.base import check_array

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]

STEP_BYTES: Final = 2**25  # working memory of an evaluation, beside its result; one row's share where that is more


@dataclass(frozen=True, eq=False)
class PosteriorBlock(ABC):
    """Coefficients x (k, c) whose columns are independent, Gaussian, with covariances `variance`_j basis
    diag(spread_j) basis^T; x has the units of h, those of the scaled targets. `basis` is (k, k'), `spread` (k', c), or
    (k', 1) where it is the same for every column, and `variance` (c,): the noise variances of the scaled targets. For
    the Bayesian linear model h ~ N(0, s2 / (l ridge) I) with noise s2, basis diag(spread_j) basis^T is the inverse of
    the system that gave x_j (Rasmussen & Williams 2006, eq. 2.8). A spread (k', c, c) is of columns that hang
    together, by noise of other variances in each target: covariances along each column of the basis; variance 1."""

    basis: FloatArray
    spread: FloatArray
    variance: FloatArray

    #: What names of arrays call the kind of block; those it has beside these three, and their shapes in letters.
    kind: ClassVar[str]
    shapes: ClassVar[Mapping[str, str]]

    @abstractmethod
    def along(self, F: FloatArray, C: FloatArray | None = None) -> FloatArray:
        """(n, ..., k'): what features F (n, m) have along the basis, for every spread; with C (q, p) those of C f."""

    @abstractmethod
    def covariance(self, along: FloatArray, C: FloatArray | None = None) -> FloatArray:
        """(n, p, p): covariances of what it adds to f, of rows by their `along`; with C to C f, (n, q, q)."""

    @abstractmethod
    def variances(self, along: FloatArray, C: FloatArray | None = None) -> FloatArray:
        """(n, p), or (n, q): the diagonals of `covariance`."""

    @abstractmethod
    def root(self, output: int, m: int, some: slice) -> FloatArray:
        """Columns of T (m + 1, k'): an output's variance is the squared length of [F | 1] T."""

    @abstractmethod
    def place(self, x: FloatArray, h: FloatArray, b: FloatArray) -> None:
        """Add deviations x (count, k, c) to coefficients h (count, m, r), and b (count, p) in target units."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Working memory that one row of an evaluation needs."""

    def drawn(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Deviations (count, k, c) from the mean."""
        normal = rng.standard_normal((count, self.basis.shape[1], len(self.variance)))
        if self.spread.ndim == 3:
            return np.asarray(self.basis @ np.einsum("kij,nkj->nki", np.linalg.cholesky(self.spread), normal))
        return np.asarray(self.basis @ (normal * np.sqrt(self.spread) * np.sqrt(self.variance)))


@dataclass(frozen=True, eq=False)
class SeparableBlock(PosteriorBlock):
    """Columns that see the same features phi = gain F(x) - centre, (m,): f gets sum_j (phi . x_j) loading_j. `gain`
    and `centre` are (m,): the weights' gain, and the weighted mean of gain F over the rows (zeros where there is no
    intercept). `loading` (c, p): rotation^T root times the targets' scale. h += x @ `into` (c, r)."""

    gain: FloatArray
    centre: FloatArray
    loading: FloatArray
    into: FloatArray

    kind: ClassVar[str] = "separable"
    shapes: ClassVar[Mapping[str, str]] = {"gain": "m", "centre": "m", "loading": "cp", "into": "cr"}

    def along(self, F: FloatArray, C: FloatArray | None = None) -> FloatArray:
        """(n, k'): squares."""
        projected = (F * self.gain - self.centre) @ self.basis
        return np.square(projected, out=projected)

    def covariance(self, along: FloatArray, C: FloatArray | None = None) -> FloatArray:
        L = self.loading if C is None else self.loading @ C.T
        if self.spread.ndim == 3:
            return np.asarray(np.tensordot(along, L.T @ self.spread @ L, 1))
        return np.asarray(np.einsum("nj,jp,jq->npq", along @ self.spread * self.variance, L, L, optimize=True))

    def variances(self, along: FloatArray, C: FloatArray | None = None) -> FloatArray:
        L = self.loading if C is None else self.loading @ C.T
        if self.spread.ndim == 3:
            return np.asarray(along @ np.einsum("kij,ip,jp->kp", self.spread, L, L, optimize=True))
        return np.asarray((along @ self.spread * self.variance) @ L**2)

    def root(self, output: int, m: int, some: slice) -> FloatArray:
        L, basis, spread = self.loading[:, output], self.basis[:, some], self.spread[some]
        d = np.einsum("kij,i,j->k", spread, L, L) if spread.ndim == 3 else (spread * self.variance) @ L**2
        return np.vstack([self.gain[:, None] * basis, -self.centre @ basis]) * np.sqrt(d)

    def place(self, x: FloatArray, h: FloatArray, b: FloatArray) -> None:
        h += x @ self.into
        b -= np.einsum("k,nkj->nj", self.centre, x) @ self.loading

    @property
    def row_bytes(self) -> int:
        (k, kept), (c, p) = self.basis.shape, self.loading.shape
        return int(8 * (2 * k + kept + c * (1 + p)))


@dataclass(frozen=True, eq=False)
class CoupledBlock(PosteriorBlock):
    """One system for all outputs: f gets Phi^T x, where row a of Phi (k, p) is F_feature[a](x) loading_a - centre_a.
    `feature` (k,) names a column of F and `row` (k,) a row of psi: x goes to h[feature, row]. `loading` (k, p) is gain
    psi there, in the targets' units; `centre` (k, p) what an intercept takes of Phi, else zeros. c = 1."""

    feature: IntArray
    row: IntArray
    loading: FloatArray
    centre: FloatArray

    kind: ClassVar[str] = "coupled"
    shapes: ClassVar[Mapping[str, str]] = {"feature": "k", "row": "k", "loading": "kp", "centre": "kp"}

    def along(self, F: FloatArray, C: FloatArray | None = None) -> FloatArray:
        """(n, p, k'): Phi^T basis; with C (n, q, k') of C Phi^T."""
        loading, centre = (one if C is None else one @ C.T for one in (self.loading, self.centre))
        n, p = len(F), loading.shape[1]
        phi = F[:, None, self.feature] * loading.T
        phi -= centre.T
        return np.asarray((phi.reshape(n * p, -1) @ self.basis).reshape(n, p, -1))

    def covariance(self, along: FloatArray, C: FloatArray | None = None) -> FloatArray:
        projected = along * np.sqrt(self.spread[:, 0] * self.variance[0])
        return np.asarray(projected @ projected.transpose(0, 2, 1))

    def variances(self, along: FloatArray, C: FloatArray | None = None) -> FloatArray:
        return np.asarray(along**2 @ (self.spread[:, 0] * self.variance[0]))

    def root(self, output: int, m: int, some: slice) -> FloatArray:
        basis = self.basis[:, some] * np.sqrt(self.spread[some, 0] * self.variance[0])
        T = np.zeros((m + 1, basis.shape[1]))
        for row in np.unique(self.row):  # in which a feature is once
            at = self.row == row
            T[self.feature[at]] += self.loading[at, output, None] * basis[at]
        T[m] = -self.centre[:, output] @ basis
        return T

    def place(self, x: FloatArray, h: FloatArray, b: FloatArray) -> None:
        h[:, self.feature, self.row] += x[:, :, 0]
        b -= x[:, :, 0] @ self.centre

    @property
    def row_bytes(self) -> int:
        (k, kept), p = self.basis.shape, self.loading.shape[1]
        return int(8 * p * (2 * k + kept))


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian posterior of f = Phi(x)* h + b, whose mean is the model.

    The blocks and the intercept are independent. Rows are evaluated in batches: an evaluation needs
    at most `STEP_BYTES` of memory, or the memory of one row, besides its arguments and its result.

    Attributes
    ----------
    blocks : tuple of PosteriorBlock
        Independent parts of the coefficients.
    intercept_covariance : ndarray of shape (p, p)
        Covariance of f where the blocks' features are at their centres, in the targets' units;
        zeros without an intercept.
    noise : ndarray of shape (q, q)
        Noise covariance of the targets C f for a row of mean weight, in the targets' units.
    prior : ndarray of shape (p, p) or None
        Prior covariance of f where k(x, x) = 1, for features that do not represent all of k(x, x),
        such as those of landmarks. (k(x, x) - |F(x)|^2) `prior` is added to covariances (the DTC
        approximation of Quinonero Candela & Rasmussen 2005, eq. 20b). Samples of functions do not
        have it.
    unexplained : ndarray of shape (p, p) or None
        Covariance that is added at every x: of the part of the kernel that a lattice omits, or of
        f by the draw of random features. Samples of functions do not have it.
    freedom : float or None
        Degrees of freedom nu that the noise is estimated with; None for a given noise. All
        variances, except those by the draw of random features, are then nu / (nu - 2) times those
        for a given noise (`inflated`).
    """

    blocks: tuple[PosteriorBlock, ...]
    intercept_covariance: FloatArray
    noise: FloatArray
    prior: FloatArray | None = None
    unexplained: FloatArray | None = None
    freedom: float | None = None

    @property
    def factor(self) -> float:
        """Ratio nu / (nu - 2) of the variances to those for a given noise; 1 for a given noise."""
        return 1.0 if self.freedom is None else self.freedom / (self.freedom - 2.0)

    def inflated(self, freedom: float) -> "Posterior":
        """Return the posterior for a noise that is estimated with some degrees of freedom.

        f then has a t distribution, whose variances are nu / (nu - 2) times those for a given
        noise (Gelman et al. 2013, Bayesian Data Analysis, section 14.2).

        Parameters
        ----------
        freedom : float
            Degrees of freedom nu, more than 2.
        """
        factor = freedom / (freedom - 2.0)
        return replace(
            self,
            blocks=tuple(replace(block, spread=factor * block.spread) for block in self.blocks),
            intercept_covariance=factor * self.intercept_covariance,
            noise=factor * self.noise,
            prior=None if self.prior is None else factor * self.prior,
            unexplained=None if self.unexplained is None else factor * self.unexplained,
            freedom=freedom,
        )

    @property
    def p(self) -> int:
        return len(self.intercept_covariance)

    @property
    def step(self) -> int:
        """Rows that are evaluated at a time."""
        row_bytes = max((block.row_bytes for block in self.blocks), default=0) + 8 * self.p**2
        return max(1, STEP_BYTES // row_bytes)

    def covariance(
        self,
        F: FloatArray,
        C: FloatArray | None = None,
        diagonal: FloatArray | None = None,
    ) -> FloatArray:
        """Return the covariances of the outputs of f, without noise.

        Parameters
        ----------
        F : ndarray of shape (n, m)
            Features of the rows.
        C : ndarray of shape (q, p), optional
            Returns covariances of C f (default: of f).
        diagonal : ndarray of shape (n,), optional
            k(x, x) of the rows (default: 1).

        Returns
        -------
        ndarray of shape (n, p, p) or (n, q, q)
        """
        values = self._summed(
            F,
            _observed_covariance(C, self.intercept_covariance),
            lambda block, F: block.covariance(block.along(F, C), C),
        )
        if self.prior is not None:
            omitted = _omitted_diagonal(F, diagonal)
            values += omitted[:, None, None] * _observed_covariance(C, self.prior)
        if self.unexplained is None:
            return values
        return values + _observed_covariance(C, self.unexplained)

    def variance(
        self,
        F: FloatArray,
        C: FloatArray | None = None,
        diagonal: FloatArray | None = None,
    ) -> FloatArray:
        """Return the variances of the outputs of f, without noise.

        Parameters
        ----------
        F : ndarray of shape (n, m)
            Features of the rows.
        C : ndarray of shape (q, p), optional
            Returns variances of C f (default: of f).
        diagonal : ndarray of shape (n,), optional
            k(x, x) of the rows (default: 1).

        Returns
        -------
        ndarray of shape (n, p) or (n, q)
        """
        values = self._summed(
            F,
            np.diag(_observed_covariance(C, self.intercept_covariance)),
            lambda block, F: block.variances(block.along(F, C), C),
        )
        if self.prior is not None:
            omitted = _omitted_diagonal(F, diagonal)
            values += omitted[:, None] * np.diag(_observed_covariance(C, self.prior))
        if self.unexplained is None:
            return values
        return values + np.diag(_observed_covariance(C, self.unexplained))

    def roots(self, output: int, m: int, most: int) -> Iterator[FloatArray]:
        """T (m + 1, n), n at most `most`: an output's variance is the sum of all squared lengths of [F | 1] T."""
        for block in self.blocks:
            for start in range(0, block.basis.shape[1], most):
                yield block.root(output, m, slice(start, start + most))
        yield np.append(np.zeros(m), np.sqrt(max(self.intercept_covariance[output, output], 0.0)))[:, None]

    def _summed(
        self,
        F: FloatArray,
        intercept: FloatArray,
        evaluate: Callable[[PosteriorBlock, FloatArray], FloatArray],
    ) -> FloatArray:
        """Return the sum of the intercept's part and of all blocks', in batches of rows."""
        total = np.broadcast_to(intercept, (len(F), *intercept.shape)).copy()
        for start in range(0, len(F), self.step):
            rows = slice(start, start + self.step)
            for block in self.blocks:
                total[rows] += evaluate(block, F[rows])
        return total

    def draw(self, rng: np.random.Generator, count: int, shape: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
        """`count` deviations from the mean: of coefficients (count, m, r), `shape` being (m, r), in scaled units, and
        of intercepts (count, p), in the targets' units. Each pair is one whole function."""
        h = np.zeros((count, *shape))
        values, vectors = np.linalg.eigh(self.intercept_covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        b: FloatArray = rng.standard_normal((count, self.p)) @ root.T
        for block in self.blocks:
            block.place(block.drawn(rng, count), h, b)
        return h, b

    def arrays(self) -> dict[str, AnyArray]:
        """Return the arrays by the names that `of_arrays` reads."""
        named: dict[str, AnyArray] = {
            "posterior_intercept": self.intercept_covariance,
            "posterior_noise": self.noise,
        }
        if self.prior is not None:
            named["posterior_prior"] = self.prior
        if self.unexplained is not None:
            named["posterior_unexplained"] = self.unexplained
        if self.freedom is not None:
            named["posterior_freedom"] = np.array([self.freedom])
        for number, block in enumerate(self.blocks):
            for block_field in fields(block):
                name = f"posterior_{number}_{block.kind}_{block_field.name}"
                named[name] = getattr(block, block_field.name)
        return named

    @classmethod
    def of_arrays(
        cls,
        arrays: Mapping[str, AnyArray],
        shape: tuple[int, int, int],
        q: int,
    ) -> "Posterior | None":
        """Return the posterior among the arrays of a model; None if there is none.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            `arrays()`, among others.
        shape : tuple of int
            Shape (m, r, p) of the model's weights.
        q : int
            Number of targets.

        Raises
        ------
        InputError
            If an array has the wrong shape or type, or negative variances.
        """
        if "posterior_noise" not in arrays:
            return None
        blocks: list[PosteriorBlock] = []
        while block := _block(arrays, f"posterior_{len(blocks)}_", shape):
            blocks.append(block)

        sizes = {"posterior_intercept": shape[2], "posterior_noise": q}
        for name in ("posterior_prior", "posterior_unexplained"):
            if name in arrays:
                sizes[name] = shape[2]
        for name, size in sizes.items():
            check_array(name, arrays.get(name), (size, size))
            if np.any(np.diag(arrays[name]) < 0):
                raise InputError(f"array {name} has variances below 0")

        return cls(
            blocks=tuple(blocks),
            intercept_covariance=arrays["posterior_intercept"],
            noise=arrays["posterior_noise"],
            prior=arrays.get("posterior_prior"),
            unexplained=arrays.get("posterior_unexplained"),
            freedom=_noise_freedom(arrays),
        )


def _noise_freedom(arrays: Mapping[str, AnyArray]) -> float | None:
    """Return the degrees of freedom of the noise; None if the model was saved without them."""
    if "posterior_freedom" not in arrays:
        return None
    check_array("posterior_freedom", arrays["posterior_freedom"], (1,))
    freedom = float(arrays["posterior_freedom"][0])
    if freedom <= 2.0:
        raise InputError(f"array posterior_freedom should be more than 2, got {freedom:g}")
    return freedom


def _omitted_diagonal(F: FloatArray, diagonal: FloatArray | None) -> FloatArray:
    """Return k(x, x) - |F(x)|^2 (n,), the part of k(x, x) that features do not represent."""
    total = 1.0 if diagonal is None else diagonal
    return np.asarray(np.maximum(total - np.einsum("ij,ij->i", F, F), 0.0))


def _observed_covariance(C: FloatArray | None, covariance: FloatArray) -> FloatArray:
    """Return the covariance of C f, from that of f."""
    return covariance if C is None else C @ covariance @ C.T


def _block(arrays: Mapping[str, AnyArray], prefix: str, shape: tuple[int, int, int]) -> PosteriorBlock | None:
    """The block whose arrays' names begin with `prefix`; None where there is none."""
    kind: type[SeparableBlock | CoupledBlock]
    for kind in (SeparableBlock, CoupledBlock):
        full = f"{prefix}{kind.kind}_"
        if full + "basis" not in arrays:
            continue
        own = {name: arrays.get(full + name) for name in (*kind.shapes, "basis", "spread", "variance")}
        (k, kept), c = _shape(own["basis"], 2), _shape(own["variance"], 1)[0]
        sizes = dict(zip("mrp", shape, strict=True)) | {"k": k, "c": c}
        apart = np.shape(arrays.get(full + "spread", 0.0))[1:]
        shapes = {name: tuple(sizes[letter] for letter in letters) for name, letters in kind.shapes.items()}
        shapes |= {"basis": (k, kept), "variance": (c,)}
        shapes["spread"] = (kept, *(apart if apart in ((c,), (c, c)) else (1,)))
        for name, value in own.items():
            check_array(full + name, value, shapes[name], np.int64 if name in ("feature", "row") else np.float64)
        block = kind(**{part.name: arrays[full + part.name] for part in fields(kind)})
        if not _within(block, sizes):
            raise InputError(f"the arrays {full}... do not fit the model")
        return block
    return None


def _shape(value: AnyArray | None, dimensions: int) -> tuple[int, ...]:
    """An array's own shape; zeros where it has not so many dimensions."""
    return np.shape(value) if value is not None and value.ndim == dimensions else (0,) * dimensions


def _within(block: SeparableBlock | CoupledBlock, sizes: Mapping[str, int]) -> bool:
    """Whether a block speaks of features and rows of psi that are there, and its variances are none below 0."""
    spread = np.einsum("kjj->kj", block.spread) if block.spread.ndim == 3 else block.spread
    if np.any(block.variance < 0) or np.any(spread < 0):
        return False
    if isinstance(block, SeparableBlock):
        return sizes["k"] == sizes["m"]
    places = ((block.feature, sizes["m"]), (block.row, sizes["r"]))
    return sizes["c"] == 1 and all(bool(np.all((at >= 0) & (at < size))) for at, size in places)
