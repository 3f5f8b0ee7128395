"""Rows without targets: which they are, and the penalties by which a graph over all rows lets them count."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import dask.array as da
import numpy as np

from dorff.errors import InputError
from dorff.estimators.array_sums import Drawing
from dorff.estimators.arrays import Flags, StoredRows
from dorff.estimators.class_labels import StoredLabels
from dorff.graphs import KNN, Given, Graph, Manifold, checked
from dorff.graphs.neighbourhood import adjacency, both_ways, check_edges, undirected
from dorff.kernels import FloatArray, MultiView, OperatorKernel
from dorff.manifold import in_memory
from dorff.model.model import Views
from dorff.plan.graph_sizes import given_source
from dorff.plan.manifold_terms import features_of, of_views, penalty
from dorff.solvers import Penalty, Setting

ManifoldLike: TypeAlias = "float | Sequence[float] | Manifold | Sequence[Manifold] | None"


def terms_of(manifold: Any, graph: Any) -> tuple[Manifold, ...]:
    """The terms that `manifold=` and `graph=` say. InputError where they are none, or do not go together."""
    if manifold is None:
        if graph is not None:
            raise InputError("graph: is what a manifold term is made of; give its weight too, manifold=1e-3, say")
        return ()
    given = [manifold] if isinstance(manifold, Manifold) else manifold
    if isinstance(given, list | tuple) and any(isinstance(term, Manifold) for term in given):
        if not all(isinstance(term, Manifold) for term in given):
            raise InputError("manifold: has weights and terms in one list; give each term its own weight")
        if graph is not None:
            raise InputError("graph: goes with weights; a Manifold has a graph of its own, so leave graph out")
        return tuple(given)
    if isinstance(graph, str) and graph.lower() in ("knn", "identity") and not os.path.exists(graph):
        named = "KNN(10)" if graph.lower() == "knn" else "Identity()"
        raise InputError(f"graph: wanted a graph, or the path of one, got {graph!r}; for its type give graphs.{named}")
    of = KNN() if graph is None else graph if isinstance(graph, Graph) else Given(graph)
    return (Manifold(of, weight=manifold),)


def in_memory_where(terms: Sequence[Manifold], X: Any, y: Any) -> tuple[Any, Any]:
    """Inputs and targets as they are, but where there are terms y in memory. InputError for X that then is not."""
    if not terms:
        return X, y
    if isinstance(X, StoredRows | da.Array):
        problem = "an estimator has all rows of X in memory to find neighbours among (sparse X is not supported)"
        remedy = "give a NumPy array (X[:], X.toarray()), or use a job (dorff fit), whose graphs are of rows on disk"
        raise InputError(f"manifold: {problem}; {remedy}")
    if isinstance(y, StoredRows | StoredLabels | da.Array):
        y = np.asarray(y[:]).reshape((-1,) if y.ndim == 1 else (len(y), -1))
    return X, y


def with_targets(Y: FloatArray, *, partial: bool) -> Flags:
    """Which rows of Y (n, q) have a target. InputError for none, and for those that have some unless `partial`."""
    there = ~np.isnan(Y)
    seen = np.asarray(there.any(axis=1))
    if not seen.any():
        raise InputError(f"y is NaN in all of its {len(Y)} rows: all are unlabelled; give targets of some")
    if not partial and not np.all(there[seen]):
        row = int(np.flatnonzero(seen & ~there.all(axis=1))[0])
        remedy = "give missing='partial' to fit to what there is (a row is unlabelled where all are NaN)"
        raise InputError(f"y, row {row} has NaN beside other targets; {remedy}")
    return seen


def columns_read(kernel: OperatorKernel, views: Views, d: int) -> Flags:
    """Which of d columns the views have. InputError where there are no views."""
    if not isinstance(kernel, MultiView):
        raise InputError("views: only a MultiView kernel has any; leave views out")
    read = np.zeros(d, dtype=bool)
    read[kernel.seen(views)] = True
    return read


@dataclass(frozen=True, eq=False)
class Penalties:
    """Manifold terms of a fit: `penalties` of weight 1, `weights` of each to try, how many rows are `unlabelled`."""

    penalties: tuple[Penalty, ...]
    weights: tuple[tuple[float, ...], ...]
    unlabelled: int

    @classmethod
    def of(cls, terms: Sequence[Manifold], drawing: Drawing, X: FloatArray, labelled: int) -> "Penalties":
        """Of rows X (n, d), so many of them labelled, by a pass over their edges for each term."""
        penalties = tuple(_penalty(term, drawing, X) for term in terms)
        return cls(penalties, tuple(term.weights for term in terms), len(X) - labelled)

    @property
    def combinations(self) -> list[tuple[float, ...]]:
        """The weights (terms,) of each setting, the last term's changing fastest."""
        return list(itertools.product(*self.weights))

    def settings(self, setting: Setting) -> list[Setting]:
        """`setting` with the penalties, for each of `combinations`; a weight of zero is none."""
        each = (zip(self.penalties, weights, strict=True) for weights in self.combinations)
        weighed = ([replace(one, weight=one.weight * weight) for one, weight in pairs] for pairs in each)
        return [replace(setting, penalties=tuple(one for one in several if one.weight > 0)) for several in weighed]


def _penalty(term: Manifold, drawing: Drawing, X: FloatArray) -> Penalty:
    """Of weight 1, over the rows X (n, d). InputError for views that the kernel has not, and a graph of other rows."""
    kernel, n = drawing.setting.kernel, len(X)
    if (term.between or term.view is not None) and not isinstance(kernel, MultiView):
        raise InputError("manifold: view and between are of the views of a MultiView kernel; leave them out")
    inputs, views = of_views(term, kernel)
    columns, graph = features_of(kernel, views, drawing.setting.density), term.graph
    if isinstance(graph, Given) and graph.path is not None:
        source = given_source(graph.path, n)
        edges = source.read(0, source.count)
        check_edges(*edges, n=n)
        graph = adjacency(*both_ways(*undirected(*edges, both=source.kind == "csr")), (n, n))
    elif isinstance(graph, Given):
        graph = checked(graph.source, n)
    return penalty(term, in_memory(drawing.features, X, graph, term, inputs=inputs, columns=columns), views)
