"""Graphs of rows; and a manifold term: a graph, a Laplacian, a coupling of the outputs, and how much it weighs."""

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dorff.errors import InputError
from dorff.spec.data import GivenSpec, IdentitySpec, KnnSpec
from dorff.spec.registry import GRAPHS, Config, Entry, kind_of

FloatArray = npt.NDArray[np.float64]


class RowGraph(ABC):
    """A graph whose nodes are the rows, in their order. Names and numbers: what a job says, not the edges."""

    @abstractmethod
    def config(self) -> Config:
        """What `graph:` of JOB.yaml says, as plain JSON: complete, and the same in every process."""

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> "RowGraph":
        """The graph that such a `config` is of, or InputError."""
        entry = GRAPHS.get(one_of("graph.type", kind_of(config), GRAPHS.names))
        assert entry is not None  # it is one of the names
        options = {name: field for name, field in entry.options.model_fields.items() if name != "type"}
        refuse_unknown(config, ("type", *options), f"graph of type {entry.name}")
        for name, field in options.items():
            if field.is_required() and name not in config:
                raise InputError(f"graph.{name}: a graph of type {entry.name} needs the {name}; add it.")
        graph = entry.build(**{key: value for key, value in config.items() if key != "type"})
        if not isinstance(graph, KNN | Given | IdentityGraph):
            raise InputError(f"dorff.graphs {entry.name}: builds no graph of dorff.graphs; correct its package")
        return graph


@dataclass(frozen=True)
class KNN(RowGraph):
    """Each row is joined to its `neighbours` nearest others, by Euclidean distance of the scaled inputs. Lists are not
    mutual: W = (A + A^T) / 2, so that two rows that list each other have the edge's full weight, a row that is listed
    without listing back half of it. Ties go to the row that comes first. `weights`: "heat", exp(-|x - z|^2 / (s_x
    s_z)) with s the distance to a row's own last neighbour; "binary", 1; or a number t in the scaled inputs' units,
    exp(-|x - z|^2 / (2 t^2)). `within`: "data", neighbours anywhere among the rows, found by landmarks, and kept in an
    edge store; or "leaf", among the 4096 rows of one run of a leaf, exactly, and kept nowhere. `append`: what rows do
    that are appended to a graph over the data. "rebuild": the graph is made anew, because a new row may be nearer than
    those listed; "link": new rows list old and new ones, and the lists of old rows stay."""

    neighbours: int = 10
    weights: str | float = "heat"
    within: str = "data"
    append: str = "rebuild"

    def __post_init__(self) -> None:
        k, weights = self.neighbours, self.weights
        if not isinstance(k, Integral) or isinstance(k, bool) or k < 1:
            raise InputError(f"graph.neighbours: wanted a whole number of at least 1, got {k!r}; 5 to 20 is usual.")
        object.__setattr__(self, "neighbours", int(k))
        if isinstance(weights, Real) and not isinstance(weights, bool):
            object.__setattr__(self, "weights", float(weights))
            if not (math.isfinite(weights) and weights > 0):
                remedy = """give one in the scaled inputs' units, or "heat", which finds its own."""
                raise InputError(f"graph.weights: wanted a finite length above 0, got {weights!r}; {remedy}")
        elif weights not in ("heat", "binary"):
            raise InputError(f'graph.weights: wanted "heat", "binary" or a length, got {weights!r}; use one of them.')
        one_of("graph.within", self.within, ("data", "leaf"))
        one_of("graph.append", self.append, ("rebuild", "link"))
        if self.within == "leaf" and self.append == "link":
            problem = "graph.append: link is for a graph across leaves; inside a leaf new rows never change old edges"
            raise InputError(f"{problem}; leave it out")

    def config(self) -> Config:
        return {"type": "knn", **asdict(self)}


@dataclass(frozen=True, eq=False)
class Given(RowGraph):
    """The user's own graph: a scipy sparse or dense matrix of weights (n, n), or the path of one on disk. On disk it
    is a Zarr group or Parquet with the edges i, j and weights w, or in CSR form. See `checked`."""

    source: Any

    def __post_init__(self) -> None:
        if isinstance(self.source, str | os.PathLike):
            object.__setattr__(self, "source", os.fspath(self.source))
            return
        try:
            matrix = self.source if sp.issparse(self.source) else np.asarray(self.source)
        except ValueError:  # rows of several lengths
            matrix = np.empty(len(self.source), object)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.dtype.kind not in "biuf":
            came = f"{type(self.source).__name__} of shape {matrix.shape} and type {matrix.dtype}"
            wanted = "a square matrix of weights or the path of one"
            raise InputError(f"graph: wanted {wanted}, got {came}; give W (n, n), scipy sparse say.")
        object.__setattr__(self, "source", matrix)

    @property
    def path(self) -> str | None:
        """Where its edges lie; None for a matrix in memory."""
        return self.source if isinstance(self.source, str) else None

    def config(self) -> Config:
        """A matrix in memory is named by its size and a digest of its entries."""
        if self.path is not None:
            return {"type": "given", "path": self.path}
        W = sp.csr_array(self.source, copy=True)
        W.sum_duplicates()
        digest = hashlib.blake2b(digest_size=16)
        for part in (W.indptr.astype("<i8"), W.indices.astype("<i8"), W.data.astype("<f8")):
            digest.update(part.tobytes())
        return {"type": "given", "rows": W.shape[0], "entries": int(W.nnz), "digest": digest.hexdigest()}


@dataclass(frozen=True)
class IdentityGraph(RowGraph):
    """L = I: every row by itself, so that <f, M f> is the sum over all rows of f^T Q f; for between-view terms."""

    def config(self) -> Config:
        return {"type": "identity"}


GRAPHS.add(
    Entry("knn", KNN, KnnSpec, source="Zelnik-Manor & Perona 2004"),
    Entry("given", lambda path: Given(path), GivenSpec),
    Entry("identity", IdentityGraph, IdentitySpec),
)


def refuse_unknown(config: Mapping[str, Any], names: Collection[str], what: str) -> None:
    """InputError at a key that is not one of the names."""
    for key in config:
        if key not in names:
            raise InputError(f"{key}: is not known to a {what}; use {', '.join(names)}.")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """The value; InputError unless it is one of the words."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name}: wanted one of {', '.join(allowed)}, got {value!r}; use one of them.")
    return value


@dataclass(frozen=True, eq=False)
class Manifold:
    """weight <f, M f> with M = L^power (x) Q, added to the mean loss of the labelled rows (Minh 2016, eq. 67).

    `weight` is a number, or several to choose from. `outputs` is Q (p, p), symmetric and positive semi-definite, the
    identity where None. `view` restricts the term to one view of a multi-view kernel (its name or number: the
    distances and features are that view's); `between` makes it the term that has views agree, of the identity graph.

    `laplacian`: "unnormalised", D - W, or "normalised", I - D^-1/2 W D^-1/2. `power` is 1 or even: L^2j is
    (L^j F)^T (L^j F), positive whatever rounding does. `form` is how T is summed for power 1: "edges", by differences
    along edges, "difference", by F^T (D - W) F, or "auto", the cheaper one. `scale`: "sum", M as it is, or "mean", M
    over the number of edges (of rows, for the identity), so that a weight means the same for any number of rows.

    Departure from Minh: M is not divided by (u + l)^2, which `scale` or the weight can do."""

    graph: RowGraph
    weight: float | tuple[float, ...] = 1.0
    laplacian: str = "unnormalised"
    power: int = 1
    outputs: FloatArray | None = None
    view: str | int | None = None
    between: bool = False
    form: str = "auto"
    scale: str = "sum"

    def __post_init__(self) -> None:
        if not isinstance(self.graph, RowGraph):
            raise InputError(f"manifold.graph: wanted a graph, got {self.graph!r}; KNN(10), Given(W) or Identity().")
        object.__setattr__(self, "weight", _weight(self.weight))
        if str(self.laplacian).replace("-", "_").replace(" ", "_") in ("random_walk", "rw"):
            problem = "I - D^-1 W is neither symmetric nor positive, so <f, L f> is no penalty"
            remedy = 'use "normalised", which has the same eigenvalues.'
            raise InputError(f"manifold.laplacian: the random-walk Laplacian {problem}; {remedy}")
        one_of("manifold.laplacian", self.laplacian, ("unnormalised", "normalised"))
        one_of("manifold.form", self.form, ("auto", "edges", "difference"))
        one_of("manifold.scale", self.scale, ("sum", "mean"))
        power, whole = self.power, isinstance(self.power, int | np.integer) and not isinstance(self.power, bool)
        if not whole or power < 1 or (power > 1 and power % 2):
            remedy = "L^2j is summed as (L^j F)^T (L^j F), which stays positive, an odd power would not."
            raise InputError(f"manifold.power: wanted 1 or an even number, got {power!r}; {remedy}")
        if power > 1 and self.form != "auto":
            problem = f"{self.form!r} is for power 1; L^{power} has (L^j F)^T (L^j F)"
            raise InputError(f"manifold.form: {problem}: leave it out.")
        object.__setattr__(self, "power", int(power))
        if self.outputs is not None:
            object.__setattr__(self, "outputs", positive(self.outputs))
        if self.view is not None and not (isinstance(self.view, str | Integral) and not isinstance(self.view, bool)):
            raise InputError(f"manifold.view: wanted a view's name or number, got {self.view!r}; give one of them.")
        if isinstance(self.view, Integral):
            object.__setattr__(self, "view", int(self.view))
        identity = isinstance(self.graph, IdentityGraph)
        if not isinstance(self.between, bool):
            raise InputError(f"manifold.between: wanted true or false, got {self.between!r}; use one of them.")
        if self.between and (not identity or self.view is not None):
            remedy = "give it the graph of type identity and no view, and make the term of a view one of its own."
            raise InputError(f"manifold.between: the term between views is over all rows and all views; {remedy}")
        if identity and (self.power != 1 or self.form != "auto" or self.laplacian != "unnormalised"):
            raise InputError("manifold.graph: identity means L = I, without laplacian, power or form; leave them out.")

    @property
    def weights(self) -> tuple[float, ...]:
        """Every weight to choose from."""
        return self.weight if isinstance(self.weight, tuple) else (self.weight,)

    @property
    def normalised(self) -> bool:
        return self.laplacian == "normalised"

    def config(self) -> Config:
        """All of it as plain JSON: what `manifold:` of JOB.yaml says, and what `from_config` reads."""
        same = {name: getattr(self, name) for name in ("laplacian", "power", "form", "view", "between", "scale")}
        outputs = None if self.outputs is None else {"matrix": self.outputs.tolist()}
        weight = list(self.weight) if isinstance(self.weight, tuple) else self.weight
        return {"graph": self.graph.config(), **same, "weight": weight, "outputs": outputs}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Manifold":
        """The term that such a `config` is of, or InputError. `outputs` may be absent, "identity", {"matrix": Q}, or
        {"graph": W, "offset": c}: Q = D - W + c I."""
        refuse_unknown(config, cls.__dataclass_fields__, "manifold term")
        if not isinstance(config.get("graph"), Mapping):
            raise InputError("manifold.graph: is missing; give one such as {type: knn, neighbours: 10}.")
        made = {"graph": RowGraph.from_config(config["graph"]), "outputs": _outputs(config.get("outputs"))}
        return cls(**{**config, **made})


def positive(Q: npt.ArrayLike) -> FloatArray:
    """Q (p, p) as float64, symmetric, read-only; InputError unless it is symmetric and positive semi-definite."""
    try:
        A = np.array(Q, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"manifold.outputs: wanted a matrix of numbers ({error}); give Q (p, p).") from error
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.size or not np.isfinite(A).all():
        raise InputError(f"manifold.outputs: wanted a square matrix of finite numbers, got shape {A.shape}; mend it.")
    size = float(np.abs(A).max())
    if not np.allclose(A, A.T, rtol=0.0, atol=1e-10 * size):
        i, j = np.unravel_index(np.argmax(np.abs(A - A.T)), A.shape)
        problem = f"wanted a symmetric matrix, got {A[i, j]} at ({i}, {j}) and {A[j, i]} at ({j}, {i})"
        raise InputError(f"manifold.outputs: {problem}; give (Q + Q.T) / 2.")
    A = 0.5 * (A + A.T)
    if (least := float(np.linalg.eigvalsh(A)[0])) < -1e-10 * size * len(A):
        problem = f"manifold.outputs: wanted a positive semi-definite matrix, but its least eigenvalue is {least:.3g}"
        raise InputError(f"{problem}; a negative one would reward differences.")
    A.setflags(write=False)
    return A


def _weight(weight: Any) -> float | tuple[float, ...]:
    if isinstance(weight, np.ndarray):
        weight = weight.tolist()  # a number, of an array without dimensions
    several = isinstance(weight, tuple | list)
    numbers = tuple(weight) if several else (weight,)
    if not numbers:
        raise InputError("manifold.weight: wanted a number, or several to choose from, got none; give 1e-2, say.")
    for w in numbers:
        if not isinstance(w, Real) or isinstance(w, bool) or not math.isfinite(w) or w < 0:
            raise InputError(f"manifold.weight: wanted finite numbers of at least 0, got {w!r}; 0 leaves it out.")
    return tuple(float(w) for w in numbers) if several else float(weight)


def _outputs(config: Any) -> FloatArray | None:
    if config is None or config == "identity":
        return None
    if not isinstance(config, Mapping):
        return positive(config)
    refuse_unknown(config, ("matrix", "graph", "offset"), "mapping of outputs")
    if ("matrix" in config) == ("graph" in config) or ("offset" in config and "graph" not in config):
        raise InputError("manifold.outputs: wanted a matrix, or a graph with an offset if any; give one of the two.")
    if "matrix" in config:
        return positive(config["matrix"])
    W = np.array(config["graph"], np.float64)
    if W.ndim != 2 or W.shape[0] != W.shape[1] or not np.isfinite(W).all() or (W < 0).any():
        raise InputError("manifold.outputs.graph: wanted a square matrix of finite weights of at least 0; mend it.")
    return positive(np.diag(W.sum(axis=1)) - W + float(config.get("offset", 0.0)) * np.eye(len(W)))
