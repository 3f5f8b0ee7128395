"""Jobs with manifold terms and views: against dense systems of the same features, resumed, bitwise the same."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from cases import laplacian

from dorff.data.edges import write_graph
from dorff.engine import Engine, SerialEngine, Task, open_engine
from dorff.engine.base import Done
from dorff.errors import DorffError, GateError, InputError
from dorff.fit import FitReport, fit
from dorff.graphs import KNN, local_graph, neighbours
from dorff.kernels.scalar import FloatArray
from dorff.passes import blocks as leaf_sizes
from dorff.plan import make_plan
from dorff.predict import predict
from dorff.spec.job import Job
from dorff.store import load_model

SHARD, N, GI, RIDGE = 256, 700, 3e-3, 1e-4


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
    monkeypatch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)


def sea(n: int = N, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """X (n, 3) and Y (n, 2) about 5, missing but for one row in ten."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    Y = 5.0 + np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]])
    Y[rng.random(n) > 0.1] = np.nan
    return X, Y


def write(path: Path, *, append: bool = False, **arrays: FloatArray) -> Path:
    """Arrays of the same rows in a Zarr group."""
    group = zarr.open_group(str(path), mode="a" if append else "w")
    for name, values in arrays.items():
        if append:
            stored = group[name]
            assert isinstance(stored, zarr.Array)
            stored.append(values)
        else:
            group.create_array(
                name, data=values, chunks=(SHARD, *values.shape[1:]), config={"write_empty_chunks": True}
            )
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    X, Y = sea()
    return write(tmp_path / "sea.zarr", x=X, y=Y)


def job(store: Path, *, data: dict[str, Any] | None = None, **more: Any) -> Job:
    folder = store.parent
    return Job.model_validate(
        {
            "data": {"store": str(store), "nan": "unlabelled", **(data or {})},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.5}},
            "features": {"count": 40},
            "solve": {"ridge": RIDGE},
            "manifold": {"graph": {"type": "knn", "neighbours": 5}, "weight": GI},
            "cluster": {"type": "serial"},
            "state": str(folder / "state"),
            "model": str(folder / "model"),
            **more,
        }
    )


def run(store: Path, *, engine: Engine | None = None, **more: Any) -> FitReport:
    return fit(job(store, **more), engine=engine or SerialEngine())


def dense(store: Path, X: FloatArray, Y: FloatArray, L: Any, gI: float = GI) -> FloatArray:
    """f (n, q) at X of the published model's features by the dense primal system (Minh 2016, eq. 74), C = Q = I."""
    model = load_model(store.parent / "model")
    F = np.column_stack([model.feature_map.transform(X), np.ones(len(X))])
    some = np.isfinite(Y).all(axis=1)
    count, m = int(some.sum()), F.shape[1] - 1
    free = np.diag(np.append(np.ones(m), 0.0))
    system = F[some].T @ F[some] + count * (RIDGE * free + gI * F.T @ (L @ F))
    return np.asarray(F @ np.linalg.solve(system, F[some].T @ Y[some]))


def predicted(store: Path, X: FloatArray) -> FloatArray:
    return load_model(store.parent / "model").predict(X)


@pytest.mark.parametrize("form", ["edges", "difference"])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_graph_over_the_data_is_the_dense_system(store: Path, form: str, normalised: bool) -> None:
    X, Y = sea()
    name = "normalised" if normalised else "unnormalised"
    graph = {"type": "knn", "neighbours": 5}
    report = run(store, manifold={"graph": graph, "weight": GI, "laplacian": name, "form": form})
    assert report.status == "ok" and report.rows_used == np.isfinite(Y[:, 0]).sum()
    assert report.rows_used + report.rows_unlabelled == N and report.manifold == [GI]
    (told,) = report.graphs
    # So few rows are one partition: the graph is the exact one.
    W = local_graph(X, KNN(5))
    assert (told["rows"], told["edges"]) == (N, W.nnz // 2)
    L = laplacian(W, normalised=normalised)
    np.testing.assert_allclose(predicted(store, X), dense(store, X, Y, L), rtol=0, atol=1e-8)


@pytest.mark.parametrize("weight", [1e-9, 1e-4, 10.0, 1e4])
def test_rounding_of_differences_counts_by_what_the_term_weighs(tmp_path: Path, weight: float) -> None:
    """Rows that are nearly the same leave few digits of F^T (D - W) F, which is no matter where the term is light."""
    X, Y = sea()
    X = np.repeat(X[::7], 7, axis=0)[:N] + 1e-7 * np.random.default_rng(1).standard_normal((N, 3))
    store, found = write(tmp_path / "near.zarr", x=X, y=Y), {}
    for form in ("edges", "difference"):
        term = {"graph": {"type": "knn", "neighbours": 6}, "weight": weight, "form": form}
        report = run(store, manifold=term, publish={"digits": 0.0}, model=str(tmp_path / form))
        found[form] = report.digits, load_model(tmp_path / form).predict(X)
    size = np.linalg.norm(Y[np.isfinite(Y).all(axis=1)])
    apart = np.linalg.norm(found["edges"][1] - found["difference"][1])
    assert apart <= size * 10.0 ** -min(digits for digits, _ in found.values())
    assert found["edges"][0] > 8.0
    assert weight > 1e-6 or found["difference"][0] > found["edges"][0] - 0.1
    if weight == 1e4:
        with pytest.raises(
            GateError, match=r"solve.qr true; of manifold terms set form: edges, or lower weight or power"
        ):
            run(store, manifold=term, publish={"digits": 15.0})


@pytest.mark.parametrize("graph", ["empty", "narrow"])
def test_a_term_that_does_nothing_is_refused(store: Path, tmp_path: Path, graph: str) -> None:
    spec: dict[str, Any] = {"type": "knn", "neighbours": 5, "weights": 1e-9}
    if graph == "empty":
        write_graph(tmp_path / "none.zarr", sp.csr_array((N, N)))
        spec = {"type": "given", "path": str(tmp_path / "none.zarr")}
    with pytest.raises(InputError, match="manifold, term 2: its sums are zero: its graph has no edge with a weight"):
        run(store, manifold=[{"weight": 1.0}, {"graph": spec, "weight": 1.0}])
    assert not (tmp_path / "model").exists()
    run(store, manifold=[{"weight": 1.0}, {"graph": spec, "weight": 0.0}])  # switched off


@pytest.mark.parametrize("within", ["data", "leaf"])
def test_progress_counts_the_rows_of_a_term_after_those_of_the_pass(store: Path, within: str) -> None:
    """Of a graph over the data the first half is its building, the second the term's sums."""
    seen: list[tuple[int, int]] = []
    graph = {"type": "knn", "neighbours": 5, "within": within}
    made = job(store, manifold={"graph": graph, "weight": GI})
    fit(made, engine=SerialEngine(), progress=lambda done, total: seen.append((done, total)))
    done = [rows for rows, _ in seen]
    assert {total for _, total in seen} == {2 * N} and done == sorted(done) and done[-1] == 2 * N
    assert any(N < rows <= N + N // 2 for rows in done)
    assert within == "data" or len(set(done)) == 7  # none, then three leaves of the pass and of the term


def test_a_graph_within_leaves(store: Path) -> None:
    X, Y = sea()
    plan = make_plan(job(store))
    assert len(plan.leaves) == 3
    report = run(store, manifold={"graph": {"type": "knn", "neighbours": 5, "within": "leaf"}, "weight": GI})
    blocks = [laplacian(local_graph(X[leaf.start : leaf.stop], KNN(5))) for leaf in plan.leaves]
    L = sp.block_diag(blocks).tocsr()
    np.testing.assert_allclose(predicted(store, X), dense(store, X, Y, L), rtol=0, atol=1e-8)
    assert report.graphs[0]["edges"] == sum(block.nnz - block.shape[0] for block in blocks) // 2


def test_a_given_graph_and_the_identity(store: Path, tmp_path: Path) -> None:
    X, Y = sea()
    rng = np.random.default_rng(1)
    W = sp.random_array((N, N), density=0.01, rng=rng)
    W = (W + W.T).tocsr()
    W.setdiag(0.0)
    W.eliminate_zeros()
    write_graph(tmp_path / "graph.zarr", W)
    terms = [
        {"graph": {"type": "given", "path": str(tmp_path / "graph.zarr")}, "weight": GI},
        {"graph": {"type": "identity"}, "weight": 0.5 * GI},
    ]
    run(store, manifold=terms)
    L = laplacian(W) + 0.5 * sp.eye_array(N)
    np.testing.assert_allclose(predicted(store, X), dense(store, X, Y, L), rtol=0, atol=1e-8)


@pytest.mark.parametrize("of", ["knn", "leaf", "given"])
def test_touched_files_publish_nothing_and_other_edges_do(of: str, store: Path, tmp_path: Path) -> None:
    W = sp.random_array((N, N), density=0.01, rng=np.random.default_rng(1))
    W = (W + W.T).tolil()
    write_graph(tmp_path / "graph.parquet", W)
    knn = {"type": "knn", "neighbours": 5, "within": "leaf" if of == "leaf" else "data"}
    term = {"graph": {"type": "given", "path": str(tmp_path / "graph.parquet")} if of == "given" else knn}
    first = run(store, manifold={**term, "weight": GI})
    assert run(store, manifold={**term, "weight": GI}).outcome == "unchanged"
    for file in [tmp_path / "graph.parquet", *(store / "x").rglob("0")]:
        os.utime(file)
    again = run(store, manifold={**term, "weight": GI})
    assert (again.outcome, again.model, again.passes) == ("unchanged", first.model, first.passes)
    assert run(store, manifold={**term, "weight": 2 * GI}).outcome == "published"
    if of == "given":
        W[3, 7] = W[7, 3] = 5.0
        (tmp_path / "graph.parquet").unlink()
        write_graph(tmp_path / "graph.parquet", W)
        assert run(store, manifold={**term, "weight": 2 * GI}).outcome == "published"


def test_scale_mean_divides_by_edges(store: Path) -> None:
    X, Y = sea()
    run(store, manifold={"graph": {"type": "knn", "neighbours": 5}, "weight": 2.0, "scale": "mean"})
    W = local_graph(X, KNN(5))
    L = laplacian(W) / (W.nnz // 2)
    np.testing.assert_allclose(predicted(store, X), dense(store, X, Y, L, 2.0), rtol=0, atol=1e-8)


def test_weights_and_ridges_are_chosen_by_labelled_folds(store: Path) -> None:
    solve = {"ridge": [1e-4, 1e-2], "select": "kfold", "folds": {"count": 3, "by": "rows"}}
    term = {"graph": {"type": "knn", "neighbours": 5}, "weight": [0.0, 1e-3, 1.0]}
    report = run(store, solve=solve, manifold=term)
    assert len(report.table) == 6
    best = min(report.table, key=lambda trial: trial["value"])
    assert report.manifold == best["manifold"] and report.ridge == best["ridge"]
    assert {trial["manifold"][0] for trial in report.table} == {0.0, 1e-3, 1.0}
    assert report.reads == 1.0


def test_a_second_store_of_unlabelled_rows(tmp_path: Path) -> None:
    X, Y = sea()
    some = np.isfinite(Y).all(axis=1)
    store = write(tmp_path / "sea.zarr", x=X[some], y=Y[some])
    write(tmp_path / "more.zarr", x=X[~some])
    data = {"nan": "refuse", "unlabelled": str(tmp_path / "more.zarr")}
    run(store, data=data)
    parts = [laplacian(local_graph(x, KNN(5))) for x in (X[some], X[~some])]
    order = np.concatenate([X[some], X[~some]]), np.concatenate([Y[some], Y[~some]])
    np.testing.assert_allclose(
        predicted(store, order[0]), dense(store, *order, sp.block_diag(parts).tocsr()), rtol=0, atol=1e-8
    )


def test_unlabelled_rows_in_other_units_are_converted(tmp_path: Path) -> None:
    X, Y = sea()
    some = np.isfinite(Y).all(axis=1)
    fits = []
    for name, unit, factor in (("metres", "m", 1.0), ("centimetres", "cm", 100.0)):
        store = write(tmp_path / name / "sea.zarr", x=X[some], y=Y[some])
        more = write(tmp_path / name / "more.zarr", x=factor * X[~some])
        for path, units in ((store, "m"), (more, unit)):
            zarr.open_group(path)["x"].attrs["units"] = units
        run(store, data={"nan": "refuse", "unlabelled": str(more)})
        fits.append(predicted(store, X))
    np.testing.assert_allclose(fits[1], fits[0], rtol=0, atol=1e-9)
    zarr.open_group(more)["x"].attrs["units"] = "s"
    with pytest.raises(InputError, match=r"data\.unlabelled"):
        run(store, data={"nan": "refuse", "unlabelled": str(more)})


def test_a_column_says_which_rows_are_labelled(tmp_path: Path) -> None:
    X, Y = sea()
    there = np.isfinite(Y).all(axis=1)
    write(tmp_path / "sea.zarr", x=X, y=np.where(there[:, None], Y, 7.0), known=there.astype(np.int8))
    run(tmp_path / "sea.zarr", data={"labelled": "known"})
    L = laplacian(local_graph(X, KNN(5)))
    np.testing.assert_allclose(
        predicted(tmp_path / "sea.zarr", X), dense(tmp_path / "sea.zarr", X, Y, L), rtol=0, atol=1e-8
    )


def test_nothing_new_and_appended_rows(store: Path) -> None:
    first = run(store)
    again = run(store)
    assert (first.outcome, again.outcome) == ("published", "unchanged")
    X, Y = sea(300, seed=5)
    write(store, append=True, x=X, y=Y)
    grown = run(store)
    assert grown.outcome == "published" and grown.graphs[0]["rows"] == N + 300
    alone = store.parent / "alone"
    alone.mkdir()
    both = [np.concatenate(pair) for pair in zip(sea(), (X, Y), strict=True)]
    write(alone / "sea.zarr", x=both[0], y=both[1])
    run(alone / "sea.zarr")
    np.testing.assert_allclose(predicted(store, X), predicted(alone / "sea.zarr", X), rtol=0, atol=1e-9)


@pytest.mark.process
def test_one_worker_or_two_the_same_bits(store: Path, tmp_path: Path) -> None:
    run(store)
    one = load_model(tmp_path / "model")
    cluster = {"type": "local", "workers": 2, "memory": "1GiB"}
    asked = job(store, cluster=cluster, state=str(tmp_path / "state2"), model=str(tmp_path / "model2"))
    with open_engine(asked.cluster) as engine:
        fit(asked, engine=engine)
    two = load_model(tmp_path / "model2")
    assert one.coefficients.tobytes() == two.coefficients.tobytes()
    assert one.intercept.tobytes() == two.intercept.tobytes()


def test_all_rows_unlabelled(tmp_path: Path) -> None:
    X, Y = sea()
    store = write(tmp_path / "sea.zarr", x=X, y=np.full_like(Y, np.nan))
    with pytest.raises(InputError, match="all are unlabelled"):
        run(store)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"manifold": {"weight": 1.0, "outputs": {"matrix": [[1.0]]}}}, "manifold"),
        ({"data": {"unlabelled": "nowhere.zarr"}}, "data.unlabelled"),
        (
            {"manifold": [{"weight": 1.0}, {"weight": 1.0, "graph": {"neighbours": N}}], "solve": {"ridge": RIDGE}},
            rf"manifold\[1\].graph.neighbours: wanted fewer than the {N} rows of .*sea.zarr, got {N}; lower it",
        ),
        (
            {
                "manifold": {"weight": 1.0, "graph": {"neighbours": N - 1, "within": "data"}},
                "cluster": {"type": "serial", "memory": "420MiB"},
            },
            rf"or lower neighbours in manifold \(now {N - 1}\) or features.count \(now 40\)$",
        ),
        (
            {
                "features": {"count": 4000},
                "solve": {"ridge": [1e-4, 1e-2], "select": "kfold", "folds": {"count": 3}},
                "cluster": {"type": "serial", "memory": "700MiB"},
            },
            r"or lower features.count \(now 4000\), or set solve.folds.by: leaves$",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_the_plan(store: Path, more: dict[str, Any], wrong: str) -> None:
    with pytest.raises(DorffError, match=wrong):
        make_plan(job(store, **more))
    assert not (store.parent / "state").exists()


def views_job(store: Path, **more: Any) -> Job:
    gaussian = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "median"}}
    kernel = {
        "type": "multi_view",
        "views": [{"inputs": "left", "kernel": gaussian}, {"inputs": "right", "kernel": gaussian}],
    }
    terms = [
        {"between": True, "weight": 1e-3},
        {"view": "right", "weight": GI, "graph": {"neighbours": 5}},
        {"weight": 2e-3, "graph": {"neighbours": 4}},
    ]
    return job(store, kernel=kernel, manifold=terms, **more)


def test_views(tmp_path: Path) -> None:
    """Against the dense system of both views' features: f1 and f2, of which the targets see the mean."""
    X, Y = sea()
    left, right = X[:, :2].copy(), X[:, 1:].copy()
    store = write(tmp_path / "sea.zarr", left=left, right=right, y=Y)
    report = fit(views_job(store), engine=SerialEngine())
    model = load_model(tmp_path / "model")
    both = np.hstack([left, right])
    F, view = model.feature_map.transform(both), model.operator_weights.views
    assert view is not None and report.m == F.shape[1] == 40
    A = F * model.operator_weights.gain
    psi = [np.column_stack([A * (view == v), np.full(N, float(v == 0)), np.full(N, float(v == 1))]) for v in (0, 1)]
    some = np.isfinite(Y).all(axis=1)
    count, mean, apart = int(some.sum()), 0.5 * (psi[0] + psi[1])[some], psi[0] - psi[1]
    scaled = (right - model.feature_map.center[2:]) / model.feature_map.scale[2:]
    L = laplacian(local_graph(scaled, KNN(5)))
    whole = laplacian(local_graph((both - model.feature_map.center) / model.feature_map.scale, KNN(4)))
    free = np.diag(np.append(np.ones(40), [0.0, 0.0]))
    system = mean.T @ mean + count * (RIDGE * free + 1e-3 * apart.T @ apart + GI * psi[1].T @ (L @ psi[1]))
    system += count * 2e-3 * sum(one.T @ (whole @ one) for one in psi)  # of every view, by the inputs of all
    h = np.linalg.solve(system, mean.T @ Y[some])
    np.testing.assert_allclose(model.predict(both), 0.5 * (psi[0] + psi[1]) @ h, rtol=0, atol=1e-7)
    np.testing.assert_allclose(model.predict(both, views=["right"]), psi[1] @ h, rtol=0, atol=1e-7)

    write(tmp_path / "only.zarr", right=right)
    predict(tmp_path / "model", tmp_path / "only.zarr", tmp_path / "out.zarr", engine=SerialEngine(), views=["right"])
    out = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")["y"]
    np.testing.assert_allclose(np.asarray(out[...]), psi[1] @ h, rtol=0, atol=1e-7)


@pytest.mark.parametrize("where", ["graph", "unlabelled"])
def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path, where: str) -> None:
    """A graph, or the second store, is another one when its sums are done: the model is of what is there then."""
    X, Y = sea()
    some = np.isfinite(Y).all(axis=1)
    W = local_graph(X[some], KNN(3))
    store = write(tmp_path / "sea.zarr", x=X[some], y=Y[some])
    write(tmp_path / "more.zarr", x=X[~some])
    write_graph(tmp_path / "graph.parquet", W)
    given = {"graph": {"type": "given", "path": str(tmp_path / "graph.parquet")}, "weight": GI}
    knn = {"graph": {"type": "knn", "neighbours": 5, "within": "leaf"}, "weight": GI}
    data = {"nan": "refuse", "unlabelled": str(tmp_path / "more.zarr")}
    changes = 0

    class Changing(SerialEngine):
        def run(self, tasks: Iterable[Task], done: Done) -> None:
            nonlocal changes
            super().run(tasks, done)
            if changes < 5:  # the first pass, and all of the terms' tasks after it
                changes += 1
                if where == "graph":
                    (tmp_path / "graph.parquet").unlink()
                    write_graph(tmp_path / "graph.parquet", (1.0 + changes) * W)
                else:
                    write(tmp_path / "more.zarr", x=X[~some] + 0.01 * changes)

    fit(job(store, data=data, manifold=[given, knn]), engine=Changing())
    alone = fit(job(store, data=data, manifold=[given, knn], model=str(tmp_path / "fresh"), state=str(tmp_path / "s2")))
    assert alone.outcome == "published" and changes == 5
    fresh = load_model(tmp_path / "fresh")
    assert predicted(store, X).tobytes() == fresh.predict(X).tobytes()


def test_a_second_store_that_no_term_sees_is_refused(store: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.zarr", sp.csr_array((N, N)))
    given = {"graph": {"type": "given", "path": str(tmp_path / "graph.zarr")}, "weight": GI}
    with pytest.raises(ValueError, match="each term's graph is given"):
        job(store, data={"unlabelled": str(store.with_name("more.zarr"))}, manifold=given)


def test_killed_and_run_again(store: Path, tmp_path: Path) -> None:
    """After any number of tasks: the bits of a fit that was not disturbed."""
    term = {"graph": {"type": "knn", "neighbours": 5}, "weight": GI, "laplacian": "normalised"}
    run(store, manifold=term)
    wanted = load_model(tmp_path / "model").coefficients.tobytes()

    class Killed(SerialEngine):
        left = 0

        def run(self, tasks: Iterable[Task], done: Done) -> None:
            def counted(task: Task, result: Any) -> Iterable[Task]:
                self.left -= 1
                if self.left < 0:
                    raise KeyboardInterrupt
                return done(task, result)

            super().run(tasks, counted)

    again = job(store, manifold=term, state=str(tmp_path / "s2"), model=str(tmp_path / "m2"))
    for tasks in (1, 2, 4, 3, 1, 2):
        engine = Killed()
        engine.left = tasks
        with suppress(KeyboardInterrupt):
            fit(again, engine=engine)
    fit(again, engine=SerialEngine())
    assert load_model(tmp_path / "m2").coefficients.tobytes() == wanted


def test_what_no_job_has_used_for_a_month_goes(store: Path, tmp_path: Path) -> None:
    knn = {"type": "knn", "neighbours": 5}
    each = [{"graph": {**knn, "append": append}, "weight": GI} for append in ("rebuild", "link")]
    kept = list[set[Path]]()
    for term in each:
        run(store, manifold=term)
        kept.append({*(tmp_path / "state").glob("*/graphs/*"), *(tmp_path / "state").glob("*/terms/*")})
    assert [len(folders) for folders in kept] == [2, 4]
    for folder in kept[1]:
        os.utime(folder, (0, 0))
    run(store, manifold={**each[0], "weight": 2 * GI})
    assert {folder for folder in kept[1] if folder.exists()} == kept[0]


def test_rows_of_nan_inputs_are_left_out_of_everything(tmp_path: Path) -> None:
    X, Y = sea()
    X[::50] = np.nan
    store = write(tmp_path / "sea.zarr", x=X, y=Y)
    report = run(store)
    good = np.isfinite(X).all(axis=1)
    assert report.rows_used == (good & np.isfinite(Y[:, 0])).sum() and report.rows_dropped == np.sum(~good)
    assert report.rows_used + report.rows_unlabelled + report.rows_dropped == N
    L = laplacian(local_graph(X[good], KNN(5)))
    np.testing.assert_allclose(predicted(store, X[good]), dense(store, X[good], Y[good], L), rtol=0, atol=1e-8)


def test_linked_rows(store: Path) -> None:
    """Appended rows list old and new ones; the old rows' lists stay."""
    term = {"graph": {"type": "knn", "neighbours": 5, "append": "link"}, "weight": GI, "form": "edges"}
    run(store, manifold=term)
    X, Y = sea(300, seed=5)
    write(store, append=True, x=X, y=Y)
    report = run(store, manifold=term)
    both = [np.concatenate(pair) for pair in zip(sea(), (X, Y), strict=True)]
    n = N + 300
    old, every = local_lists(both[0][:N], 5), local_lists(both[0], 5)
    lists = sp.vstack([sp.hstack([old, sp.csr_array((N, 300))]), every[N:]]).tocsr()
    W = 0.5 * (lists + lists.T)
    assert report.graphs[0]["edges"] == W.nnz // 2
    term_binary = {**term, "graph": {**term["graph"], "weights": "binary"}}
    alone = store.parent / "binary"
    alone.mkdir()
    write(alone / "sea.zarr", x=both[0][:N], y=both[1][:N])
    run(alone / "sea.zarr", manifold=term_binary)
    write(alone / "sea.zarr", append=True, x=X, y=Y)
    run(alone / "sea.zarr", manifold=term_binary)
    wanted = dense(alone / "sea.zarr", *both, laplacian(W.tocsr()))
    assert len(wanted) == n
    np.testing.assert_allclose(predicted(alone / "sea.zarr", both[0]), wanted, rtol=0, atol=1e-8)


def local_lists(X: FloatArray, k: int) -> Any:
    """A (n, n): 1 where a row lists another, among all of X."""
    index, _ = neighbours(X, k)
    return sp.csr_array((np.ones(index.size), index.ravel(), np.arange(0, index.size + 1, k)), shape=(len(X), len(X)))


def test_a_terms_sums_and_graph_take_no_more_disk_than_is_planned(tmp_path: Path) -> None:
    X, _ = sea(6 * SHARD)
    store, state, most = write(tmp_path / "sea.zarr", x=X, y=X[:, :1]), tmp_path / "state", 0

    class Looking(SerialEngine):
        def run(self, tasks: Iterable[Task], done: Done) -> None:
            def look(task: Task, result: Any) -> Iterable[Task]:
                nonlocal most
                kept = [*state.rglob("graphs/**/*"), *state.rglob("terms/**/*")]
                most = max(most, sum(path.stat().st_size for path in kept if path.is_file()))
                return done(task, result)

            super().run(tasks, look)

    features = {"count": 768, "sampler": {"type": "orthogonal"}}
    words: dict[str, Any] = {"data": {"nan": "refuse"}, "features": features}
    asked = job(store, **words)
    fit(asked, engine=Looking())
    without = Job.model_validate(asked.model_dump(exclude={"manifold"}, exclude_unset=True))
    planned = make_plan(asked).costs.disk_bytes - make_plan(without).costs.disk_bytes
    assert planned / 12 < most <= planned
