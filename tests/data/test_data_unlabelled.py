"""Rows that a column says are not labelled; and data sets of inputs alone."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import call

from dorff.data import Classes, Dataset, class_counts, ingest, open_dataset
from dorff.errors import InputError

RNG = np.random.default_rng(11)
N = 90
X, Y, WEIGHTS = RNG.standard_normal((N, 3)), RNG.standard_normal((N, 2)), RNG.uniform(0.5, 2.0, N)
KNOWN = RNG.random(N) < 0.4
LABELS = np.where(KNOWN, RNG.integers(0, 3, N), -1)  # scikit-learn's -1 where there is none


def make(path: Path, **arrays: Any) -> Path:
    """A group by zarr itself, in chunks that do not fit one another."""
    group = zarr.open_group(path, mode="w", zarr_format=2)
    for (name, data), rows in zip(arrays.items(), (20, 30, 12, 90, 20, 20), strict=False):
        group.create_array(
            name, data=data, chunks=(rows, *data.shape[1:]), config={"write_empty_chunks": True}
        )  # fmt: skip
    return path


def whole(dataset: Dataset) -> tuple[Any, Any]:
    block = dataset.block(0, dataset.n)
    return block.X, block.Y


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float32"])
def test_targets_of_rows_that_are_not_labelled_are_not_there(tmp_path: Path, dtype: str) -> None:
    path = make(tmp_path / "s", x=X, y=Y, known=KNOWN.astype(dtype))
    dataset = open_dataset(path, labelled="known")
    wanted = np.where(KNOWN[:, None], Y, np.nan)
    for start, stop in ((0, N), (7, 55), (40, 40)):
        for found in (dataset.read(start, stop)[1], dataset.block(start, stop).Y):
            np.testing.assert_array_equal(found, wanted[start:stop])
    np.testing.assert_array_equal(dataset.labelled_rows(5, N), KNOWN[5:])
    np.testing.assert_array_equal(whole(dataset)[0], X)
    np.testing.assert_array_equal(dataset.block(0, N).whole(partial=True), KNOWN)
    assert pickle.loads(pickle.dumps(dataset)) == dataset
    plain = open_dataset(path)
    assert plain.labelled_rows(0, N) is None and np.array_equal(plain.read(0, N)[1], Y)


def test_the_column_is_part_of_what_the_rows_are(tmp_path: Path) -> None:
    path = make(tmp_path / "s", x=X, y=Y, flags=np.column_stack([1 - KNOWN, KNOWN]).astype(float))
    zarr.open_group(path).attrs["columns"] = {"flags": ["not", "known"]}
    plain, dataset = open_dataset(path), open_dataset(path, labelled="known")
    assert np.array_equal(np.isnan(dataset.read(0, N)[1][:, 0]), ~KNOWN)
    assert dataset.arrays == ("x", "y", "flags") and dataset.rows_spec()["labelled"] == ["flags", 1]
    assert "labelled" not in plain.rows_spec() and dataset.unit_bytes() > plain.unit_bytes()
    assert dataset.block(0, N).checksums() != plain.block(0, N).checksums()
    before = dataset.stamp(0, N), plain.stamp(0, N)
    zarr.open_group(path)["flags"][3] = [KNOWN[3], 1 - KNOWN[3]]
    assert dataset.stamp(0, N) != before[0] and plain.stamp(0, N) == before[1]


@pytest.mark.parametrize("text", [False, True])
def test_labels_are_those_of_the_labelled_rows(tmp_path: Path, text: bool) -> None:
    labels = LABELS.astype("U8") if text else LABELS
    path = make(tmp_path / "s", x=X, c=labels, w=WEIGHTS, known=KNOWN)
    dataset = open_dataset(path, targets=Classes("c"), labelled="known")
    assert dataset.labels == (("0", "1", "2") if text else (0, 1, 2)) and dataset.q == 3
    np.testing.assert_array_equal(dataset.codes(0, N), LABELS)
    np.testing.assert_array_equal(dataset.codes(13, 50), LABELS[13:50])
    np.testing.assert_array_equal(whole(dataset)[1], np.where(KNOWN[:, None], np.eye(3)[LABELS], np.nan))
    assert class_counts(dataset) == tuple(np.bincount(LABELS[KNOWN], minlength=3))
    weighed = open_dataset(path, targets=Classes("c"), weights="w", labelled="known")
    sums = np.bincount(LABELS[KNOWN], WEIGHTS[KNOWN], minlength=3)
    np.testing.assert_allclose(class_counts(weighed), sums, rtol=1e-13)
    assert len(open_dataset(path, targets=Classes("c")).labels or ()) == 4


def test_the_counts_that_ingest_kept_are_not_those_of_labelled_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, c=np.abs(LABELS), known=KNOWN.astype(float))
    ingest([tmp_path / "a.npz"], tmp_path / "s", inputs=["x", "known"], classes="c")
    dataset = open_dataset(tmp_path / "s", targets=Classes("classes"), labelled="known")
    places = [dataset.target_columns.index(str(k)) for k in range(3)]
    assert [class_counts(dataset)[k] for k in places] == np.bincount(LABELS[KNOWN], minlength=3).tolist()
    unasked = open_dataset(tmp_path / "s", targets=Classes("classes"))
    assert [class_counts(unasked)[k] for k in places] == np.bincount(np.abs(LABELS), minlength=3).tolist()


@pytest.mark.parametrize("bad", [2.0, -1.0, 0.5, np.nan])
def test_a_column_of_something_else_is_refused_with_its_row(tmp_path: Path, bad: float) -> None:
    known = KNOWN.astype(float)
    known[47] = bad
    dataset = open_dataset(make(tmp_path / "s", x=X, y=Y, known=known), labelled="known")
    dataset.block(0, 40)
    with pytest.raises(InputError, match=rf"row 47, column known: wanted 1 \(labelled\) or 0 .* got {bad}; mend"):
        dataset.block(40, 60)


def test_columns_that_are_not_there_or_as_long(tmp_path: Path) -> None:
    path = make(tmp_path / "s", x=X, y=Y, short=KNOWN[:50])
    with pytest.raises(InputError, match="has no array 'known'; the arrays in it are"):
        open_dataset(path, labelled="known")
    with pytest.raises(InputError, match="wanted one column, but array 'y' has 2; name one of them: y0, y1"):
        open_dataset(path, labelled="y")
    with pytest.raises(InputError, match="array x has 90 rows but array short has 50"):
        open_dataset(path, labelled="short")
    path = make(tmp_path / "u", x=X, y=Y, known=KNOWN)
    with pytest.raises(InputError, match=r"has no array 'knwon'; did you mean 'known'\? the arrays in it are: known"):
        open_dataset(path, labelled="knwon")
    with pytest.raises(InputError, match="array c: holds no label in any row that column known has a 1 for; set it"):
        open_dataset(make(tmp_path / "t", x=X, c=LABELS, known=np.zeros(N)), targets=Classes("c"), labelled="known")


def test_a_view_of_another_length(tmp_path: Path) -> None:
    path = make(tmp_path / "s", pixels=X, moduli=X[:80], y=Y)
    with pytest.raises(InputError, match="array pixels has 90 rows but array moduli has 80"):
        open_dataset(path, inputs=["pixels", "moduli"])


@pytest.mark.parametrize("targets", ["y", Classes("c"), ["y", "w"]])
def test_inputs_alone_are_the_same_rows(tmp_path: Path, targets: Any) -> None:
    x = X.copy()
    x[31, 1] = np.nan
    path = make(tmp_path / "s", x=x, y=Y, c=LABELS, w=WEIGHTS, g=LABELS, known=KNOWN)
    full = open_dataset(path, targets=targets, weights="w", groups="g", labelled="known").window(10)
    dataset = full.inputs_only()
    assert (dataset.n, dataset.first, dataset.d, dataset.q) == (N, 10, 3, 0)
    assert (dataset.shard_rows, dataset.unit_rows) == (full.shard_rows, full.unit_rows)
    assert list(dataset.runs()) == list(full.runs()) and dataset.labels is None and dataset.arrays == ("x",)
    block, other = dataset.block(20, N), full.block(20, N)
    np.testing.assert_array_equal(block.X, other.X)
    np.testing.assert_array_equal(block.numbers, other.numbers)
    assert block.Y.shape == (70, 0) and block.weights is None and block.groups is None
    finite = np.isfinite(x[20:]).all(axis=1)
    for partial in (False, True):
        np.testing.assert_array_equal(block.whole(partial=partial), finite)
    assert len(block[block.whole(partial=True)]) == 69
    assert dataset.rows_spec() == {
        **open_dataset(path, targets=None).rows_spec(), "shard_rows": full.shard_rows, "unit_rows": full.unit_rows
    }  # fmt: skip
    assert 0 < dataset.unit_bytes() < full.unit_bytes()
    before = dataset.stamp(10, N), full.stamp(10, N)
    zarr.open_group(path)["known"][15] = not KNOWN[15]
    zarr.open_group(path)["y"][15] = 0.0
    assert dataset.stamp(10, N) == before[0] and full.stamp(10, N) != before[1]
    zarr.open_group(path)["x"][15] = 0.0
    assert dataset.stamp(10, N) != before[0]


def test_inputs_alone_are_read_where_targets_are_damaged(tmp_path: Path) -> None:
    path = make(tmp_path / "s", x=X, y=Y, known=KNOWN)
    dataset = open_dataset(path, labelled="known")
    for name in ("y", "known"):
        for file in (path / name).glob("[0-9]*"):
            file.write_bytes(b"")
    np.testing.assert_array_equal(dataset.inputs_only().read(0, N)[0], X)
    with pytest.raises(InputError, match="is damaged"):
        dataset.read(0, N)


def test_labels_missing_in_a_file_are_rows_without_one(tmp_path: Path) -> None:
    """An empty cell is an unlabelled row without a column that says so, of numbers and of classes."""
    lines = [f"{x!r},{y!r},{c}" if k else f"{x!r},," for x, y, c, k in
             zip(X[:, 0].tolist(), Y[:, 0].tolist(), LABELS, KNOWN, strict=True)]  # fmt: skip
    (tmp_path / "a.csv").write_text("\n".join(["a,u,c", *lines]), encoding="utf-8")
    result = call("ingest", tmp_path / "a.csv", tmp_path / "s", "--inputs", "a", "--targets", "u", "--classes", "c")
    assert result.exit_code == 0, result.stderr
    for targets in ("y", Classes("classes")):
        rows = open_dataset(tmp_path / "s", targets=targets).block(0, N)
        np.testing.assert_array_equal(rows.whole(partial=True), KNOWN)


ROWS = np.column_stack([X, Y, KNOWN])
HEADER = "a,b,c,u,v,known"
WORDS = ("--inputs", "a,b", "--targets", "u,v", "--also", "cells=c,a", "--also", "known=known")


def table(path: Path, rows: Any) -> Path:
    np.savetxt(path, rows, delimiter=",", header=HEADER, comments="", fmt="%.17g")
    return path


def test_ingest_makes_further_arrays_and_appends_to_them(tmp_path: Path) -> None:
    parts = [table(tmp_path / f"{i}.csv", rows) for i, rows in enumerate((ROWS[:50], ROWS[50:]))]
    for path, extra in zip(parts, ([], ["--append"]), strict=True):
        result = call("ingest", path, tmp_path / "s", *WORDS, *extra)
        assert result.exit_code == 0, result.stderr
    dataset = open_dataset(tmp_path / "s", inputs=["x", "cells"], labelled="known")
    np.testing.assert_array_equal(whole(dataset)[0], X[:, [0, 1, 2, 0]])
    np.testing.assert_array_equal(whole(dataset)[1], np.where(KNOWN[:, None], Y, np.nan))
    assert dataset.input_columns == ("a", "b", "c", "a") and dataset.shard_rows == 16384
    again = call("ingest", parts[0], tmp_path / "s", *WORDS[:-2], "--append")
    assert again.exit_code == 3 and "append the same inputs and targets" in again.stderr


@pytest.mark.parametrize(
    ("also", "sentence"),
    [
        (["c"], "--also c: has no name; write NAME=A,B"),
        (["p=c", "p=a"], "--also p=a: p is there already; name each once"),
        (["p="], "also: p: wanted at least one column, got none; name its columns"),
        (["p=c,,a"], "--also c,,a: a name is empty"),
        (["x=c"], "also: 'x' is no name for a further array; take one of letters"),
        (["weights=c"], "also: 'weights' is no name for a further array"),
        (["../p=c"], "also: '../p' is no name for a further array"),
        (["p=nowhere"], "has no column 'nowhere'"),
    ],
)
def test_further_arrays_that_are_refused(tmp_path: Path, also: list[str], sentence: str) -> None:
    path, out = table(tmp_path / "a.csv", ROWS), tmp_path / "s"
    options = [word for text in also for word in ("--also", text)]
    result = call("ingest", path, out, "--inputs", "a,b", *options)
    assert result.exit_code == 3 and sentence in result.stderr and not out.exists()
