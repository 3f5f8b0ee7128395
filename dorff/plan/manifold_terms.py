"""Manifold terms made concrete: the rows and columns of their graphs, what their sums cost, and their penalties."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dorff import kernels
from dorff.data import Dataset, open_dataset
from dorff.data.edges import open_graph
from dorff.errors import InputError
from dorff.graphs import KNN, Given, Manifold
from dorff.model.weights import Density, served
from dorff.moments import FloatArray, Moments
from dorff.passes.blocks import most_sums
from dorff.plan.graph_sizes import Form, GraphCosts, Places, TermRecipe, difference_shift, term_bytes, term_flops
from dorff.plan.lengthscale import read_matrices
from dorff.solvers import Penalty
from dorff.spec.job import Job

# In flops of `syrk` (measured on one core): half of what it takes to rank a candidate for a list of neighbours, among
# those of several partitions and among the rows of a group; and to look at a number of a neighbour's features.
RANK, RANK_NEAR, LOOK = 550.0, 150.0, 30.0


@dataclass(frozen=True, eq=False)
class ManifoldTerm:
    """A term weight <f, (L (x) Q) f>: the sums of `sources`' rows, each source with a graph of its own. `columns` are
    those of the inputs that neighbours are found by, None for all. `views` (V, V) couples the views of a multi-view
    kernel: Q = views (x) outputs; None for the identity."""

    manifold: Manifold
    columns: Places
    views: FloatArray | None
    sources: tuple[Dataset, ...]

    def asked(self) -> list[Any]:
        """All that the term depends on but for values of rows and of a graph that is given, as JSON."""
        return [self.manifold.config(), self.columns, [[one.path, one.rows_spec()] for one in self.sources]]

    def stamp(self) -> str:
        """Names the files of the rows, and of a graph that is given, as they are now."""
        graph = self.manifold.graph
        stamps = [open_graph(graph.path).stamp()] if isinstance(graph, Given) and graph.path is not None else []
        stamps += [one.stamp(one.first, one.n) for one in self.sources]
        return hashlib.sha256(" ".join(stamps).encode()).hexdigest()[:32]


def make_terms(job: Job, dataset: Dataset, kernel: kernels.OperatorKernel) -> tuple[ManifoldTerm, ...]:
    """The terms of a job, of rows as they are now. InputError for one that does not fit the data or the kernel."""
    if not job.manifold:
        return ()
    sources = (dataset.inputs_only(), *_unlabelled(job, dataset))
    terms = []
    for number, spec in enumerate(job.manifold):
        manifold = Manifold.from_config(read_matrices(spec.model_dump(mode="json")))
        if manifold.outputs is not None and len(manifold.outputs) != dataset.q:
            problem = f"wanted a matrix for the {dataset.q} outputs of {dataset.path}, got {len(manifold.outputs)} rows"
            raise InputError(f"manifold.outputs: {problem}; mend it")
        columns, views = of_views(manifold, kernel)
        # A graph that is given is of the rows of data.store; the others' numbers mean nothing to it.
        of = sources[:1] if isinstance(manifold.graph, Given) else sources
        k = manifold.graph.neighbours if isinstance(manifold.graph, KNN) else 0
        for source in of:
            if k >= source.rows:
                key = "manifold" if len(job.manifold) == 1 else f"manifold[{number}]"
                problem = f"{key}.graph.neighbours: wanted fewer than the {source.rows} rows of {source.path}, got {k}"
                raise InputError(f"{problem}; lower it (5 to 20 is usual)")
        terms.append(ManifoldTerm(manifold, columns, views, of))
    return tuple(terms)


def weight_grid(terms: Sequence[ManifoldTerm]) -> list[tuple[float, ...]]:
    """Every combination of the terms' weights; one of none where there are no terms."""
    return list(product(*(term.manifold.weights for term in terms)))


class TermCosts(NamedTuple):
    """Of all terms: bytes of the largest task, of the solving driver and on disk; flops; what of its graph makes the
    task as large ("" for nothing); rows that features are made of, and flops of `syrk` that all else is like."""

    task_bytes: int = 0
    held_bytes: int = 0
    disk_bytes: int = 0
    flops: float = 0.0
    fewer: str = ""
    feature_rows: float = 0.0
    work: float = 0.0


def term_costs(terms: Sequence[ManifoldTerm], m: int, map_flops: float, workers: int) -> TermCosts:
    """What the terms' graphs and sums take, for m features of `map_flops` a row."""
    task, disk, flops, packed = 0, 0, 0.0, 4 * (m + 1) * (m + 2)
    fewer, feature_rows, work = "", 0.0, 0.0
    for term in terms:
        recipe = TermRecipe.of(term.manifold, inputs=term.columns)
        for source in term.sources:
            whole, reading = recipe.form is Form.POWER, 3 * source.unit_bytes()
            graph = GraphCosts.of(recipe.graph, source, hops=recipe.hops, whole=whole)
            rows = graph.piece_rows
            summing = term_bytes(recipe, m, rows) + 4 * 8 * rows * source.d + graph.edge_bytes
            if (most := max(graph.task_bytes, summing) + reading) > task:
                task, fewer = most, f"the edges of a row in manifold (now up to {graph.most})" if graph.most else ""
                if isinstance(recipe.graph, KNN) and graph.task_bytes > summing:
                    fewer = f"neighbours in manifold (now {recipe.graph.neighbours})"
            disk += graph.disk_bytes + most_sums(1 + source.rows // source.shard_rows, workers) * packed
            flops += source.rows * (term_flops(recipe, m) + graph.repeats * map_flops + graph.flops)
            feature_rows += source.rows * graph.repeats
            ranking = graph.flops * (1.0 + (RANK if graph.disk_bytes else RANK_NEAR) / source.d)
            work += source.rows * (term_flops(recipe, m, look=LOOK) + ranking)
    # Unpacked, weighed and coupled beside the system.
    held = len(terms) * packed + 3 * 8 * (m + 1) ** 2 if terms else 0
    return TermCosts(task, held, disk, flops, fewer, feature_rows, work)


def _unlabelled(job: Job, dataset: Dataset) -> list[Dataset]:
    """The rows of `data.unlabelled`, which must have the inputs of the others."""
    if job.data.unlabelled is None:
        return []
    try:
        more = open_dataset(str(job.data.unlabelled), inputs=job.data.inputs, targets=None)
    except InputError as error:
        raise InputError(f"data.unlabelled: {error}") from error
    if more.d != dataset.d or not more.rows:
        problem = f"{more.path} has {more.rows} rows of {more.d} inputs, but {dataset.path} has {dataset.d} inputs"
        raise InputError(f"data.unlabelled: {problem}; name rows of the same arrays")
    wanted = {
        column: dataset.column_attributes.get(name, {})
        for column, name in zip(more.input_columns, dataset.input_columns, strict=True)
    }
    try:
        return [more.converted(wanted)]
    except InputError as error:
        raise InputError(f"data.unlabelled: {error}") from error


def of_views(manifold: Manifold, kernel: kernels.OperatorKernel) -> tuple[Places, FloatArray | None]:
    """The inputs that a term's graph sees, and its coupling (V, V) of the views; see `ManifoldTerm`."""
    if isinstance(kernel, kernels.MultiView) and manifold.between:
        return None, kernel.between
    if not isinstance(kernel, kernels.MultiView) or manifold.view is None:
        return None, None
    (number,) = kernel.chosen([manifold.view])
    return kernel.views[number].columns, np.diag(np.arange(kernel.V) == number).astype(np.float64)


def features_of(kernel: kernels.OperatorKernel, views: FloatArray | None, density: Density | None) -> Places:
    """The features that a term is of which couples the views so: those of its view; None for all."""
    if views is None or np.diag(views).all():
        return None
    assert isinstance(kernel, kernels.MultiView) and density is not None
    (view,) = np.flatnonzero(np.diag(views))
    return tuple(np.flatnonzero(np.tile(served(kernel, density)[view].any(axis=0), 2)).tolist())


def penalty(manifold: Manifold, sums: Moments, views: FloatArray | None, weight: float = 1.0) -> Penalty:
    """A term at this weight, as systems have it: `sums` are its T, `views` its coupling of these."""
    share = weight / max(sums.n, 1) if manifold.scale == "mean" else weight
    return Penalty(sums, share, outputs=manifold.outputs, views=views, shift=difference_shift(sums))
