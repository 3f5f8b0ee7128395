"""Folds by groups: all rows of a group in one fold, whatever is appended, as a k-fold by hand. And folds of few labels
among many rows."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dorff.cli.sentences import fit_text
from dorff.data import RowBlock, ingest, open_dataset, verify
from dorff.data.dataset import group_keys
from dorff.data.labels import NO_GROUP, Run, group_codes
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import FitReport, fit, run_pass
from dorff.fit import held as held_rows
from dorff.fit.choice import solve_pass
from dorff.fit.held import Held, calibrate, conformalize
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model.calibration import Calibration, Conformal
from dorff.passes import FoldRule
from dorff.passes import blocks as leaf_sizes
from dorff.passes.frozen import GROUPED
from dorff.plan import freeze_constants, make_plan
from dorff.spec.job import Job
from dorff.store import load_model
from tests.cases import LAW
from tests.command_line import call

N, SHARD, SEED, COUNT = 600, 128, 4, 3
RIDGES = (1e-4, 1e-1)
RNG = np.random.default_rng(8)
TRIAL = np.sort(RNG.integers(0, 14, N))
X = RNG.standard_normal((N, 2)) + 0.3 * RNG.standard_normal((14, 2))[TRIAL]
Y = np.sin(X[:, :1] * 2) + X[:, 1:] + RNG.standard_normal((14, 1))[TRIAL]


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves of a shard, so that small data have several."""
    monkeypatch.setattr(leaf_sizes, "SMALLEST_LEAF", SHARD)
    monkeypatch.setattr(leaf_sizes, "LARGE_FIRST_LEAF", SHARD)


def fold_by_hand(value: float, count: int = COUNT) -> int:
    """Vigna's splitmix64 (2015) of the value's eight bytes, started at the seed."""
    mask = 2**64 - 1
    z = (int(np.float64(value).view(np.uint64)) + SEED * 0x9E3779B97F4A7C15) & mask
    z = (z + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return (z ^ z >> 31) % count


def write(path: Path, rows: slice, *, groups: npt.NDArray[Any] = TRIAL, append: bool = False) -> Path:
    source = path.with_suffix(".npz")
    weights = np.linspace(0.5, 2.0, N)
    np.savez(
        source,
        x=X[rows],
        y=Y[rows],
        w=weights[rows],
        trial=groups[rows],
        name=np.char.add("t", TRIAL.astype(str))[rows],
    )
    shard_rows = None if append else SHARD
    ingest(
        [source], path, inputs=["x"], targets=["y"], weights="w", groups="trial", append=append, shard_rows=shard_rows
    )
    return path


def job(store: Path, folder: Path, *, by: str = "groups", data: dict[str, Any] | None = None, **solve: Any) -> Job:
    gaussian = {"type": "gaussian", "lengthscale": 1.0}
    described = {
        "data": {"store": str(store), "weights": "weights", **(data or {})},
        "kernel": {"type": "decomposable", "scalar": gaussian},
        "features": {"count": 24, "sampler": {"type": "orthogonal"}, "seed": SEED},
        "solve": {"ridge": RIDGES, "select": "kfold", "folds": {"count": COUNT, "by": by}, "posterior": False} | solve,
        "cluster": {"type": "serial"}, "state": str(folder / "state"), "model": str(folder / "model"),
    }  # fmt: skip
    return Job.model_validate(described)


def fitted(described: Job) -> tuple[Model, FitReport]:
    report = fit(described, engine=SerialEngine())
    return load_model(Path(described.model)), report


def held_out_error(F: FloatArray, y: FloatArray, w: FloatArray, fold: npt.NDArray[np.int64], ridge: float) -> float:
    """K-fold by hand: each fold predicted by weighted least squares of the others' rows."""
    error = 0.0
    for held in np.unique(fold):
        train, test = fold != held, fold == held
        root = np.sqrt(w[train] / w[train].sum())[:, None]
        A = np.vstack([root * np.column_stack([F[train], np.ones(train.sum())]), np.sqrt(ridge) * np.eye(25)[:24]])
        h = np.linalg.lstsq(A, np.concatenate([root[:, 0] * y[train, 0], np.zeros(24)]), rcond=None)[0]
        error += float(np.sum(w[test] * (y[test, 0] - F[test] @ h[:24] - h[24]) ** 2))
    return error / float(w.sum())


def test_k_fold_by_groups_is_k_fold_by_hand(tmp_path: Path) -> None:
    store = write(tmp_path / "s.zarr", slice(N))
    model, report = fitted(job(store, tmp_path))
    fold = np.array([fold_by_hand(trial) for trial in TRIAL])
    assert len(np.unique(fold)) == COUNT
    F, w = model.feature_map.transform(X), np.linspace(0.5, 2.0, N)
    for row in report.table:
        np.testing.assert_allclose(row["value"], held_out_error(F, Y, w, fold, row["ridge"]), rtol=1e-8)
    assert [row["ridge"] for row in report.table] == list(RIDGES) and report.reads == 1.0


@pytest.mark.statistical
def test_few_groups_that_are_found_leave_no_fold_empty(tmp_path: Path) -> None:
    """Every fold has some where there are as many; those that a job names are dealt by its seed."""
    for count, groups in ((5, 7), (7, 7), (5, 3), (4, 40)):
        of = np.arange(N) * groups // N
        store = write(tmp_path / f"{count}-{groups}.zarr", slice(N), groups=of)
        described = job(store, tmp_path / f"{count}-{groups}", folds={"count": count})
        frozen = freeze_constants(make_plan(described))
        folds = run_pass(make_plan(described), SerialEngine()).folds
        rows = [moments.n for moments in folds.values()]
        assert len(rows) == min(count, groups) and sum(rows) == N
        assert max(rows) <= -(-groups // count) * -(-N // groups)
        assert frozen.constants.fold_seed is not None and frozen.folds.seed == frozen.constants.fold_seed
        named = freeze_constants(
            make_plan(job(store, tmp_path / f"named{count}-{groups}", folds={"count": count, "by": "groups"}))
        )
        assert named.constants.fold_seed is None and named.folds.seed == SEED
    X, of = np.random.default_rng(0).normal(size=(6300, 2)), np.arange(6300) // 900
    np.savez(tmp_path / "tracks.npz", x=X, y=X, of=of)
    ingest([tmp_path / "tracks.npz"], tmp_path / "tracks.zarr", inputs=["x"], targets=["y"], groups="of")
    described = job(tmp_path / "tracks.zarr", tmp_path / "tracks", data={"weights": None}, folds={"count": 7})
    folds = run_pass(make_plan(described), SerialEngine()).folds
    assert [moments.n for moments in folds.values()] == [900] * 7, "of a sample of runs of rows too"
    many = write(tmp_path / "many.zarr", slice(N), groups=np.arange(N) // 2)
    assert freeze_constants(make_plan(job(many, tmp_path / "many", folds={"count": 3}))).constants.fold_seed is None


@LAW
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=60), st.integers(2, 9))
def test_even_folds_are_by_groups_and_no_worse(groups: list[int], count: int) -> None:
    keys = np.array(groups, np.uint64)
    rule = FoldRule(count, True, SEED, run=GROUPED)
    even = rule.even(keys)
    dealt, before = even.of_rows(keys), rule.of_rows(keys)
    assert np.sum(np.bincount(dealt) ** 2) <= np.sum(np.bincount(before) ** 2)
    assert replace(even, seed=SEED) == rule
    if len(set(groups)) <= 3:
        assert len(np.unique(dealt)) == min(count, len(set(groups)))


@pytest.mark.parametrize("by", ["groups", "trial", "x1", "weights"])
def test_any_column_may_be_the_groups(tmp_path: Path, by: str) -> None:
    """An array by its name, or a column: of its values the folds are made."""
    store = write(tmp_path / "s.zarr", slice(N), groups=TRIAL.astype(np.float64))
    values = {"x1": X[:, 1], "weights": np.linspace(0.5, 2.0, N)}.get(by, TRIAL)
    folds = run_pass(make_plan(job(store, tmp_path, by=by)), SerialEngine()).folds
    wanted = np.bincount([fold_by_hand(value) for value in values], minlength=COUNT)
    assert {fold: moments.n for (fold, _), moments in folds.items()} == dict(enumerate(wanted))


def test_appended_rows_of_a_known_group_are_in_its_fold(tmp_path: Path) -> None:
    """Appended in two steps, cut within groups: the bits of one fit of all rows, and old leaves are used again."""
    store = write(tmp_path / "s.zarr", slice(0, 300))
    fitted(job(store, tmp_path))
    write(store, slice(300, 450), append=True)
    write(store, slice(450, N), append=True)
    model, report = fitted(job(store, tmp_path))
    assert report.leaves_reused == 2 and report.reads == (N - 2 * SHARD) / N
    whole = write(tmp_path / "w.zarr", slice(N))
    twin, other = fitted(job(whole, tmp_path / "twin"))
    assert np.array_equal(model.predict(X), twin.predict(X)) and report.table == other.table


def test_one_group_is_held_out_where_one_fold_is(tmp_path: Path) -> None:
    """Fold 0 is the one that the first used row's group is in, of `count`; every row of it, and none else."""
    groups = TRIAL + 100
    store = write(tmp_path / "s.zarr", slice(N), groups=groups)
    plan = make_plan(job(store, tmp_path, select="gcv", conformal=True, posterior="auto"))
    folds = run_pass(plan, SerialEngine()).folds
    held = sum(fold_by_hand(group) == fold_by_hand(groups[0]) for group in groups)
    assert {fold: moments.n for (fold, _), moments in folds.items()} == {0: held, 1: N - held} and 0 < held < N
    rule, read = freeze_constants(plan).folds, plan.dataset.block(0, N)
    assert np.sum(rule.of(read) == 0) == held and rule.of(read)[0] == 0


def test_one_group_alone_cannot_be_held_out(tmp_path: Path) -> None:
    store = write(tmp_path / "s.zarr", slice(N), groups=np.zeros(N))
    with pytest.raises(InputError, match="at least two folds"):
        fit(job(store, tmp_path), engine=SerialEngine())
    with pytest.raises(InputError, match="has no array 'trail'"):
        make_plan(job(store, tmp_path, by="trail"))
    with pytest.raises(InputError, match="wanted one column, but array 'x' has 2; name one of them: x0, x1"):
        make_plan(job(store, tmp_path, by="x"))


@LAW
@given(
    st.lists(st.integers(-(2**53), 2**53) | st.floats(allow_nan=True, allow_infinity=True), min_size=1),
    st.integers(2, 7), st.booleans(),
)  # fmt: skip
def test_equal_values_are_one_group(values: list[float], count: int, held: bool) -> None:
    real = np.array(values, np.float64)
    rule = FoldRule.one_held(count, True, SEED, GROUPED) if held else FoldRule(count, True, SEED, run=GROUPED)

    def folds(values: npt.NDArray[Any]) -> list[int]:
        n = len(values)
        return rule.of(RowBlock(np.arange(n), np.zeros((n, 1)), np.zeros((n, 0)), None, group_keys(values))).tolist()

    found = folds(real)
    assert found == folds(np.where(real == 0, -real, real)) == folds(np.concatenate([real, real]))[len(real) :]
    if not held:
        assert found == [fold_by_hand(value if value != 0 else 0.0, count) for value in real]
    whole = np.isfinite(real) & (real == np.round(real)) & (np.abs(real) <= 2**53)
    assert folds(real[whole].astype(np.int64)) == [fold for fold, one in zip(found, whole, strict=True) if one]


def test_large_whole_numbers_are_told_apart() -> None:
    values = np.array([2**60, 2**60 + 1, -(2**63), 2**53 + 1, 2**53])
    assert len(np.unique(group_keys(values))) == 5
    assert len(np.unique(group_keys(np.array([0.0, -0.0, np.nan, -np.nan])))) == 2


def test_ingest_keeps_groups_of_any_kind(tmp_path: Path) -> None:
    """Codes depend on the label alone: not on the file's format, on its type there, or on what came before."""
    texts = ["a", "7", "", "07", "b", "7", "a", "1.5", "True"]
    numbers = np.arange(9.0)
    (tmp_path / "a.csv").write_text("x,g\n" + "\n".join(f"{n},{t}" for n, t in zip(numbers, texts, strict=True)) + "\n")
    np.savez(tmp_path / "b.npz", x=numbers, g=np.array(texts))
    np.savez(tmp_path / "c.npz", x=numbers, g=np.array([7.0, np.nan, 1.5, 8, 8, -3, 2.0**60, 7, 0]))
    said: list[str] = []
    made = tmp_path / "s.zarr"
    ingest([tmp_path / "a.csv"], made, inputs=["x"], groups="g", shard_rows=4, notice=said.append)
    ingest([tmp_path / "b.npz", tmp_path / "c.npz"], made, inputs=["x"], groups="g", append=True, notice=said.append)
    assert [sentence for sentence in said if "no group" in sentence] == [
        f"{few} of {rows} rows have no group: together they are one more group" for few, rows in ((1, 9), (2, 18))
    ]
    dataset = open_dataset(made, targets=None, groups="groups")
    codes = dataset.exact("groups", 0, 27)[:, 0]
    assert codes.dtype == np.int64 and verify(made) == []
    assert codes[:9].tolist() == codes[9:18].tolist()  # of a file, and of another format
    assert codes[[1, 5, 18, 25]].tolist() == [7] * 4 and codes[[2, 19]].tolist() == [NO_GROUP] * 2
    assert codes[7] == codes[20] and codes[21:24].tolist() == [8, 8, -3] and codes[24] != 2**60 and codes[26] == 0
    assert len(set(codes[:9].tolist())) == 7
    together = group_codes(Run(("b", "a"), np.array([1, 0, -1], np.int32)), "here")
    assert together[:, 0].tolist() == [codes[0], codes[4], NO_GROUP]


def test_ingest_reads_groups_beside_classes(tmp_path: Path) -> None:
    """Two columns of labels from two files side by side, or one column as both."""
    (tmp_path / "a.csv").write_text("x,kind\n1,u\n2,v\n3,u\n")
    (tmp_path / "b.csv").write_text("who,w\nann,1\nbob,2\nann,0\n")
    both = f"{tmp_path}/a.csv+{tmp_path}/b.csv"
    ingest([both], tmp_path / "s.zarr", inputs=["x"], classes="kind", groups="who", weights="w")
    ingest([both], tmp_path / "t.zarr", inputs=["x"], classes="who", groups="who")
    one, other = (open_dataset(tmp_path / f"{name}.zarr", targets=None) for name in "st")
    assert one.exact("classes", 0, 3)[:, 0].tolist() == other.exact("classes", 0, 3)[:, 0].tolist() == [0, 1, 0]
    groups = one.exact("groups", 0, 3)[:, 0]
    assert groups.tolist() == other.exact("groups", 0, 3)[:, 0].tolist() and groups[0] == groups[2] != groups[1]
    assert one.exact("weights", 0, 3)[:, 0].tolist() == [1.0, 2.0, 0.0]
    for options, words in (
        ({"inputs": ["x", "w"], "groups": "w"}, "groups: column 'w' is among the inputs too.*solve.folds.by: w"),
        ({"inputs": ["x"], "weights": "w", "groups": "w"}, "groups: column 'w' is among the weights too"),
        ({"inputs": ["x"], "groups": "=1"}, "groups: wanted one column of labels, got a constant, =1"),
    ):
        with pytest.raises(InputError, match=words):
            ingest([both], tmp_path / "u.zarr", **options)


def test_the_command_line_takes_weights_and_groups(tmp_path: Path) -> None:
    rows = np.column_stack([X, Y, np.linspace(0.5, 2.0, N)]).tolist()
    lines = [f"{','.join(map(repr, row))},trial {trial}" for row, trial in zip(rows, TRIAL, strict=True)]
    source, made = tmp_path / "a.csv", tmp_path / "s.zarr"
    source.write_text("\n".join(["a,b,y,w,trial", *lines]) + "\n")
    words = ("ingest", source, made, "--inputs", "a,b", "--targets", "y", "--shard-rows", SHARD)
    assert (
        call(*words, "--weights", "w", "--groups", "trial", "--json").stdout == f'{{"rows": {N}, "store": "{made}"}}\n'
    )
    described = tmp_path / "job.yaml"
    described.write_text(json.dumps(job(made, tmp_path).model_dump(mode="json", exclude_none=True)))
    report = json.loads(call("fit", described, "--json").stdout)
    assert report["rows_used"] == N and report["reads"] == 1.0 and len(report["table"]) == len(RIDGES)
    for option in ("--weights", "--groups"):
        refused = call(*words[:2], tmp_path / "t.zarr", *words[3:], option, "a,w")
        assert refused.exit_code == 3 and f"{option} a,w: wanted one column of" in refused.stderr


def test_a_unit_of_rows_takes_no_more_memory_than_it_says(tmp_path: Path) -> None:
    wide = np.abs(RNG.standard_normal((40_000, 40)))
    np.savez(tmp_path / "a.npz", x=wide[:, :3], y=wide[:, 3:], g=np.arange(40_000))
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", inputs=["x"], targets=["y"], groups="g", shard_rows=20_000)
    for groups in ("groups", "y7"):
        dataset = open_dataset(tmp_path / "s.zarr", targets=None, weights="y7", groups=groups)
        dataset.block(0, 10)
        tracemalloc.start()
        dataset.block(0, dataset.unit_rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= dataset.unit_bytes()


MANY, RUN = 1600, 32  # rows, of which few have labels; and how many are read at a time
LABELS = {
    "first": np.arange(60),
    "together": np.arange(1000, 1060),
    "scattered": RNG.permutation(MANY)[:60],
    "periodic": np.flatnonzero(np.arange(MANY) // RUN % 5 == 2),
    "all": np.arange(MANY),
}


def put(folder: Path, **arrays: npt.NDArray[Any]) -> None:
    """Arrays of the store of `sparse`, in the place of what was there."""
    group = zarr.open_group(str(folder / "s.zarr"), mode="a")
    for name, values in arrays.items():
        group.create_array(
            name, data=values[:, None], chunks=(RUN, 1), shards=(SHARD, 1), overwrite=True,
            config={"write_empty_chunks": True},
        )  # fmt: skip


def sparse(folder: Path, labels: str = "first", *, numbers: bool = False, **solve: Any) -> Job:
    """Rows of which few have a class, or a number, and the others nothing."""
    rng = np.random.default_rng(1)
    x, known = rng.standard_normal(MANY), np.isin(np.arange(MANY), LABELS[labels])
    y = np.where(known, np.sin(x) + 0.1 * rng.standard_normal(MANY), np.nan)
    put(folder, x=x, y=y, c=(x > 0).astype(np.int64), known=known.astype(float))
    data = {"targets": "y"} if numbers else {"targets": {"classes": "c"}, "labelled": "known"}
    described = {
        "data": {"store": str(folder / "s.zarr"), "nan": "unlabelled", **data},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
        "features": {"count": 8, "sampler": {"type": "orthogonal"}, "seed": SEED},
        "solve": {"ridge": 1e-4, **solve}, "cluster": {"type": "serial"},
        "state": str(folder / "state"), "model": str(folder / "model"),
    }  # fmt: skip
    return Job.model_validate(described)


def of_fold_0(labels: str) -> npt.NDArray[np.int64]:
    """The labelled rows that the first row's fold of five has: by hash, as no group is given."""
    rows = np.sort(LABELS[labels])
    dealt = FoldRule(5, by_rows=True, seed=SEED).of_rows(np.append(0, rows))
    return rows[dealt[1:] == dealt[0]]


def held(described: Job) -> Held:
    plan = make_plan(described)
    passed = run_pass(plan, SerialEngine())
    found = Held.of(plan, solve_pass(plan, passed), passed)
    assert found is not None
    return found


def numbers_of(found: Held, most: int) -> list[int]:
    return [int(number) for rows in found.rows(most) for number in rows.numbers]


@pytest.mark.slow
@pytest.mark.parametrize("labels", [*LABELS][:4])
def test_labelled_rows_of_a_fold_are_found_wherever_they_are(tmp_path: Path, labels: str) -> None:
    """All there are, and no other; fewer where fewer are wanted. The same where sums are there already."""
    described, wanted = sparse(tmp_path, labels), of_fold_0(labels)
    first, again = held(described), held(described)
    for most in (1, 5, 20, len(wanted), 10**6):
        some = numbers_of(first, most)
        assert some == numbers_of(again, most) and set(some) <= set(wanted.tolist())
        assert min(most, len(wanted)) <= len(some) == len(set(some)) < most + RUN
        assert most < len(wanted) or sorted(some) == wanted.tolist()
        assert most < 20 or labels not in ("scattered", "periodic") or len({4 * row // MANY for row in some}) > 2
    assert first.n == len(wanted) > 5
    read = sum(leaf.stop - leaf.start for leaf in first.leaves)
    assert read < MANY / 3 if labels in ("first", "together") else read > MANY / 2


def test_rows_that_are_held_out_are_spread_over_the_leaves(tmp_path: Path) -> None:
    """Of data in order of anything, however few of the rows are wanted."""
    found = held(sparse(tmp_path, "all", numbers=True, conformal=True, folds={"by": "leaves"}))
    assert len(found.leaves) == 3 and found.n == 2 * SHARD + SHARD // 2  # the last is shorter
    some = np.array(numbers_of(found, found.n // 4))
    counts = [
        np.sum((some >= at) & (some < at + 32)) for leaf in found.leaves for at in range(leaf.start, leaf.stop, 32)
    ]
    assert len(some) == found.n // 4 and min(counts) >= 5 and max(counts) <= 11


def test_rare_labels_are_not_looked_for_in_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all that are wanted would take another pass over the data, some must do."""
    monkeypatch.setattr(held_rows, "ENOUGH", 3)
    monkeypatch.setattr(held_rows, "READ", 1)
    found, wanted = held(sparse(tmp_path, "scattered")), of_fold_0("scattered")
    some = numbers_of(found, len(wanted))
    assert set(some) < set(wanted.tolist()) and len(some) >= 3


@pytest.mark.statistical
def test_what_is_held_out_calibrates_and_says_how_wide_bands_are(tmp_path: Path) -> None:
    """The first rows alone are labelled, and nobody said how folds are dealt: a fifth of the labelled rows."""
    rows = len(of_fold_0("first"))
    model, report = fitted(sparse(tmp_path))
    calibration = Calibration.of(model.info["calibration"])
    assert calibration.rows == rows and calibration.slope != 1.0
    assert report.held_by == "rows" and "not calibrated" not in fit_text(report, classes=True)
    model, _ = fitted(sparse(tmp_path / "numbers", numbers=True, conformal=True))
    assert Conformal.of(model.info["conformal"]).rows == (rows,)
    _, report = fitted(sparse(tmp_path / "kfold", numbers=True, select="kfold", ridge=RIDGES))
    assert report.folds == 5 and len(report.table) == 2


@pytest.mark.slow
def test_where_one_fold_has_all_labels_it_is_said(tmp_path: Path) -> None:
    leaves = {"folds": {"by": "leaves"}}
    model, report = fitted(sparse(tmp_path, **leaves))
    assert Calibration.of(model.info["calibration"]) == Calibration(1.0, 0)
    said = fit_text(report, classes=True)
    assert "not calibrated: no row was held out, for all that are labelled are in one fold of leaves: set solve" in said
    for solve, sentence in (
        ({"conformal": True}, r"solve.conformal: no rows can be held out.* set solve.folds.by: rows"),
        (
            {"select": "kfold", "ridge": RIDGES},
            r"two folds with rows in them; got 1; give more rows .*\(folds.by: rows\)",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            fit(sparse(tmp_path / "numbers", numbers=True, **leaves, **solve), engine=SerialEngine())
        assert not (tmp_path / "numbers" / "model" / "current").exists()


def test_the_first_fold_that_has_rows_is_held_out(tmp_path: Path) -> None:
    """Of folds of leaves to choose by the first may have no labels."""
    found = held(sparse(tmp_path, "together", select="kfold", folds={"by": "leaves"}))
    leaf = next(leaf for leaf in found.plan.leaves if leaf.stop > 1000)
    assert found.fold == leaf.number % 5 == 2 and numbers_of(found, 99) == list(range(1000, leaf.stop))


def test_labels_that_are_gone_since_calibrate_nothing(tmp_path: Path) -> None:
    for numbers, gone in ((False, {"known": np.zeros(MANY)}), (True, {"y": np.full(MANY, np.nan)})):
        plan = make_plan(sparse(tmp_path, numbers=numbers, conformal=numbers))
        passed = run_pass(plan, SerialEngine())
        fitted = solve_pass(plan, passed)
        put(tmp_path, **gone)
        if numbers:
            with pytest.raises(InputError, match="no rows can be held out"):
                held = Held.of(plan, fitted, passed, posterior=True)
                assert held is not None
                conformalize(held.errors())
        else:
            assert calibrate(plan, fitted, passed) == (Calibration(1.0), None)
