"""Output matrices: the symmetric positive semi-definite A (p, p) of a decomposable kernel k0 A."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.spec.kernel import FactorOutput, GraphOutput, LearnedOutputSpec, MatrixOutput
from dorff.spec.part import Part
from dorff.spec.registry import OUTPUTS, Config, Entry

_EPS = float(np.finfo(np.float64).eps)


class Output(ABC):
    """How the p outputs of k0 A are coupled. What A costs is its rank, which is `len(root(p))`."""

    kind: ClassVar[str]  #: its word in JOB.yaml, where that says it all
    p: int | None = None  #: the number of outputs A is for; None where A takes its size, or itself, from the data

    @abstractmethod
    def root(self, p: int) -> FloatArray:
        """B^T (r, p) with A = B B^T and r the numerical rank of A: no row for an eigenvalue at rounding level."""

    def fixed(self, p: int, covariance: FloatArray | None = None) -> "Output":
        """The same A with its numbers written out (`p` is then set); InputError where they cannot be known.
        `covariance` (p, p) is that of the targets, where it is known."""
        self.check(p)
        return self

    def trace(self, p: int) -> float:
        """tr A, or p where A is not known before the data: any positive share of the frequencies will do."""
        return float(p)

    def config(self) -> Any:
        """What `output:` of JOB.yaml says: a name, or a mapping."""
        return self.kind

    @final
    def check(self, p: int) -> None:
        """Does nothing if A can have p outputs, else raises the InputError that says why not."""
        if self.p not in (None, p):
            remedy = f"give a matrix of {p} rows"
            raise InputError(f"the output matrix is {self.p} x {self.p} but there are {p} outputs; {remedy}")

    def matrix(self, p: int) -> FloatArray:
        root = self.root(p)
        return root.T @ root


@dataclass(frozen=True)
class Identity(Output):
    """A = I: independent outputs."""

    kind = "identity"

    def root(self, p: int) -> FloatArray:
        return np.eye(p)

    def fixed(self, p: int, covariance: FloatArray | None = None) -> Output:
        return Matrix(np.eye(p))


@dataclass(frozen=True)
class Covariance(Output):
    """A is the targets' empirical covariance, known once the moments are."""

    kind = "covariance"

    def root(self, p: int) -> FloatArray:
        return self.fixed(p).root(p)

    def fixed(self, p: int, covariance: FloatArray | None = None) -> Output:
        if covariance is None:
            raise InputError("output 'covariance' needs the targets' covariance, which only a fit knows")
        if covariance.shape != (p, p):
            n, remedy = len(covariance), "use identity or a matrix where the outputs are not the targets"
            problem = f"the targets' covariance is {n} x {n} but there are {p} outputs"
            raise InputError(f"output 'covariance': {problem}; {remedy}")
        if not np.any(covariance):
            raise InputError("output 'covariance': the targets do not vary, so their covariance is zero")
        return Matrix(covariance)


@dataclass(frozen=True)
class Simplex(Output):
    """The simplex coding of p classes (Mroueh et al. 2012): A = B^T B on one-hot targets, of rank p - 1. B (p-1, p)
    has the codes as its columns: unit vectors with inner products -1/(p-1). The recursion is Brault (2016), 5.2, with
    its u put right (-1/p, in R^p, for the printed -p^-2, in R^(p-1)), and A is B^T B: the printed B B^T is a multiple
    of I in R^(p-1)."""

    kind = "simplex"

    def root(self, p: int) -> FloatArray:
        if p < 2:
            raise InputError(f"output 'simplex' needs two classes or more, got p = {p}; use identity for one output")
        codes = np.array([[1.0, -1.0]])
        for k in range(2, p):
            below = np.column_stack([np.zeros(k - 1), np.sqrt(1.0 - k**-2) * codes])
            codes = np.vstack([np.append(1.0, np.full(k, -1.0 / k)), below])
        return codes

    def fixed(self, p: int, covariance: FloatArray | None = None) -> Output:
        return Factor(self.root(p).T)


@dataclass(frozen=True)
class Learned(Output):
    """A is learned from the moments, tr A = p ("trace") or |A|_F^2 = p ("frobenius"), together with the weights. Only
    a fit does that (`dorff.solvers.outputs`). Until then A has no values; features are those of the identity."""

    penalty: str = "trace"
    p: int | None = None

    def __post_init__(self) -> None:
        if self.penalty not in ("trace", "frobenius"):
            raise InputError(f"the penalty of a learned output must be 'trace' or 'frobenius', not {self.penalty!r}")

    def root(self, p: int) -> FloatArray:
        self.check(p)
        return np.eye(p)

    def matrix(self, p: int) -> FloatArray:
        raise InputError("output 'learned': A has no values before a fit from moments; fit first, or give a matrix")

    def fixed(self, p: int, covariance: FloatArray | None = None) -> Output:
        self.check(p)
        return Learned(self.penalty, p)

    def config(self) -> Any:
        return "learned" if self.penalty == "trace" else {"learned": self.penalty}


@dataclass(frozen=True, eq=False)
class Matrix(Output):
    """A given, symmetric and positive semi-definite (p, p)."""

    A: FloatArray

    def __init__(self, A: npt.ArrayLike) -> None:
        matrix = _symmetric(A, "the output matrix")
        scale = float(np.abs(matrix).max())
        smallest = float(np.linalg.eigvalsh(matrix)[0]) if scale > 0 else 0.0
        if smallest < -1e-10 * scale or scale == 0:
            problem = f"its smallest eigenvalue is {smallest:.3g}"
            raise InputError(f"the output matrix must be positive semi-definite and not zero; {problem}")
        vars(self).update(A=matrix, p=len(matrix))

    def root(self, p: int) -> FloatArray:
        self.check(p)
        values, vectors = np.linalg.eigh(self.A)
        keep = values > values[-1] * p * _EPS
        return np.asarray(np.sqrt(values[keep])[:, None] * vectors[:, keep].T)

    def matrix(self, p: int) -> FloatArray:
        self.check(p)
        return self.A

    def trace(self, p: int) -> float:
        return float(np.trace(self.A))

    def config(self) -> Config:
        return {"matrix": self.A.tolist()}


@dataclass(frozen=True, eq=False)
class Factor(Output):
    """A = B B^T, of B (p, r): the outputs are B times r latent functions (linear coregionalisation)."""

    B: FloatArray

    def __init__(self, B: npt.ArrayLike) -> None:
        factor = _numbers(B, "the factor of the output matrix")
        if not np.any(factor):
            raise InputError("the factor of the output matrix must not be zero")
        vars(self).update(B=factor, p=len(factor))

    def root(self, p: int) -> FloatArray:
        """B^T itself where its rows are independent, otherwise fewer rows with the same B B^T."""
        self.check(p)
        U, s, _ = np.linalg.svd(self.B, full_matrices=False)
        keep = s > s[0] * max(self.B.shape) * _EPS
        root: FloatArray = self.B.T if keep.sum() == self.B.shape[1] else (U[:, keep] * s[keep]).T
        return root.copy()

    def trace(self, p: int) -> float:
        return float(np.sum(self.B**2))

    def config(self) -> Config:
        return {"factor": self.B.tolist()}


@dataclass(frozen=True, eq=False)
class Graph(Output):
    """A = pinv(L + offset I), L = diag(W 1) - W the Laplacian of a graph of outputs (Evgeniou et al. 2005). The
    penalty is then sum_jk W_jk |f_j - f_k|^2 / 2 + offset sum_j |f_j|^2. `weights` W (p, p) is symmetric and not
    negative, its diagonal idle. With offset 0 a connected component's outputs sum to zero, but for intercepts."""

    weights: FloatArray
    offset: float

    def __init__(self, weights: npt.ArrayLike, offset: float = 0.0) -> None:
        W = _symmetric(weights, "the weights of the output graph")
        if np.any(W < 0):
            raise InputError(f"the weights of the output graph must not be negative; the least is {W.min():.3g}")
        if not np.isfinite(offset) or offset < 0:
            raise InputError(f"the offset of the output graph must be zero or a positive number, not {offset!r}")
        if offset == 0 and not np.any(W - np.diag(np.diag(W))):
            raise InputError("the output graph has no edge and no offset, so its matrix is zero; give it either")
        vars(self).update(weights=W, offset=float(offset), p=len(W))

    def root(self, p: int) -> FloatArray:
        self.check(p)
        W = self.weights - np.diag(np.diag(self.weights))
        values, vectors = np.linalg.eigh(np.diag(W.sum(axis=1)) - W)
        # Below the rounding level of L its eigenvalues are zeros, to which the offset is added exactly.
        values = np.where(values > values[-1] * p * _EPS, values, 0.0) + self.offset
        keep = values > 0
        return np.asarray(vectors[:, keep].T / np.sqrt(values[keep])[:, None])

    def trace(self, p: int) -> float:
        return float(np.sum(self.root(p) ** 2))

    def config(self) -> Config:
        return {"graph": self.weights.tolist(), "offset": self.offset}


def _graph(graph: npt.ArrayLike, offset: float = 0.0) -> Graph:
    return Graph(graph, offset)


OUTPUTS.add(
    Entry("identity", Identity, Part),
    Entry("covariance", Covariance, Part),
    Entry("simplex", Simplex, Part, source="Mroueh et al. 2012"),
    Entry("matrix", lambda matrix: Matrix(matrix), MatrixOutput, written="{matrix: FILE}"),
    Entry("factor", lambda factor: Factor(factor), FactorOutput, written="{factor: FILE}"),
    Entry("graph", _graph, GraphOutput, source="Evgeniou et al. 2005", written="{graph: FILE, offset: 0.1}"),
    Entry("learned", lambda learned="trace": Learned(learned), LearnedOutputSpec, written="{learned: frobenius}"),
)


def as_output(value: Any) -> Output:
    """An output itself, one named or written as in JOB.yaml (`Output.config`), or a matrix; InputError otherwise."""
    if isinstance(value, Output):
        return value
    if not isinstance(value, str | Mapping):
        return Matrix(value)
    options = {} if isinstance(value, str) else dict(value)
    named = map(OUTPUTS.get, options or ([value] if isinstance(value, str) else []))
    entry = next((one for one in named if one is not None and (one.written or not options)), None)
    if entry is None or (not options and not entry.alone) or set(options) - set(entry.options.model_fields):
        names = ", ".join(repr(one.name) for one in OUTPUTS.entries() if one.alone)
        mapping = "a mapping with matrix, factor, graph (and offset) or learned"
        raise InputError(f"output must be one of {names}, a matrix, an Output, or {mapping}; not {value!r}")
    output = entry.build(**options)
    if not isinstance(output, Output):
        raise InputError(f"output: {entry.name} of another package builds no Output")
    return output


def _numbers(value: npt.ArrayLike, name: str, *, square: bool = False) -> FloatArray:
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a matrix of numbers, not {value!r}") from None
    shaped = matrix.ndim == 2 and matrix.size > 0 and (not square or len(matrix) == matrix.shape[1])
    if not shaped or not np.all(np.isfinite(matrix)):
        wanted = "square and finite" if square else "p rows of finite numbers"
        raise InputError(f"{name} must be {wanted}; got shape {matrix.shape}")
    return matrix


def _symmetric(value: npt.ArrayLike, name: str) -> FloatArray:
    matrix = _numbers(value, name, square=True)
    if np.abs(matrix - matrix.T).max() > 1e-10 * np.abs(matrix).max():
        raise InputError(f"{name} must be symmetric; use (A + A.T) / 2 if it should be")
    return (matrix + matrix.T) / 2
