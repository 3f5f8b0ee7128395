"""Rows that are gone from the front of a store, or left out: the others keep their numbers, and nothing reads them."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dorff.data import Classes, Dataset, class_counts, ingest, open_dataset, trim, verify
from dorff.errors import InputError

N, SHARD = 5000, 1024
RNG = np.random.default_rng(0)
X, KINDS = RNG.standard_normal((N, 3)), RNG.integers(0, 4, N)
COLUMNS: dict[str, Any] = {"inputs": ["a", "b"], "targets": ["c"], "classes": "kind", "weights": "w", "groups": "g"}


def save(path: Path, rows: slice) -> Path:
    """Those rows as a file."""
    columns = {name: X[rows, at] for at, name in enumerate("abc")}
    np.savez(path, **columns, kind=KINDS[rows], w=np.abs(X[rows, 0]), g=KINDS[rows] + 7)
    return path


def made(path: Path, rows: slice = slice(N)) -> Path:
    """Them as a store in shards of 1024 rows."""
    ingest([save(path.with_suffix(".npz"), rows)], path, **COLUMNS, shard_rows=SHARD)
    return path


def opened(path: Path) -> Dataset:
    """With everything there is."""
    return open_dataset(path, inputs=["x", "y"], targets=Classes("classes"), weights="w", groups="g")


def shards(path: Path, array: str) -> list[int]:
    """The numbers of the shards that are there."""
    return sorted(int(entry.name) for entry in (path / array / "c").iterdir())


def test_a_window_is_read_as_the_same_rows(tmp_path: Path) -> None:
    whole = opened(made(tmp_path / "s.zarr"))
    assert (whole.first, whole.rows) == (0, N)
    for first in (SHARD, 2 * SHARD + 17, N):
        window = whole.window(first)
        assert (window.first, window.n, window.rows) == (first, N, N - first)
        assert window.rows_spec() == whole.rows_spec()
        runs = list(window.runs())
        assert [start for start, _ in runs] == [first, *(stop for _, stop in runs[:-1])][: len(runs)]
        assert not runs or runs[-1][1] == N
        for ours, all_of_them in zip(window.read(first, N), whole.read(first, N), strict=True):
            np.testing.assert_array_equal(ours, all_of_them)
        assert window.stamp(first, N) == whole.stamp(first, N)
        found = dict(zip(window.labels or (), class_counts(window), strict=True))
        mass = {kind: np.abs(X[first:, 0])[KINDS[first:] == kind].sum() for kind in range(4)}
        assert found == pytest.approx(mass)
        with pytest.raises(InputError, match=f"wanted rows between {first} and {N}, got {first - 1}"):
            window.read(first - 1, N)
        with pytest.raises(InputError, match="wanted rows between"):
            window.window(first - 1)


def test_cuts_are_at_multiples(tmp_path: Path) -> None:
    window = opened(made(tmp_path / "s.zarr")).window(1500)
    assert list(window.cuts(1000)) == [(1500, 2000), (2000, 3000), (3000, 4000), (4000, 5000)]


def test_trimmed_rows_are_gone_and_the_others_as_they_were(tmp_path: Path) -> None:
    store, whole = made(tmp_path / "s.zarr"), opened(made(tmp_path / "whole.zarr"))
    assert trim(store, keep=N - SHARD + 1) == N  # not a whole shard
    assert opened(store).first == 0 and shards(store, "x") == [0, 1, 2, 3, 4]
    assert trim(store, keep=2500) == N - 2 * SHARD
    dataset = opened(store)
    assert (dataset.first, dataset.n) == (2 * SHARD, N) and verify(store) == []
    assert all(shards(store, array) == [2, 3, 4] for array in ("x", "y", "classes", "weights", "groups"))
    block, same = dataset.block(dataset.first, N), whole.block(dataset.first, N)
    assert block.checksums() == same.checksums()
    np.testing.assert_array_equal(block.numbers, same.numbers)
    counted = open_dataset(store, targets=Classes("classes"))
    left = Counter(KINDS[2 * SHARD :].tolist())
    assert dict(zip(counted.labels or (), class_counts(counted), strict=True)) == left
    with pytest.raises(InputError, match=f"wanted rows between {2 * SHARD} and {N}, got 0 to 5"):
        dataset.read(0, 5)
    (store / "x" / "c" / "2" / "0").unlink()
    assert [(fault.array, fault.chunk, fault.kind) for fault in verify(store)] == [("x", "c/2/0", "missing")]


def test_appends_and_further_trims(tmp_path: Path) -> None:
    store, whole = made(tmp_path / "s.zarr", slice(3000)), opened(made(tmp_path / "whole.zarr"))
    assert trim(store, keep=1) == 3000 - 2 * SHARD
    assert ingest([save(tmp_path / "more.npz", slice(3000, N))], store, **COLUMNS, append=True) == N
    dataset = opened(store)
    assert dataset.block(2 * SHARD, N).checksums() == whole.block(2 * SHARD, N).checksums()
    assert trim(store, keep=N) == N - 2 * SHARD, "nothing comes back"
    assert trim(store, keep=1) == N - 4 * SHARD
    assert shards(store, "y") == [4] and verify(store) == []
    counted = open_dataset(store, targets=Classes("classes"))
    assert counted.labels == whole.labels
    assert dict(zip(counted.labels or (), class_counts(counted), strict=True)) == Counter(KINDS[4 * SHARD :].tolist())


def test_what_cannot_be_trimmed(tmp_path: Path) -> None:
    import zarr

    with pytest.raises(InputError, match="keep: wanted at least 1 row, got 0"):
        trim(made(tmp_path / "s.zarr"), keep=0)
    with pytest.raises(InputError, match="there is no such file"):
        trim(tmp_path / "none.zarr", keep=1)
    zarr.open_group(tmp_path / "other.zarr", mode="w").create_array("x", data=np.ones((9, 2)))
    with pytest.raises(InputError, match="not made by `dorff ingest`, so rows cannot be taken away"):
        trim(tmp_path / "other.zarr", keep=1)
    assert not list(tmp_path.glob(".*"))
