"""Which rows are neighbours: the graphs that a manifold term can be over."""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Final, final

import numpy as np
import scipy.sparse as sp

from dorff.errors import InputError
from dorff.spec.manifold import GivenSpec, IdentitySpec, KnnSpec
from dorff.spec.registry import GRAPHS, Config, Entry, kind_of

WITHIN: Final = ("data", "leaf")
APPEND: Final = ("rebuild", "link")
WEIGHTS: Final = ("heat", "binary")


class RowGraph(ABC):
    """A graph whose nodes are the rows, in their order. Names and numbers: what a job says, not the edges."""

    @abstractmethod
    def config(self) -> Config:
        """What `graph:` of JOB.yaml says, as plain JSON: complete, and the same in every process."""

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> RowGraph:
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


@final
@dataclass(frozen=True)
class KNN(RowGraph):
    """Each row is joined to its `neighbours` nearest others, by Euclidean distance of the scaled inputs.

    Lists are not mutual: W = (A + A^T) / 2, so that two rows that list each other have the edge's full weight, a row
    that is listed without listing back half of it. Ties go to the row that comes first.

    `weights`: "heat", exp(-|x - z|^2 / (s_x s_z)) with s the distance to a row's own last neighbour; "binary", 1; or a
    number t in the scaled inputs' units, exp(-|x - z|^2 / (2 t^2)).

    `within`: "data", neighbours anywhere among the rows, found by landmarks, and kept in an edge store; or "leaf",
    among the 4096 rows of one run of a leaf, exactly, and kept nowhere.

    `append`: what rows do that are appended to a graph over the data. "rebuild": the graph is made anew, because a new
    row may be nearer than those listed; "link": new rows list old and new ones, and the lists of old rows stay."""

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
                raise InputError(
                    f"graph.weights: wanted a finite length above 0, got {weights!r}; give one in the scaled inputs' "
                    'units, or "heat", which finds its own.'
                )
        elif weights not in WEIGHTS:
            raise InputError(f'graph.weights: wanted "heat", "binary" or a length, got {weights!r}; use one of them.')
        one_of("graph.within", self.within, WITHIN)
        one_of("graph.append", self.append, APPEND)
        if self.within == "leaf" and self.append == "link":
            raise InputError(
                "graph.append: link is for a graph across leaves; inside a leaf new rows never change old edges; "
                "leave it out"
            )

    def config(self) -> Config:
        return {"type": "knn", **asdict(self)}


@final
@dataclass(frozen=True, eq=False)
class Given(RowGraph):
    """The user's own graph: a scipy sparse or dense matrix of weights (n, n), or the path of one on disk.

    On disk it is a Zarr group or Parquet with the edges i, j and weights w, or in CSR form (`dorff.data.edges`). What
    its weights must be is checked when the rows are known (`checked`)."""

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
            raise InputError(
                f"graph: wanted a square matrix of weights or the path of one, got {type(self.source).__name__} of "
                f"shape {matrix.shape} and type {matrix.dtype}; give W (n, n), scipy sparse say."
            )
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


@final
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
