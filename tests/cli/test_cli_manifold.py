"""Unlabelled rows, manifold terms and views at the command line: planned, fitted, looked at, predicted, refused."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import yaml
import zarr
from command_line import call, write_job

from dorff import load_model
from dorff.cli.sentences import term_text
from dorff.data import open_dataset
from dorff.data.edges import write_graph
from dorff.spec.data import ManifoldSpec

RNG = np.random.default_rng(7)
N, LABELLED = 240, 16
CLASS = np.arange(N) % 2
ANGLE = RNG.uniform(0.0, 2.0 * np.pi, N)
X = (1.0 + CLASS)[:, None] * np.column_stack([np.cos(ANGLE), np.sin(ANGLE)]) + 0.08 * RNG.standard_normal((N, 2))
CELLS = np.hypot(*X.T) + 0.1 * RNG.standard_normal(N)
KNOWN = np.arange(N) < LABELLED
GAUSSIAN = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.5}}
LEAF = {"within": "leaf", "neighbours": 5}
VIEWS = {"type": "multi_view", "views": [{"inputs": name, "kernel": GAUSSIAN} for name in ("x", "cells")]}
FOLDS = {"select": "kfold", "folds": {"count": 2, "by": "rows"}}


def table(path: Path, known: Any = KNOWN, rows: int = N) -> Path:
    """Rows a, b (inputs), h (another view's), c (classes) and u (a number), empty where not known."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["a", "b", "h", "known", "every", "c", "u"])
        for k in range(rows):
            labels = ["in" if CLASS[k] else "out", ANGLE[k]] if known[k] else ["", ""]
            out.writerow([*X[k], CELLS[k], int(known[k]), CLASS[k], *labels])
    return path


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets that no test changes: `ring.zarr`, and `bare.zarr` where no row is labelled."""
    folder = tmp_path_factory.mktemp("stores")
    words = ("--inputs", "a,b", "--targets", "u", "--classes", "c", "--also", "cells=h", "--also", "known=known")
    for name, known in (("ring", KNOWN), ("bare", ~(KNOWN | ~KNOWN))):
        if name == "bare":
            words = words[:4]
        made = call("ingest", table(folder / f"{name}.csv", known), folder / f"{name}.zarr", *words)
        assert made.exit_code == 0, made.stderr
    return folder


@pytest.fixture
def place(stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one, beside links to the data sets."""
    for store in stores.glob("*.zarr"):
        (tmp_path / store.name).symlink_to(store)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(path: Path, **changes: Any) -> Path:
    data = {"store": "ring.zarr", "targets": {"classes": "classes"}, "nan": "unlabelled"} | changes.pop("data", {})
    return write_job(path, **{"data": data, "kernel": GAUSSIAN, "state": "run", "model": "rings"} | changes)


def answer(*words: object) -> Any:
    """The JSON that a command prints; it must succeed."""
    result = call(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(*words: object) -> str:
    """The one sentence of a command that is refused as bad input."""
    result = call(*words)
    assert result.exit_code == 3, (result.exit_code, result.stdout, result.stderr)
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("terms", [(), ({"graph": LEAF, "weight": 1e-4},)], ids=["none", "one"])
def test_a_job_with_terms_is_not_advised_to_do_without(place: Path, terms: tuple[object, ...]) -> None:
    """The exact model, which few rows are advised to take, has none."""
    features = {"count": 1200, "sampler": {"type": "orthogonal"}}
    job(place / "job.yaml", manifold=list(terms), solve={"ridge": 1e-6}, features=features)
    done = [call(command, "job.yaml") for command in ("plan", "fit")]
    assert [one.exit_code for one in done] == [0, 0], done[1].stderr
    assert [("ExactRidge" in one.stdout + one.stderr) for one in done] == [not terms] * 2


def test_the_rows_without_labels_are_counted_and_the_weight_is_chosen(place: Path) -> None:
    manifold = {"graph": LEAF, "weight": [0, 1e-4, 1e-2], "laplacian": "normalised"}
    job(place / "job.yaml", manifold=manifold, solve={**FOLDS, "ridge": [1e-6, 1e-3]})
    planned = answer("plan", "job.yaml")
    assert planned["manifold"][0]["weight"] == [0.0, 1e-4, 1e-2] and planned["passes"] == 2
    assert "missing_rows" not in planned
    assert "5 nearest neighbours within the leaf, heat weights, normalised Laplacian" in call("plan", "job.yaml").stdout
    assert not (place / "run").exists()
    result = call("fit", "job.yaml", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["rows_used"], report["rows_unlabelled"], report["rows_dropped"]) == (LABELLED, N - LABELLED, 0)
    assert answer("plan", "job.yaml")["passes"] == 2 and "in the state" not in call("plan", "job.yaml").stdout
    (weight,) = report["manifold"]
    assert weight in (0.0, 1e-4, 1e-2)
    assert "fit: manifold term 1: 5 nearest neighbours" in result.stderr
    assert f"{LABELLED} rows used, {N - LABELLED} unlabelled, 0 dropped" in result.stderr
    assert f", manifold weight {weight:.3g}" in result.stderr
    assert (f"weight {weight:.3g} (the largest tried: list ones beyond it)" in result.stderr) == (weight == 1e-2)
    assert answer("fit", "job.yaml")["outcome"] == "unchanged"
    (state,) = answer("inspect", "run")["plans"]
    (term,) = state["terms"]
    assert term["graph"]["neighbours"] == 5 and term["normalised"] and term["receipts"] == 1 and not state["graphs"]
    assert Path(term["store"]).resolve() == (place / "ring.zarr").resolve()


def test_a_weight_that_makes_decisions_small_is_not_held_against_it(place: Path) -> None:
    """Classes are those of the largest value, however small."""
    manifold = {"graph": LEAF, "weight": [10, 1000], "laplacian": "normalised"}
    job(place / "job.yaml", manifold=manifold, solve={**FOLDS, "ridge": 1e-6})
    report = answer("fit", "job.yaml")
    assert report["score_by"] == "kfold" and report["score"] > 0.3


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ({"weight": 2}, "10 nearest neighbours within the data, heat weights, unnormalised Laplacian, weight 2"),
        (
            {"graph": {"weights": 0.5}, "weight": [0, 1e-3], "power": 2, "view": "hog", "laplacian": "normalised"},
            "view hog: 10 nearest neighbours within the data, 0.5 weights, normalised Laplacian to the power 2, "
            "weights 0, 0.001",
        ),
        ({"graph": {"type": "identity"}, "weight": 1}, "every row by itself, weight 1"),
        ({"between": True, "weight": 1}, "agreement between views, weight 1"),
        (
            {"graph": {"append": "link"}, "weight": 2, "form": "edges", "scale": "mean"},
            "10 nearest neighbours within the data, heat weights, appended rows linked, unnormalised Laplacian by "
            "edges, weight 2 (scale: mean)",
        ),
    ],
)
def test_a_term_in_words(term: dict[str, Any], text: str) -> None:
    described = ManifoldSpec.model_validate(term).model_dump(mode="json")
    assert term_text(described) == text
    assert term_text(described, Path("more.zarr")) == f"{text}, rows of more.zarr too"


def test_a_column_that_says_which_rows_are_labelled(place: Path) -> None:
    """The same rows as those whose labels are not there: the same coefficients."""
    group = zarr.open_group(str(place / "whole.zarr"), mode="w", zarr_format=2)
    for name, values in (("x", X), ("classes", CLASS), ("known", KNOWN)):
        group.create_array(name, data=values, chunks=values.shape, config={"write_empty_chunks": True})
    found = []
    for number, data in enumerate(({"store": "whole.zarr", "nan": "unlabelled", "labelled": "known"}, {})):
        parts = {"manifold": {"graph": LEAF, "weight": 1e-3}, "state": f"run{number}", "model": f"model{number}"}
        report = answer("fit", job(place / f"{number}.yaml", data=data, **parts))
        assert report["rows_unlabelled"] == N - LABELLED and report["manifold"] == [1e-3]
        model = load_model(place / f"model{number}")
        # Labels are in order of size, or of first appearance: 0 and "out" come first both times.
        found.append(model.predict(X))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-8)


def test_a_graph_across_leaves_is_said_by_inspect(place: Path) -> None:
    manifold = {"graph": {"neighbours": 4, "weights": "binary"}, "weight": 1e-3}
    report = answer("fit", job(place / "job.yaml", manifold=manifold))
    (state,) = answer("inspect", "run")["plans"]
    (graph,) = state["graphs"]
    assert graph["finished"] and graph["nodes"] == N and graph["graph"]["neighbours"] == 4 and graph["shards"] >= 1
    assert N * 4 / 2 <= graph["edges"] <= N * 4 and graph["edges"] == report["graphs"][0]["edges"]
    (file,) = (place / "run").rglob("graph.json")
    file.write_bytes(file.read_bytes()[:-5])
    assert f"{file.relative_to(place)}: is damaged" in refused("inspect", "run")


def ring_graph() -> sp.csr_array:
    """Edges between rows that are next to one another on their ring."""
    rings = [np.flatnonzero(c == CLASS) for c in range(2)]
    rows = [ring[np.argsort(ANGLE[ring])] for ring in rings]
    i, j = (np.concatenate(parts) for parts in zip(*((one, np.roll(one, 1)) for one in rows), strict=True))
    W = sp.coo_array((np.ones(N), (i, j)), shape=(N, N))
    return sp.csr_array(W + W.T)


@pytest.mark.parametrize("name", ["edges.parquet", "edges.zarr"])
def test_a_graph_that_is_given(place: Path, name: str) -> None:
    W = ring_graph()
    write_graph(place / name, W)
    said = answer("inspect", name)
    assert (said["kind"], said["nodes"], said["entries"]) == ("graph", N, W.nnz) and said["bytes"] > 0
    manifold = {"graph": {"type": "given", "path": name}, "weight": 1e-2}
    job(place / "job.yaml", manifold=manifold)
    assert f"the graph {place / name}, unnormalised Laplacian, weight 0.01" in call("plan", "job.yaml").stdout
    assert answer("fit", "job.yaml")["graphs"][0]["edges"] == N
    labels = np.argmax(load_model(place / "rings").predict(X), axis=1)
    assert np.mean(labels == CLASS) > 0.9  # two rings, each in one piece


def test_a_row_that_all_others_are_joined_to_is_in_the_plan(place: Path) -> None:
    """L^2 takes a row with all that it is joined to: of as many edges, in a star they are all rows at once."""
    n, d = 40_000, 2_000
    made = zarr.open_group(place / "wide.zarr", mode="w")
    made.create_array("x", shape=(n, d), chunks=(64, d), dtype="u1")  # no row of it is there: none is read
    made.create_array("y", shape=(n, 1), chunks=(64, 1), dtype="f8")
    ends = np.arange(1, n)
    for name, tails in (("path", ends - 1), ("star", 0 * ends)):
        pq.write_table(pa.table({"i": tails, "j": ends}), place / f"{name}.parquet")
    results = {}
    for name in ("path", "star"):
        manifold = {"graph": {"type": "given", "path": f"{name}.parquet"}, "weight": 1e-2, "power": 2}
        cluster = {"type": "local", "workers": 1, "memory": "2GiB"}
        data = {"store": "wide.zarr", "inputs": "x", "targets": "y"}
        job(place / "job.yaml", manifold=manifold, data=data, solve={"ridge": 1e-6}, cluster=cluster)
        results[name] = call("plan", "job.yaml", "--json")
    assert json.loads(results["path"].stdout)["worker_bytes"] < 2**30
    assert results["star"].exit_code == 4
    said = re.search(r"a worker needs (\d+) MiB but cluster.memory is 2048 MiB", results["star"].stderr)
    assert said is not None and int(said[1]) > 4 * 8 * n * d / 2**20
    assert "lower the edges of a row in manifold (now up to 39999) or features.count (now 64)" in results["star"].stderr


def test_edges_of_fewer_rows_than_there_are(place: Path) -> None:
    """A list of edges does not say of how many rows it is."""
    W = sp.coo_array(ring_graph())
    keep = (W.row < N - 40) & (W.col < N - 40)
    pq.write_table(pa.table({"i": W.row[keep], "j": W.col[keep]}), place / "edges.parquet")
    some = N - len(set(W.row[keep]))
    manifold = {"graph": {"type": "given", "path": "edges.parquet"}, "weight": 1e-2}
    result = call("fit", job(place / "job.yaml", manifold=manifold, data={"unlabelled": None}), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["graphs"][0]["rows_without_edges"] == some >= 40
    assert f" 0 dropped, {some} of {N} without an edge in the graph of manifold term 1; " in result.stderr


def test_rows_dropped_from_the_targets_are_still_in_the_graph(place: Path) -> None:
    changes = {"data": {"nan": "drop"}, "solve": {**FOLDS, "ridge": [1e-6, 1e-3]}}
    for manifold, words in (
        ([], "dropped; "),
        (
            {"graph": LEAF, "weight": 1e-3},
            "dropped from the targets (manifold terms still see those of finite inputs); ",
        ),
    ):
        result = call("fit", job(place / "job.yaml", manifold=manifold, data=changes["data"], solve=changes["solve"]))
        assert result.exit_code == 0, result.stderr
        assert f"{LABELLED} rows used, {N - LABELLED} {words}" in result.stdout
        seen = ", which the graphs see" if manifold else ""
        assert ", held-out R2 " in result.stdout and f" of one-hot rows{seen} (kfold); model" in result.stdout


def test_a_column_that_says_no_row_is_labelled(place: Path) -> None:
    np.savez(place / "none.npz", x=X, y=ANGLE, known=np.zeros(N))
    assert (
        call("ingest", "none.npz", "none.zarr", "--inputs", "x", "--targets", "y", "--also", "known=known").exit_code
        == 0
    )
    data = {"store": "none.zarr", "targets": "y", "labelled": "known"}
    found = refused("fit", job(place / "job.yaml", data=data, manifold={"graph": LEAF, "weight": 1e-2}))
    assert found.endswith("give some rows their targets, and a 1 in known, the column of data.labelled")


def heavier(W: sp.csr_array) -> sp.csr_array:
    """The same, an edge heavier in one direction."""
    values = W.data.copy()
    values[0] = 2.0
    return sp.csr_array((values, W.indices, W.indptr), shape=W.shape)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda W: sp.block_diag([W, sp.eye(1)]), f"wanted one node a row, {N}, got a graph of {N + 1}"),
        (lambda W: -W, "wanted finite weights of at least 0, got -1.0 between 0 and "),
        (heavier, "wanted symmetric weights, got 2.0 from 0 to "),
    ],
    ids=["another length", "negative", "asymmetric"],
)
def test_a_graph_that_is_refused(place: Path, change: Any, sentence: str) -> None:
    W = sp.csr_array(change(ring_graph()))
    group = zarr.open_group(place / "edges", mode="w")
    for part in ("indptr", "indices", "data"):
        group.create_array(part, data=getattr(W, part))
    manifold = {"graph": {"type": "given", "path": "edges"}, "weight": 1e-2}
    found = refused("fit", job(place / "job.yaml", manifold=manifold))
    assert found.startswith(f"dorff: {place / 'edges'}: ") and sentence in found
    assert not (place / "rings/current").exists()


@pytest.mark.slow
def test_a_ridge_that_is_left_out_keeps_the_digits(place: Path) -> None:
    """Classes that the inputs tell apart ask for ever smaller ones, and of terms there is no QR."""
    for number, parts in enumerate(({"manifold": {"graph": LEAF, "weight": 1e-4}}, {"kernel": VIEWS})):
        folders = {"state": f"run{number}", "model": f"rings{number}"}
        report = answer("fit", job(place / "job.yaml", features={"count": 1200}, **parts, **folders))
        assert report["digits"] > 3 and len(report["table"]) > 9


def test_views_predict_together_and_alone(place: Path) -> None:
    manifold = [{"between": True, "weight": 1e-3}, {"view": "x", "graph": LEAF, "weight": 1e-3}]
    parts = {"kernel": VIEWS, "manifold": manifold, "solve": {"ridge": 1e-6, "calibrate": False}}
    report = answer("fit", job(place / "job.yaml", **parts))
    assert report["manifold"] == [1e-3, 1e-3]
    model = load_model(place / "rings")
    each = model.predict_views(np.column_stack([X, CELLS]))
    assert answer("inspect", "rings")["views"] == ["x", "cells"]
    assert answer("predict", "rings", "ring.zarr", "all.zarr")["rows"] == N
    group = zarr.open_group(str(place / "alone.zarr"), mode="w", zarr_format=2)
    group.create_array("cells", data=CELLS[:, None], chunks=(50, 1))  # the other view is not there
    answer("predict", "rings", "alone.zarr", "some.zarr", "--views", "cells", "--workers", 1)
    for name, wanted in (("all", each.mean(axis=1)), ("some", each[:, 1])):
        found = open_dataset(place / f"{name}.zarr", inputs="y", targets=None).read(0, N)[0]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    assert "there is no view 'cell'" in refused("predict", "rings", "ring.zarr", "new.zarr", "--views", "cell")
    assert "has no array 'x'" in refused("predict", "rings", "alone.zarr", "new.zarr")
    assert "--views x,,: a name is empty" in refused("predict", "rings", "ring.zarr", "new.zarr", "--views", "x,,")
    page = call("report", "rings", "-o", place / "page.html")
    assert page.exit_code == 0, page.stderr
    text = (place / "page.html").read_text(encoding="utf-8")
    assert "The mean of 2 views" in text and "View cells: Decomposable" in text and "Rows unlabelled" in text


def test_scores_of_some_views(place: Path) -> None:
    parts = {"kernel": VIEWS, "manifold": {"between": True, "weight": 1e-3}, "data": {"targets": "every"}}
    group = zarr.open_group(str(place / "num.zarr"), mode="w", zarr_format=2)
    for name, values in (("x", X), ("cells", CELLS[:, None]), ("every", CLASS.astype(float))):
        group.create_array(name, data=values, chunks=(60, *values.shape[1:]))
    parts["data"] = {"store": "num.zarr", "targets": "every"}
    answer("fit", job(place / "job.yaml", **parts))
    model = load_model(place / "rings")
    for words, views in (((), None), (("--views", "cells"), ["cells"]), (("--views", "x,cells"), None)):
        found = answer("score", "rings", "num.zarr", "--targets", "every", "--workers", 1, *words)
        error = model.predict(np.column_stack([X, CELLS]), views=views)[:, 0] - CLASS
        assert found["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)
    answer("fit", job(place / "one.yaml", data=parts["data"], model="plain"))
    assert "the model's kernel is not multi-view" in refused("score", "plain", "num.zarr", "--views", "x")


def test_rows_of_a_second_data_set(place: Path) -> None:
    """They count as rows of the term, not of the fit."""
    np.savez(place / "more.npz", x=X[LABELLED:])
    assert call("ingest", "more.npz", "more.zarr", "--inputs", "x").exit_code == 0
    manifold = {"graph": LEAF, "weight": 1e-2, "scale": "mean"}
    job(place / "job.yaml", manifold=manifold, data={"unlabelled": "more.zarr"})
    assert answer("plan", "job.yaml")["passes"] == 3
    assert f"weight 0.01 (scale: mean), rows of {place / 'more.zarr'} too" in call("plan", "job.yaml").stdout
    report = answer("fit", "job.yaml")
    assert report["rows_used"] == LABELLED and report["graphs"][0]["rows"] == 2 * N - LABELLED
    assert report["rows_unlabelled"] == 2 * (N - LABELLED)
    more = call("fit", job(place / "job.yaml", manifold={**manifold, "power": 2}, data={"unlabelled": "more.zarr"}))
    assert " s, sums of targets done before; " in more.stdout
    np.savez(place / "wide.npz", x=np.column_stack([X, X]))
    assert call("ingest", "wide.npz", "wide.zarr", "--inputs", "x").exit_code == 0
    job(place / "wide.yaml", manifold=manifold, data={"unlabelled": "wide.zarr"})
    found = refused("fit", "wide.yaml")
    assert found.startswith("dorff: data.unlabelled: ") and "4 inputs" in found


@pytest.mark.parametrize("command", ["fit", "tune"])
def test_no_row_is_labelled(place: Path, command: str) -> None:
    manifold = {"graph": LEAF, "weight": 1e-2}
    job(place / "job.yaml", manifold=manifold, data={"store": "bare.zarr", "targets": "y"}, solve=FOLDS)
    found = refused(command, "job.yaml")
    assert (
        found.startswith("dorff: ")
        and "all are unlabelled; give some" in found
        and not (place / "rings/current").exists()
    )


def test_views_of_other_lengths_or_arrays(place: Path) -> None:
    group = zarr.open_group(str(place / "odd.zarr"), mode="w", zarr_format=2)
    for name, values in (("x", X), ("cells", CELLS[:-1]), ("y", ANGLE)):
        group.create_array(name, data=values, chunks=values.shape)
    data = {"store": "odd.zarr", "targets": "y"}
    found = refused("fit", job(place / "job.yaml", kernel=VIEWS, data=data))
    assert f"array x has {N} rows but array cells has {N - 1}" in found
    data = {**data, "inputs": "x"}
    assert "data.inputs must be the arrays of the kernel's views" in refused(
        "fit", job(place / "job.yaml", kernel=VIEWS, data=data)
    )


def test_tuned_weights_are_those_of_the_best_job(place: Path) -> None:
    manifold = [{"graph": LEAF, "weight": [1e-4, 1e-2]}, {"graph": {"type": "identity"}, "weight": [0, 1e-3]}]
    job(place / "job.yaml", manifold=manifold, solve={**FOLDS, "ridge": [1e-6, 1e-3]})
    result = call("tune", "job.yaml", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    weights = found["best"]["manifold"]
    assert len(found["table"]) == 8 and weights[0] in (1e-4, 1e-2) and weights[1] in (0.0, 1e-3)
    assert f"the best weight of manifold term 1, {weights[0]:.3g}, is the " in result.stderr
    best = yaml.safe_load((place / "job-tune/best.yaml").read_text())
    assert [term["weight"] for term in best["manifold"]] == weights
    with (place / "job-tune/path.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["manifold"] for line in lines} >= {"0.0001 0.0", "0.01 0.001"}
    before = answer("inspect", "run")["bytes"]
    report = answer("fit", "job-tune/best.yaml")
    assert (
        report["manifold"] == weights and report["leaves_computed"] == 0 and before <= answer("inspect", "run")["bytes"]
    )
    lowest = min(found["table"], key=lambda trial: trial["value"])
    assert lowest["manifold"] == weights and lowest["ridge"] == report["ridge"]
