"""What a row of T = [F | 1]^T L [F | 1] costs beside a row of S, by form, at the same features.

    python benchmarks/manifold_cost.py [--m 512 1024 2048 4096] [--neighbours 5 10] [--groups 2] [--repeats 5]
                                       [--rows NUMPY.npy] [--out FILE.json]

The rows are groups of 4096, in memory: points of a bent surface of four dimensions in 32 inputs, with noise; or rows
of a file. Each round sums S (BlockSums, one target) and T in every form (GraphSums), one after another on one thread,
from the rows on: features are part of each time. The graphs are made before, and timed apart. `ratio` is the median of
T's seconds over S's of the same round, by wall time; `cpu_ratio` by the thread's own, which what else runs on the
machine disturbs less. `bound` is what the edge form may cost: its undirected edges a row, and one more. `in_blas` is
the part of a form's time that is BLAS.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dorff import frequencies, kernels
from dorff.engine.base import forget_spare
from dorff.features import FeatureMap, Recipe
from dorff.graphs import KNN, Identity, Manifold, local_graph
from dorff.manifold import GraphSums
from dorff.moments import FloatArray
from dorff.moments.blas import pinned
from dorff.passes import BlockSums
from dorff.passes.blocks import block_rows
from dorff.plan.graph_sizes import GROUP_ROWS, term_flops
from dorff.plan.graph_sizes import TermRecipe as TermRecipe

FORMS: dict[str, dict[str, Any]] = {
    "edges": {"form": "edges"},
    "edges, normalised": {"form": "edges", "laplacian": "normalised"},
    "difference": {"form": "difference"},
    "difference, normalised": {"form": "difference", "laplacian": "normalised"},
    "power 2": {"power": 2},
    "power 4": {"power": 4},
}


def surface(rows: int, d: int = 32) -> FloatArray:
    """Points of a bent surface of four dimensions in d, with noise."""
    rng = np.random.default_rng(0)
    t = rng.uniform(-1.0, 1.0, (rows, 4))
    return np.sin(t @ rng.standard_normal((4, d)) + rng.uniform(0, 6, d)) + 0.02 * rng.standard_normal((rows, d))


def new_features(X: FloatArray, m: int) -> FeatureMap:
    """Orthogonal Gaussian features with the median distance of a few rows for their length-scale."""
    some = X[:500]
    apart = float(np.median(np.linalg.norm(some[:, None] - some[None], axis=2)))
    kernel = kernels.Decomposable(kernels.Gaussian(apart)).fix(X.shape[1], 1)
    drawn = Recipe(kernel, frequencies.Orthogonal(), X.shape[1], 1, m).draw(0)
    return FeatureMap(drawn.phi, X.mean(axis=0), np.ones(X.shape[1]))


def timed(call: Callable[[], float]) -> tuple[float, float, float]:
    """Wall and thread seconds, and those in BLAS."""
    wall, cpu = time.perf_counter(), time.thread_time()
    blas = call()
    return time.perf_counter() - wall, time.thread_time() - cpu, blas


def interleaved(calls: dict[str, Callable[[], float]], repeats: int) -> list[dict[str, tuple[float, float, float]]]:
    """Rounds of every call, one after another."""
    for call in calls.values():
        call()  # loops compiled, pages there
    return [{form: timed(call) for form, call in calls.items()} for _ in range(repeats)]


def numbers(form: str, runs: list[dict[str, tuple[float, float, float]]], rows: int) -> dict[str, Any]:
    """A form's times and ratios over all rounds."""
    middle, ratios = statistics.median, [run[form][1] / run["S"][1] for run in runs]
    return {
        "seconds_a_row": middle(run[form][0] for run in runs) / rows,
        "ratio": middle(run[form][0] / run["S"][0] for run in runs),
        "cpu_ratio": middle(ratios),
        "range": [min(ratios), max(ratios)],
        "in_blas": middle(run[form][2] / run[form][0] for run in runs),
    }


def groups(X: FloatArray) -> list[FloatArray]:
    return [X[at : at + GROUP_ROWS] for at in range(0, len(X), GROUP_ROWS)]


def measure(X: FloatArray, m: int, k: int, repeats: int) -> dict[str, Any]:
    """Every form at m features and k neighbours."""
    features, knn = new_features(X, m), KNN(k, within="leaf")
    x = (X - features.center) / features.scale
    began = time.thread_time()
    graphs = [local_graph(one, knn) for one in groups(x)]
    graph_seconds = time.thread_time() - began
    edges = sum(W.nnz for W in graphs) / 2 / len(X)
    y0, block = np.zeros(1), block_rows(features.m + 2)
    recipes = {form: TermRecipe.of(Manifold(knn, **options)) for form, options in FORMS.items()}

    def rows(q: int) -> float:
        sums = BlockSums(features, y0[:q], block_rows=block)
        for one in groups(X):
            sums.add(one, np.zeros((len(one), q)))
        sums.keep_spare()
        return sums.syrk_seconds

    def term(recipe: TermRecipe) -> float:
        sums = GraphSums(features, recipe)
        for one, W in zip(groups(X), graphs, strict=True):
            sums.add_whole(one, sparse.csr_array(W))
        sums.keep_spare()
        return sums.syrk_seconds

    calls: dict[str, Callable[[], float]] = {"S": lambda: rows(1), "identity": lambda: rows(0)}
    calls |= {form: lambda recipe=recipe: term(recipe) for form, recipe in recipes.items()}  # type: ignore[misc]
    runs = interleaved(calls, repeats)
    forget_spare()
    flops = {form: term_flops(one, features.m, edges) for form, one in recipes.items()}
    flops["identity"] = term_flops(TermRecipe.of(Manifold(Identity())), features.m)
    table = {form: numbers(form, runs, len(X)) for form in calls}
    for form in calls:
        table[form]["flops_ratio"] = flops.get(form, (features.m + 2.0) ** 2) / (features.m + 2.0) ** 2
    return {
        "m": features.m, "neighbours": k, "rows": len(X), "d": X.shape[1], "edges_a_row": edges, "bound": edges + 1,
        "graph_over_S": statistics.median(graph_seconds / run["S"][1] for run in runs), "forms": table,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    parser.add_argument("--neighbours", type=int, nargs="*", default=[5, 10])
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=Path, help="rows (n, d) as NumPy writes them, instead of the surface's")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/manifold_cost.json"))
    options = parser.parse_args()
    count, found = options.groups * GROUP_ROWS, []
    X = surface(count) if options.rows is None else np.load(options.rows)[:count].astype(np.float64)
    with pinned():
        for m in options.m:
            for k in options.neighbours:
                one = measure(np.ascontiguousarray(X), m, k, options.repeats)
                found.append(one)
                print(f"m {m}, k {k}: {one['edges_a_row']:.2f} edges a row, graph {one['graph_over_S']:.2f} of S")
                for form, found_of in one["forms"].items():
                    print(
                        f"  {form:24} {found_of['cpu_ratio']:6.2f}  of S, {found_of['in_blas']:.2f} in BLAS",
                        flush=True,
                    )
    body = {"machine": platform.processor() or platform.machine(), "load": os.getloadavg()[1], "shapes": found}
    options.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
