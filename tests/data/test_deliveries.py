"""Rows that are delivered again: counted, refused, replaced; sources taken out of a store; columns that change."""

import itertools
import json
import os
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import xarray as xr
import yaml
import zarr
from command_line import call
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.data import Classes, class_counts, drop, ingest, open_dataset, trim, verify
from dorff.data.known_rows import EarlierRows, KnownRows, digest_rows
from dorff.data.row_runs import mark_rows, subtract_runs
from dorff.data.row_sets import RowSet
from dorff.data.spreads import ColumnSample
from dorff.errors import InputError

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)


def write_csv(path: Path, rows: Array, names: str = "x,t,u,v") -> Path:
    np.savetxt(path, rows, delimiter=",", header=names, comments="", fmt="%.6f")
    return path


def field(rows: Array) -> Array:
    return np.column_stack([rows, 0.3 * np.sin(rows[:, 1]), 0.3 * np.cos(rows[:, 0])])


def points(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(0, 6, (n, 2))


def night(folder: Path, name: str, rows: Array) -> Path:
    return write_csv(folder / f"{name}.csv", field(rows))


def add(sources: Sequence[Path], store: Path, **options: Any) -> tuple[int, list[str]]:
    notices: list[str] = []
    names = {"inputs": ["x", "t"], "targets": ["u", "v"]}
    n = ingest(sources, store, **names, append=store.exists(), notice=notices.append, **options)
    return n, notices


def recorded(store: Path) -> list[dict[str, Any]]:
    return list(zarr.open_group(store, mode="r").attrs["dorff"]["sources"])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two nights of 60 rows each."""
    path = tmp_path / "s.zarr"
    add([night(tmp_path, "n1", points(60, 1)), night(tmp_path, "n2", points(60, 2))], path)
    return path


def later(tmp_path: Path, corrected: int = 10, more: int = 5, kept: int = 60) -> Path:
    """The second night again: rows corrected, and more of them."""
    rows = field(points(60, 2))[:kept]
    rows[:corrected, 2:] += 0.01
    return write_csv(tmp_path / "late.csv", np.vstack([rows, field(points(more, 3))]))


def test_a_source_delivered_again_is_refused_with_its_counts(store: Path, tmp_path: Path) -> None:
    before = store.joinpath("zarr.json").read_bytes()
    with pytest.raises(InputError, match=r"late\.csv: 50 of 65 rows .* 10 have the inputs.*--replace"):
        add([later(tmp_path)], store)
    assert store.joinpath("zarr.json").read_bytes() == before and not verify(store)


def test_again_takes_both(store: Path, tmp_path: Path) -> None:
    n, notices = add([later(tmp_path)], store, again=True)
    assert n == 185 and "50 of 65" in notices[0]
    assert recorded(store)[-1]["duplicates"] == 50 and recorded(store)[-1]["corrected"] == 10


def test_replace_drops_the_rows_that_were_there(store: Path, tmp_path: Path) -> None:
    n, notices = add([later(tmp_path)], store, replace_known=True)
    dataset = open_dataset(store)
    assert n == 185 and dataset.dropped == ((60, 120),) and recorded(store)[-1]["replaced"] == 60
    assert any("60 rows" in notice for notice in notices)
    left = dataset.block(0, n).weighty()
    assert len(left) == 125 and np.array_equal(left.numbers, [*range(60), *range(120, 185)])


def test_the_command_replaces_rows_by_a_key(store: Path, tmp_path: Path) -> None:
    words = ["--inputs", "x,t", "--targets", "u,v", "--append", "--replace", "--key", "x,t", "--json"]
    done = call("ingest", later(tmp_path), store, *words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["rows"], told["replaced"], told["rows_dropped"]) == (185, 60, 60)
    dorff = json.loads((store / "zarr.json").read_text())["attributes"]["dorff"]
    assert open_dataset(store).dropped == ((60, 120),) and dorff["key"] == ["x", "t"]


def test_a_few_known_rows_are_said_and_taken(store: Path, tmp_path: Path) -> None:
    n, notices = add([later(tmp_path, corrected=0, more=60, kept=12)], store)
    assert n == 192 and "12 of 72" in notices[0]


@pytest.mark.parametrize(
    ("same", "corrected", "more", "key", "refused"),
    [
        (0, 60, 0, False, False),  # as a second day of the same stations looks
        (0, 60, 0, True, True),
        (0, 9, 0, True, False),
        (9, 51, 0, False, False),
        (10, 50, 0, False, True),
        (30, 0, 0, False, True),
        (9, 0, 0, False, False),
        (30, 0, 30, False, True),
        (29, 0, 31, False, False),
    ],
)
def test_what_is_refused(
    same: int, corrected: int, more: int, key: bool, refused: bool, store: Path, tmp_path: Path
) -> None:
    """Late corrections, parts of a night, parts with further rows: refused, or taken and counted."""
    rows = field(points(60, 2))[: same + corrected]
    rows[same:, 2:] += 0.01
    path = write_csv(tmp_path / "late.csv", np.vstack([rows, field(points(more, 3))]))
    options = {"key": ["x", "t"]} if key else {}
    if refused:
        with pytest.raises(InputError, match=rf"{same} of {same + corrected + more} rows"):
            add([path], store, **options)
        return
    n, notices = add([path], store, **options)
    assert n == 120 + same + corrected + more
    assert any(f"{same} of" in notice for notice in notices)
    assert recorded(store)[-1].get("corrected", 0) == corrected


def test_a_night_with_another_column_is_the_same_night(store: Path, tmp_path: Path) -> None:
    """Nor do another name and another order make other rows of it."""
    rows = field(points(60, 2))[::-1]
    path = write_csv(tmp_path / "again.csv", np.column_stack([rows, np.ones(60)]), "x,t,u,v,qc")
    with pytest.raises(InputError, match="60 of 60"):
        add([path], store)


def test_dropped_rows_are_not_there_any_more(store: Path, tmp_path: Path) -> None:
    drop(store, "n2.csv")
    n, notices = add([tmp_path / "n2.csv"], store)  # the very file
    assert n == 180 and not notices


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_compared_as_they_are_stored(dtype: str, tmp_path: Path) -> None:
    """The digits that float32 does not keep are not in the store either; -0 is 0, and NaN is NaN."""
    rows = field(points(40)).astype(dtype)
    rows[0] = [-0.0, 1, np.nan, 2]
    np.save(tmp_path / "a.npy", rows)
    rows[0, 0] = 0.0
    np.save(tmp_path / "b.npy", np.vstack([rows, field(points(40, 5)).astype(dtype)]).astype("float64"))
    store, names = tmp_path / "s.zarr", {"inputs": ["c0", "c1"], "targets": ["c2", "c3"]}
    ingest([tmp_path / "a.npy", tmp_path / "b.npy"], store, **names, again=True)
    assert recorded(store)[-1]["duplicates"] == 40


def test_sources_of_one_call_are_compared_too(tmp_path: Path) -> None:
    first, second = night(tmp_path, "n1", points(60, 1)), night(tmp_path, "n2", points(60, 2))
    with pytest.raises(InputError, match="late"):
        add([first, second, later(tmp_path)], tmp_path / "s.zarr")
    n, _ = add([first, second, later(tmp_path)], tmp_path / "s.zarr", replace_known=True)
    assert n == 185 and open_dataset(tmp_path / "s.zarr").dropped == ((60, 120),)


class TestKeys:
    """What identifies a row."""

    def stations(self, path: Path, seed: int, hours: range) -> Path:
        """Three stations that stay where they are; the hour is no input, but in a further array."""
        rng = np.random.default_rng(seed)
        place = np.tile([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], (len(hours), 1))
        rows = np.column_stack([place, rng.normal(size=(len(place), 2)), np.repeat(list(hours), 3)])
        return write_csv(path, rows, "x,t,u,v,hour")

    def options(self) -> dict[str, Any]:
        return {"also": {"hours": "hour"}}

    def test_repeated_measurements_are_no_corrections(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        add([self.stations(tmp_path / "a.csv", 1, range(20))], store, **self.options())
        n, notices = add([self.stations(tmp_path / "b.csv", 2, range(20, 40))], store, **self.options())
        assert n == 120 and not notices

    def test_a_second_day_of_the_same_stations_is_said_and_taken(self, tmp_path: Path) -> None:
        """Each station once a day: nothing but equal values would show that a day comes again."""
        places, store = points(30), tmp_path / "s.zarr"
        for day in range(2):
            values = np.random.default_rng(day).normal(size=(30, 2))
            path = write_csv(tmp_path / f"{day}.csv", np.hstack([places, values]))
            n, notices = add([path], store)
        assert n == 60 and "30 have the inputs" in notices[0]
        with pytest.raises(InputError, match=r"1\.csv"):
            corrected = np.hstack([places, values + np.array([0, 1e-5])])
            add([write_csv(tmp_path / "1.csv", corrected)], store, key=["x", "t"])

    def test_they_cannot_be_replaced_by_their_inputs(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        add([self.stations(tmp_path / "a.csv", 1, range(20))], store, **self.options())
        again = self.stations(tmp_path / "b.csv", 1, range(21))
        with pytest.raises(InputError, match="--key"):
            add([again], store, replace_known=True, **self.options())

    def test_new_measurements_at_the_same_inputs_replace_nothing(self, tmp_path: Path) -> None:
        """No row of the delivery is there already, and --replace is given every night."""
        store = tmp_path / "s.zarr"
        add([self.stations(tmp_path / "a.csv", 1, range(20))], store, **self.options())
        later = self.stations(tmp_path / "b.csv", 2, range(20, 40))
        with pytest.raises(InputError, match="--key"):
            add([later], store, replace_known=True, **self.options())
        assert open_dataset(store).n == 60 and not open_dataset(store).dropped

    def test_a_key_is_remembered(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        key = {"key": ["x", "t", "hour"]}
        add([self.stations(tmp_path / "a.csv", 1, range(20))], store, **self.options(), **key)
        corrected = self.stations(tmp_path / "b.csv", 2, range(15, 25))
        n, _ = add([corrected], store, replace_known=True, **self.options())
        assert open_dataset(store).dropped == ((45, 60),) and n == 90

    def test_a_key_of_no_column_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"--key.*'id'"):
            add([night(tmp_path, "a", points(9))], tmp_path / "s.zarr", key=["id"])
        assert not (tmp_path / "s.zarr").exists()

    def test_groups_are_part_of_what_identifies_a_row(self, tmp_path: Path) -> None:
        """Two drifters may be at one place; so may one at two rows of another group."""
        rows, store = points(30), tmp_path / "s.zarr"
        for number, name in enumerate("ab"):
            path = tmp_path / f"{name}.csv"
            write_csv(
                path, np.column_stack([field(rows) + np.array([0, 0, number, 0]), np.full(30, number)]), "x,t,u,v,id"
            )
            _, notices = add([path], store, groups="id")
            assert not notices

    def test_encoded_columns_are_keys(self, tmp_path: Path) -> None:
        store, names = tmp_path / "s.zarr", {"inputs": ["when", "site"], "targets": ["u"]}
        rows = [f"2024-01-0{1 + i // 12}T{i % 12:02}:00:00,{'ab'[i % 2]}" for i in range(24)]
        for number in range(2):
            text = "".join(f"{row},{number + i}\n" for i, row in enumerate(rows))
            (tmp_path / f"{number}.csv").write_text("when,site,u\n" + text)
        ingest([tmp_path / "0.csv"], store, **names, key=["when", "site"])
        ingest([tmp_path / "1.csv"], store, **names, append=True, replace_known=True)
        assert open_dataset(store).dropped == ((0, 24),)


class TestTimesOfTheDay:
    """Inputs that have only the places of times in a cycle are the same every day."""

    def day(self, folder: Path, number: int, *, seed: int = 0, name: str = "") -> Path:
        """Half an hour a row, and rain, which is mostly none."""
        rain = np.random.default_rng(number + 100 * seed).gamma(1, size=48) * (np.arange(48) > 40)
        path = folder / f"{name or number}.csv"
        lines = [f"2026-01-{number:02}T{i // 2:02}:{30 * (i % 2):02},{number},{u:.4f}" for i, u in enumerate(rain)]
        path.write_text("\n".join(["when,id,u", *lines]) + "\n")
        return path

    def add(self, path: Path, **options: Any) -> tuple[int, list[str]]:
        notices: list[str] = []
        store = path.with_name("s.zarr")
        names = {"targets": ["u"], "append": store.exists(), "notice": notices.append}
        return ingest([path], store, **{"inputs": ["when:day"], **names, **options}), notices

    @pytest.mark.parametrize("inputs", [["when:day"], ["when:day", "when:week"], ["=0", "when:year"]])
    def test_a_second_day_is_no_redelivery(self, inputs: list[str], tmp_path: Path) -> None:
        self.add(self.day(tmp_path, 1), inputs=inputs)
        for number in (2, 3):
            n, notices = self.add(self.day(tmp_path, number), inputs=inputs)
            assert n == 48 * number and "--also time=when" in notices[0]
            assert not any("are there already" in notice for notice in notices)
        dataset = open_dataset(tmp_path / "s.zarr")
        assert not dataset.dropped and "duplicates" not in recorded(tmp_path / "s.zarr")[-1]

    def test_it_replaces_nothing(self, tmp_path: Path) -> None:
        self.add(self.day(tmp_path, 1))
        with pytest.raises(InputError, match=r"--replace: .*--also time=when"):
            self.add(self.day(tmp_path, 2), replace_known=True)
        assert open_dataset(tmp_path / "s.zarr").n == 48

    def test_the_very_file_is_refused_all_the_same(self, tmp_path: Path) -> None:
        path = self.day(tmp_path, 1)
        self.add(path)
        with pytest.raises(InputError, match="rows would be there twice"):
            self.add(path)

    @pytest.mark.parametrize(
        "options",
        [
            {"inputs": ["when:day", "when"]},
            {"also": {"time": ["when"]}},
            {"also": {"ids": ["id"], "time": "when"}, "key": ["when"]},
        ],
        ids=["input", "also", "key"],
    )
    def test_days_are_told_apart_by_a_time_that_is_stored(self, options: dict[str, Any], tmp_path: Path) -> None:
        for number in (1, 2):
            n, notices = self.add(self.day(tmp_path, number), **options)
            assert n == 48 * number and not notices
        late = self.day(tmp_path, 2, seed=1, name="late")
        with pytest.raises(InputError, match=r"late\.csv: 41 of 48 rows .* 7 have the"):
            self.add(late, **options)
        self.add(late, replace_known=True, **options)
        assert open_dataset(tmp_path / "s.zarr").dropped == ((48, 96),)

    def test_a_key_that_was_declared_counts(self, tmp_path: Path) -> None:
        options = {"also": {"ids": ["id"]}, "key": ["id", "when:day"]}
        for number in (1, 2):
            assert self.add(self.day(tmp_path, number), **options) == (48 * number, [])
        with pytest.raises(InputError, match="41 of 48 rows"):
            self.add(self.day(tmp_path, 2, seed=1, name="late"), **options)


@pytest.mark.parametrize("options", [{"groups": "FILE"}, {"groups": "FILE", "key": ["x", "t"]}])
def test_groups_of_files_hide_no_rows_that_come_in_another_file(options: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "s.zarr"
    add([night(tmp_path, "n1", points(60, 1)), night(tmp_path, "n2", points(60, 2))], store, **options)
    with pytest.raises(InputError, match=r"late\.csv: 50 of 65 rows .* 10 have"):
        add([later(tmp_path)], store, **options)
    add([later(tmp_path)], store, replace_known=True, **options)
    assert open_dataset(store).dropped == ((60, 120),)


@pytest.mark.parametrize("options", [{}, {"key": ["x", "t"]}], ids=["inputs", "key"])
def test_rows_that_were_replaced_are_not_there_for_a_third_delivery(options: dict[str, Any], tmp_path: Path) -> None:
    """Delivered, corrected, and corrected back: equal to rows that do not count any more."""
    store, rows = tmp_path / "s.zarr", field(points(60))
    corrected = rows + np.array([0, 0, 1, 0])
    back = np.vstack([rows[:40], corrected[40:]])
    for name, delivered in (("a", rows), ("b", corrected), ("c", back)):
        path = write_csv(tmp_path / f"{name}.csv", delivered)
        add([path], store, replace_known=True, **options)
    last = recorded(store)[-1]
    assert (last["duplicates"], last["corrected"], last["replaced"]) == (20, 40, 60)
    dataset = open_dataset(store)
    assert dataset.dropped == ((0, 120),)
    np.testing.assert_allclose(dataset.read(120, 180)[1], back[:, 2:], atol=1e-6)
    with pytest.raises(InputError, match="40 of 60 rows are there already, and 20 have"):
        add([write_csv(tmp_path / "d.csv", rows[::-1])], store, **options)


class TestCountsOfWhatIsLeft:
    """Counts are of rows that still count, whatever took the others away."""

    def ingest(self, folder: Path, name: str, first: int, **options: Any) -> Path:
        """Twenty rows of a class by parity, a flag that leaves out a quarter, and gaps."""
        store = folder / "s.zarr"
        kinds = [f"{name}{k % 2}" if k % 5 else "all" for k in range(20)]
        lines = [f"{first + k},{k % 4},{kind},{'' if k == 3 else k}" for k, kind in enumerate(kinds)]
        (folder / f"{name}.csv").write_text("\n".join(["x,qc,c,u", *lines]) + "\n")
        arrays: dict[str, Any] = {"inputs": ["x"], "also": {"u": ["u"]}, "classes": "c"}
        ingest([folder / f"{name}.csv"], store, **arrays, append=store.exists(), **options)
        return store

    def inspect(self, store: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(call("inspect", store, "--json").stdout)
        (classes,) = (one for one in found["arrays"] if one["name"] == "classes")
        counts = dict(zip(classes["labels"], classes["counts"], strict=True))
        dataset = open_dataset(store, targets=Classes("classes"))
        assert class_counts(dataset) == tuple(classes["counts"])
        return {**found, "classes": {label: count for label, count in counts.items() if count}}

    def test_labels_of_dropped_rows_are_not_counted(self, tmp_path: Path) -> None:
        for number, name in enumerate("ab"):
            store = self.ingest(tmp_path, name, 100 * number)
        before = self.inspect(store)
        assert before["classes"] == {"all": 8, "a0": 8, "a1": 8, "b0": 8, "b1": 8}
        drop(store, "b.csv")
        after = self.inspect(store)
        assert after["classes"] == {"all": 4, "a0": 8, "a1": 8}
        assert (before["unusable"], after["unusable"]) == (2, 1)

    def test_nor_of_rows_that_were_replaced(self, tmp_path: Path) -> None:
        self.ingest(tmp_path, "a", 0)
        store = self.ingest(tmp_path, "b", 10, replace_known=True)
        found = self.inspect(store)
        assert found["rows_dropped"] == 10 and found["unusable"] == 2  # of the first 10 rows each
        assert found["classes"] == {"all": 6, "a0": 4, "a1": 4, "b0": 8, "b1": 8}
        store = self.ingest(tmp_path, "c", 0, replace_known=True)
        assert self.inspect(store)["unusable"] == 2 - 2 + 1

    def test_nor_of_rows_that_were_trimmed(self, tmp_path: Path) -> None:
        for number, name in enumerate("abc"):
            store = self.ingest(tmp_path, name, 100 * number, shard_rows=10)
        drop(store, "a.csv")
        assert trim(store, keep=20) == 20
        found = self.inspect(store)
        assert found["classes"] == {"all": 4, "c0": 8, "c1": 8} and found["unusable"] == 1

    def test_rows_that_a_condition_left_out_go_with_their_source(self, tmp_path: Path) -> None:
        """So that a source which is dropped and delivered again counts once."""
        where = "qc != 3"
        for number, name in enumerate("ab"):
            store = self.ingest(tmp_path, name, 100 * number, where=where)
        self.ingest(tmp_path, "c", 200, where="qc == 0")
        assert self.inspect(store)["left_out"] == {where: 10, "qc == 0": 15}
        drop(store, "b.csv")
        assert self.inspect(store)["left_out"] == {where: 5, "qc == 0": 15}
        self.ingest(tmp_path, "b", 100, where=where)
        assert self.inspect(store)["left_out"] == {where: 10, "qc == 0": 15}
        drop(store, "c.csv")
        found = self.inspect(store)
        assert found["left_out"] == {where: 10}
        lefts = [one["left_out"] for one in found["sources"]]
        assert lefts == [5, 5, 15, 5]
        drop(store, "a.csv")
        assert self.inspect(store)["left_out"] == {where: 5}


class TestInspect:
    """What `dorff inspect` says of a data set's sources and columns."""

    def inspect(self, store: Path) -> dict[str, Any]:
        text = call("inspect", store)
        found: dict[str, Any] = json.loads(call("inspect", store, "--json").stdout)
        assert yaml.safe_load(text.stdout) == found
        return found

    def test_sources_with_what_is_left_of_each(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        for number in (1, 2):
            path = night(tmp_path, f"n{number}", points(60, number))
            os.utime(path, (0, 86400 * number))
            add([path], store, shard_rows=40)
        add([later(tmp_path, more=5)], store, replace_known=True)
        drop(store, "n1.csv")
        add([night(tmp_path, "n4", points(20, 9))], store)
        found = self.inspect(store)
        names = ("name", "modified", "first", "rows", "rows_left", "dropped")
        seen = [tuple(one[name] for name in names) for one in found["sources"][:2]]
        assert seen == [
            (str(tmp_path / "n1.csv"), "1970-01-02T00:00:00+00:00", 0, 60, 0, True),
            (str(tmp_path / "n2.csv"), "1970-01-03T00:00:00+00:00", 60, 60, 0, False),
        ]
        late, last = found["sources"][2:]
        counts = ("rows", "rows_left", "duplicates", "corrected", "replaced")
        assert [late[name] for name in counts] == [65, 65, 50, 10, 60]
        assert last["rows_left"] == 20 and "duplicates" not in last
        assert (found["source_count"], found["rows"], found["rows_dropped"]) == (4, 205, 120)
        assert [one["content"] for one in found["sources"]] == [one["content"] for one in recorded(store)]

    @pytest.mark.parametrize("kind", ["folder", "partitions", "zarr"])
    def test_folders_are_as_old_as_their_latest_file(self, tmp_path: Path, kind: str) -> None:
        source = tmp_path / "source"
        values = np.arange(40.0)
        if kind == "zarr":
            group = zarr.open_group(source)
            for name in ("x", "u"):
                group.create_array(name, data=values, chunks=(8,))
        else:
            for year in (2024, 2025):
                folder = source / f"year={year}" if kind == "partitions" else source
                folder.mkdir(parents=True, exist_ok=True)
                pd.DataFrame({"x": values + year, "u": values}).to_csv(folder / f"{year}.csv", index=False)
        for path in sorted(source.rglob("*"), reverse=True):
            os.utime(path, (0, 86400 * 9) if path.is_dir() else (0, 86400))
        latest = max(path for path in source.rglob("*") if path.is_file())
        os.utime(latest, (0, 86400 * 2))
        store = tmp_path / "s.zarr"
        ingest([source], store, inputs=["x"], targets=["u"])
        assert self.inspect(store)["sources"][0]["modified"] == "1970-01-03T00:00:00+00:00"

    def test_rows_that_were_trimmed_are_not_left(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        add([night(tmp_path, "a", points(90)), night(tmp_path, "b", points(30, 2))], store, shard_rows=40)
        trim(store, keep=60)
        assert [one["rows_left"] for one in self.inspect(store)["sources"]] == [50, 30]
        drop(store, "a.csv")
        found = self.inspect(store)
        assert [one["rows_left"] for one in found["sources"]] == [0, 30]
        assert found["rows_dropped"] == 50

    def test_the_last_of_many_sources_are_listed(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        add([night(tmp_path, f"n{number}", points(3, number)) for number in range(30)], store)
        found = self.inspect(store)
        assert found["source_count"] == 30 and len(found["sources"]) == 20
        assert [Path(one["name"]).stem for one in found["sources"]] == [f"n{k}" for k in range(10, 30)]

    def test_units_conditions_and_what_stands_for_none(self, tmp_path: Path) -> None:
        units = {"t": "hours since 2024-01-01", "sst": "degC", "n": None}
        columns = {name: ("row", np.arange(6.0), {"units": unit} if unit else {}) for name, unit in units.items()}
        data = xr.Dataset(columns)
        data["t"].attrs["calendar"] = "360_day"
        data.to_netcdf(tmp_path / "a.nc")
        store = tmp_path / "s.zarr"
        options: dict[str, Any] = {"where": "n > 1", "missing": ["5", "none"], "key": ["t"]}
        ingest([tmp_path / "a.nc"], store, inputs=["t", "n"], targets=["sst"], **options)
        found = self.inspect(store)
        arrays = {one["name"]: one for one in found["arrays"]}
        assert arrays["x"]["units"] == {"t": "hours since 2024-01-01, 360_day"}
        assert arrays["y"]["units"] == {"sst": "degC"}
        assert found["left_out"] == {"n > 1": 3} and found["key"] == ["t"]  # 5 is unknown
        assert found["missing"] == ["5"] and "unusable" not in found

    def test_stores_by_others_have_units_alone(self, tmp_path: Path) -> None:
        data = xr.Dataset({"x": (("row", "part"), np.ones((4, 2)), {"units": "m"})})
        data.to_zarr(tmp_path / "s.zarr", consolidated=False)
        found = self.inspect(tmp_path / "s.zarr")
        assert found["arrays"][0]["units"] == {"x0": "m", "x1": "m"} and "sources" not in found


def test_equal_rows_are_ordinary_where_a_source_repeats_them(tmp_path: Path) -> None:
    """Tables of few categories have few different rows: a later one has most of them too."""
    rng, store = np.random.default_rng(0), tmp_path / "s.zarr"
    for number in range(2):
        path = write_csv(tmp_path / f"{number}.csv", rng.integers(0, 2, (200, 4)).astype(float))
        n, notices = add([path], store)
    assert n == 400 and "200 of 200" in notices[0]


def test_stores_of_before_are_compared_by_all_their_rows(store: Path, tmp_path: Path) -> None:
    """Their sources are named by contents alone."""
    group = zarr.open_group(store, mode="r+")
    own = dict(group.attrs["dorff"])
    own["sources"] = [one["content"] for one in own["sources"]]
    own.pop("crc32"), own.pop("source_columns")
    group.attrs["dorff"] = own
    for name in ("x", "y"):
        attributes = json.loads((store / name / "zarr.json").read_text())
        attributes["attributes"] = {}
        (store / name / "zarr.json").write_text(json.dumps(attributes))
    with pytest.raises(InputError, match="50 of 65"):
        add([later(tmp_path)], store)
    with pytest.raises(InputError, match="rows would be there twice"):
        add([tmp_path / "n2.csv"], store)
    with pytest.raises(InputError, match="no record"):
        drop(store, "n2.csv")


def test_rows_are_not_both_kept_and_replaced(store: Path, tmp_path: Path) -> None:
    before = len(recorded(store))
    with pytest.raises(InputError, match="--again and --replace"):
        add([later(tmp_path)], store, again=True, replace_known=True)
    assert len(recorded(store)) == before


def test_rows_that_a_dropped_source_had_replaced_can_be_delivered_again(tmp_path: Path) -> None:
    store, rows = tmp_path / "s.zarr", field(points(60))
    first = write_csv(tmp_path / "first.csv", rows)
    add([first], store)
    late = write_csv(tmp_path / "late.csv", np.column_stack([rows[:30, :2], rows[:30, 2:] + 1]))
    add([late], store, replace_known=True)
    done = call("drop", store, "--source", late.name, "--json")
    assert json.loads(done.stdout)["replaced"] == 30
    add([first], store, replace_known=True)
    dataset = open_dataset(store)
    alive = np.ones(dataset.n, bool)
    for start, stop in dataset.dropped:
        alive[start:stop] = False
    np.testing.assert_allclose(dataset.read(0, dataset.n)[0][alive], rows[:, :2], atol=1e-6)


@pytest.mark.parametrize("kept", ["all", "dropped"])
@pytest.mark.parametrize("night_rows", [slice(0, 60), slice(0, 20)], ids=["one file", "a part"])
def test_a_source_whose_rows_were_replaced_is_said_to_be_so(tmp_path: Path, kept: str, night_rows: slice) -> None:
    """None of its rows would be there twice, whether those that replaced them are there or not."""
    store, rows = tmp_path / "s.zarr", field(points(60))
    first = write_csv(tmp_path / "first.csv", rows[night_rows])
    add([night(tmp_path, "other", points(20, 5)), first], store)
    corrected = np.column_stack([rows[:, :2], rows[:, 2:] + 1])
    add([write_csv(tmp_path / "all.csv", corrected)], store, replace_known=True)
    if kept == "dropped":
        drop(store, "all.csv")
    with pytest.raises(InputError, match=r"content of .*first\.csv, whose rows were replaced.*--replace") as refusal:
        add([first], store)
    assert "twice" not in str(refusal.value)
    add([first], store, replace_known=True)
    dataset = open_dataset(store)
    left = dataset.block(0, dataset.n).weighty().numbers
    inputs, targets = dataset.read(0, dataset.n)[:2]
    again = np.column_stack([inputs, targets])[left][-len(rows[night_rows]) :]
    np.testing.assert_allclose(again, rows[night_rows], atol=1e-6)
    with pytest.raises(InputError, match="rows would be there twice"):
        add([first], store)


@pytest.mark.parametrize("empty", ["first", "last", "both but one"])
def test_a_source_of_which_no_row_was_kept_can_be_followed_by_others(tmp_path: Path, empty: str) -> None:
    """And be delivered again: none of its rows is there."""
    near, far = night(tmp_path, "near", points(20)), night(tmp_path, "far", points(20, 1) + 100)
    third = night(tmp_path, "third", points(20, 2) + 200)
    sources = {"first": [near, far], "last": [far, near], "both but one": [near, far, third]}[empty]
    least = 200 if empty == "both but one" else 100
    n, _ = add(sources, tmp_path / "s.zarr", where=f"x >= {least}")
    assert n == 20
    n, _ = add([near], tmp_path / "s.zarr", where="x < 100")
    assert n == 40
    with pytest.raises(InputError, match="rows would be there twice"):
        add([near], tmp_path / "s.zarr")


@pytest.mark.parametrize("also", [{"key": ["id"]}, {"key": ["id", "x"]}], ids=["no input", "one of the inputs"])
def test_keys_beside_the_inputs_are_found_wherever_the_inputs_are(also: dict[str, Any], tmp_path: Path) -> None:
    """Corrected inputs, too, are of rows that are there: their boxes lie apart."""
    store, rows = tmp_path / "s.zarr", np.column_stack([np.arange(30), field(points(30))])
    options = {"inputs": ["x", "t"], "targets": ["u"], "also": {"ids": ["id"]}, **also}
    ingest([write_csv(tmp_path / "a.csv", rows, "id,x,t,u,v")], store, **options)
    rows[:, 2] += 100
    late = write_csv(tmp_path / "b.csv", rows, "id,x,t,u,v")
    ingest([late], store, **options, append=True, replace_known=True)
    assert recorded(store)[-1]["replaced"] == 30
    assert open_dataset(store).dropped == ((0, 30),)


def test_rows_with_nan_are_found_wherever_the_others_are(tmp_path: Path) -> None:
    store, shared = tmp_path / "s.zarr", np.column_stack([np.arange(20.0), np.full(20, np.nan)])
    for number, name in enumerate("ab"):
        rows = np.vstack([shared, points(10, number) + 100 * number])
        values = np.column_stack([rows, rows[:, :1], rows[:, :1]])
        _, notices = add([write_csv(tmp_path / f"{name}.csv", values)], store, **{"again": True} if number else {})
    assert recorded(store)[-1]["duplicates"] == 20
    assert any("20 of 30" in notice for notice in notices)


def test_only_sources_whose_inputs_overlap_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nights lie apart in time: a delivery is compared with its own night alone."""
    store, offered = tmp_path / "s.zarr", list[int]()
    for number in range(3):
        add([night(tmp_path, f"n{number}", points(50, number) + np.array([0, 10 * number]))], store)
    compare = KnownRows.compare

    def record(known: KnownRows, stops: Sequence[int], earlier: EarlierRows, **options: Any) -> Any:
        blocks = list(earlier)
        offered.extend(number for numbers, _, _ in blocks for number in numbers)
        return compare(known, stops, blocks, **options)

    monkeypatch.setattr(KnownRows, "compare", record)
    rows = np.vstack([points(50, 1) + np.array([0, 10]), [[1, 11]]])
    with pytest.raises(InputError, match=r"again\.csv: 50 of 51"):
        add([night(tmp_path, "again", rows)], store)
    assert offered == [*range(50, 100)]


def flagged(path: Path, qc: Array, rows: int = 40, more: int = 0, raised: Sequence[int] = ()) -> Path:
    """A night of 40 rows or fewer, and `more`, with flags of quality; some are raised by 1."""
    values = field(points(40 + more))
    table = pd.DataFrame(np.column_stack([values, np.append(qc, np.ones(more))]), columns=["x", "t", "u", "v", "qc"])
    table.loc[list(raised), "u"] += 1
    table[:rows].to_csv(path, index=False)
    return path


class TestRowsThatAConditionLeavesOut:
    """A night comes again, and some of its rows were flagged meanwhile."""

    good = np.ones(40)
    later = np.where(np.isin(np.arange(40), [5, 8]), 4, 1)

    @pytest.mark.parametrize("key", [[], ["x", "t"]], ids=["by inputs", "by a key"])
    @pytest.mark.parametrize("before", ["qc == 1", ""])
    def test_replace_drops_what_they_were_before(self, key: list[str], before: str, tmp_path: Path) -> None:
        store, twin = tmp_path / "s.zarr", tmp_path / "twin.zarr"
        add([flagged(tmp_path / "a.csv", self.good)], store, where=before, key=key)
        second = flagged(tmp_path / "b.csv", self.later, raised=[9])
        _, notices = add([second], store, where="qc == 1", replace_known=True)
        add([second], twin, where="qc == 1")
        dataset = open_dataset(store)
        assert dataset.rows - dataset.rows_dropped == 38 == open_dataset(twin).rows
        kept = [dataset.read(start, stop)[0] for start, stop in subtract_runs(0, dataset.n, dataset.dropped)]
        np.testing.assert_array_equal(np.vstack(kept), open_dataset(twin).read(0, 38)[0])
        by = "x, t" if key else "inputs"
        assert any(f"leaves out 2 rows that have the {by} of a row there" in note for note in notices), notices
        assert any(note.startswith("40 rows that were there before are dropped") for note in notices), notices

    @pytest.mark.parametrize("is_new", [True, False])
    def test_sources_of_one_call_are_in_order(self, is_new: bool, tmp_path: Path) -> None:
        """The second source leaves out rows of the first, and the third has one of them again."""
        store = tmp_path / "s.zarr"
        if not is_new:
            add([night(tmp_path, "earlier", points(30, 7))], store)
        first = flagged(tmp_path / "a.csv", self.good)
        second = flagged(tmp_path / "b.csv", self.later, rows=30)
        third = flagged(tmp_path / "c.csv", self.good, rows=6, raised=[5])
        ingest(
            [first, second, third], store, inputs=["x", "t"], targets=["u", "v"],
            append=not is_new, where="qc == 1", replace_known=True, key=["x", "t"],
        )  # fmt: skip
        dataset = open_dataset(store)
        before = 0 if is_new else 30
        assert dataset.rows == before + 40 + 28 + 6
        kept = mark_rows(dataset.dropped, before, dataset.n)
        np.testing.assert_array_equal(np.flatnonzero(~kept), [*range(30, 40), *range(45, 68), *range(68, 74)])

    def test_they_are_found_far_from_the_rows_that_are_kept(self, tmp_path: Path) -> None:
        """One row of the night before, flagged, beside a night of new rows elsewhere."""
        store, second = tmp_path / "s.zarr", tmp_path / "b.csv"
        rows = pd.read_csv(flagged(tmp_path / "a.csv", self.good))
        add([tmp_path / "a.csv"], store, where="qc == 1")
        pd.concat([rows.assign(x=rows["x"] + 100), rows[5:6].assign(qc=4)]).to_csv(second, index=False)
        add([second], store, where="qc == 1", replace_known=True)
        assert open_dataset(store).dropped == ((5, 6),)

    def test_a_condition_that_was_forgotten_can_be_given_afterwards(self, tmp_path: Path) -> None:
        """As the line says that tells of it."""
        store, second = tmp_path / "s.zarr", tmp_path / "b.csv"
        first = flagged(tmp_path / "a.csv", self.later)
        rows = pd.read_csv(first)
        rows.assign(x=rows["x"] + 10).to_csv(second, index=False)
        add([first], store, where="qc == 1")
        _, notices = add([second], store)
        assert any("chosen by --where qc == 1; where it is meant for these too" in note for note in notices), notices
        add([second], store, where="qc == 1", replace_known=True)
        dataset = open_dataset(store)
        assert dataset.rows == 38 + 40 + 38 and dataset.dropped == ((38, 78),)

    def test_without_replace_they_change_nothing(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        add([flagged(tmp_path / "a.csv", self.good)], store, where="qc == 1")
        add([flagged(tmp_path / "b.csv", self.later)], store, where="qc == 1", again=True)
        assert open_dataset(store).rows_dropped == 0

    def test_rows_that_nothing_identifies_are_not_dropped(self, tmp_path: Path) -> None:
        """Two rows of the store have the inputs of one that is left out; the others are new."""
        store = tmp_path / "s.zarr"
        rows = pd.DataFrame(field(points(50)), columns=["x", "t", "u", "v"]).assign(qc=1)
        rows.loc[8, ["x", "t"]] = rows.loc[5, ["x", "t"]]
        rows[:40].to_csv(tmp_path / "a.csv", index=False)
        rows.loc[5, "qc"] = 4
        rows.loc[[5, *range(40, 50)]].to_csv(tmp_path / "b.csv", index=False)
        add([tmp_path / "a.csv"], store)
        with pytest.raises(InputError, match="several rows have the same inputs"):
            add([tmp_path / "b.csv"], store, where="qc == 1", replace_known=True)
        assert open_dataset(store).rows_dropped == 0

    def test_groups_belong_to_the_key(self, tmp_path: Path) -> None:
        """The flagged row is of one buoy; another one was at the same place."""
        store, names = tmp_path / "s.zarr", {"inputs": ["x", "t"], "targets": ["u"], "groups": "buoy"}
        rows = pd.DataFrame(field(points(40)), columns=["x", "t", "u", "v"])
        both = pd.concat([rows.assign(buoy="A", qc=1), rows.assign(buoy="B", qc=1)], ignore_index=True)
        both.to_csv(tmp_path / "a.csv", index=False)
        both.loc[45, "qc"] = 4
        both[40:].to_csv(tmp_path / "b.csv", index=False)
        ingest([tmp_path / "a.csv"], store, **names, where="qc == 1")
        ingest([tmp_path / "b.csv"], store, **names, where="qc == 1", append=True, replace_known=True)
        assert open_dataset(store).dropped == ((40, 80),)

    def test_labels_in_the_key_are_compared_of_kept_rows_alone(self, tmp_path: Path) -> None:
        """A label of a row that is left out would be a new class."""
        store, names = tmp_path / "s.zarr", {"inputs": ["x"], "classes": "kind", "key": ["x", "kind"]}
        rows = pd.DataFrame({"x": np.arange(40.0), "kind": ["a", "b"] * 20, "qc": 1})
        rows.to_csv(tmp_path / "a.csv", index=False)
        rows.loc[5, ["kind", "qc"]] = ["c", 4]
        rows.to_csv(tmp_path / "b.csv", index=False)
        ingest([tmp_path / "a.csv"], store, **names)
        ingest([tmp_path / "b.csv"], store, **names, where="qc == 1", append=True, replace_known=True)
        dataset = open_dataset(store, targets=Classes("classes"))
        assert dataset.dropped == ((0, 5), (6, 40)) and dataset.labels == ("a", "b")

    def test_other_values_of_them_may_be_anything(self, tmp_path: Path) -> None:
        store, names = tmp_path / "s.zarr", {"inputs": ["x", "kind"], "targets": ["u"], "key": ["x"]}
        rows = pd.DataFrame(field(points(40)), columns=["x", "t", "u", "v"]).assign(qc=1)
        rows["kind"] = np.where(np.arange(40) % 2, "salt", "fresh")
        rows.to_csv(tmp_path / "a.csv", index=False)
        rows.loc[5, ["u", "kind", "qc"]] = [np.nan, "???", 4]
        rows.to_csv(tmp_path / "b.csv", index=False)
        ingest([tmp_path / "a.csv"], store, **names)
        ingest([tmp_path / "b.csv"], store, **names, where="qc == 1", append=True, replace_known=True)
        assert open_dataset(store).dropped == ((0, 40),) and open_dataset(store).rows == 79


class TestKeysWithinASource:
    def test_rows_of_one_key_are_said(self, tmp_path: Path) -> None:
        rows = field(points(30))
        rows[[7, 9], :2] = rows[[3, 3], :2]
        source = write_csv(tmp_path / "a.csv", rows)
        n, notices = add([source], tmp_path / "s.zarr", key=["x", "t"])
        assert n == 30 and any("2 of 30 rows have the x, t of a row before" in note for note in notices), notices
        assert not add([source], tmp_path / "no-key.zarr")[1]
        assert not add([write_csv(tmp_path / "c.csv", rows + 10)], tmp_path / "no-key.zarr")[1]
        notices = add([write_csv(tmp_path / "b.csv", rows + 1e-3)], tmp_path / "s.zarr")[1]
        assert any("2 of 30 rows have the x, t of a row before" in note for note in notices), notices


class TestDrop:
    def test_a_source_is_found_by_name_path_and_content(self, store: Path, tmp_path: Path) -> None:
        content = recorded(store)[0]["content"]
        for name in ("n1.csv", str(tmp_path / "n1.csv"), content):
            dropped = drop(store, name, dry_run=True)
            assert (dropped.rows, dropped.rows_left, dropped.source.first) == (60, 60, 0)
        assert not open_dataset(store).dropped

    def test_rows_keep_their_numbers(self, store: Path) -> None:
        assert drop(store, "n1.csv").rows == 60
        dataset = open_dataset(store)
        assert dataset.rows == 120 and dataset.rows_dropped == 60 and not verify(store)
        assert np.array_equal(dataset.block(0, 120).weighty().numbers, range(60, 120))

    @pytest.mark.parametrize("name", ["n3.csv", "n1", "elsewhere/n9.csv"])
    def test_no_such_source(self, store: Path, name: str) -> None:
        with pytest.raises(InputError, match=r"n1\.csv"):
            drop(store, name)

    def test_not_twice_and_not_all(self, store: Path) -> None:
        drop(store, "n1.csv")
        with pytest.raises(InputError, match="before"):
            drop(store, "n1.csv")
        with pytest.raises(InputError, match="all the rows"):
            drop(store, "n2.csv")

    @pytest.mark.parametrize("nights", [2, 3, 7])
    @pytest.mark.parametrize("is_there", [True, False])
    def test_several_of_a_name_are_told_by_content_only(self, nights: int, is_there: bool, tmp_path: Path) -> None:
        """A feed may write the same file anew each night: which night is meant?"""
        store, path = tmp_path / "s.zarr", tmp_path / "latest.csv"
        for number in range(nights):
            add([write_csv(path, field(points(30, number)))], store)
        if not is_there:
            path.unlink()
        before = (store / "zarr.json").read_bytes()
        contents = [source["content"] for source in recorded(store)]
        for name in (path, path.name):
            refused = call("drop", store, "--source", name)
            assert refused.exit_code == 3, refused.output
            said = " ".join(refused.stderr.split())
            assert f"{nights} sources are named" in said, said
            assert all(content in said for content in contents[:5]), said
        assert (store / "zarr.json").read_bytes() == before
        assert drop(store, contents[0]).source.first == 0

    def test_sources_without_rows_that_count_need_no_telling(self, tmp_path: Path) -> None:
        """The first is trimmed away, the second dropped, the third replaced by the fourth."""
        store, path = tmp_path / "s.zarr", tmp_path / "latest.csv"
        for number in range(3):
            add([write_csv(path, field(points(40, number)))], store, shard_rows=40)
        write_csv(path, field(points(40, 2)) + np.array([0, 0, 0.01, 0]))
        add([path], store, replace_known=True, key=["x", "t"])
        add([night(tmp_path, "other", points(40, 5))], store)
        trim(store, keep=160)
        drop(store, recorded(store)[1]["content"])
        assert drop(store, "latest.csv").source.first == 120

    def test_rows_that_were_trimmed_are_not_counted(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        add([night(tmp_path, "a", points(90)), night(tmp_path, "b", points(30, 2))], store, shard_rows=40)
        trim(store, keep=60)
        dropped = drop(store, "a.csv")
        assert (dropped.rows, dropped.rows_left) == (50, 30)

    @pytest.mark.parametrize("is_new", [True, False])
    def test_rows_replaced_by_the_next_source_count_no_gaps(self, is_new: bool, tmp_path: Path) -> None:
        rows = field(points(30))
        rows[:4, 2] = np.nan
        store = tmp_path / "s.zarr"
        if not is_new:
            add([night(tmp_path, "earlier", points(30, 2))], store)
        gaps = write_csv(tmp_path / "gaps.csv", rows)
        filled = write_csv(tmp_path / "filled.csv", field(points(30))[:3])
        ingest([gaps, filled], store, inputs=["x", "t"], targets=["u", "v"], append=not is_new, replace_known=True)
        assert open_dataset(store).unusable == 1
        verify(store)

    def test_a_label_without_rows_is_said_to_stay_a_class(self, tmp_path: Path) -> None:
        store, names = tmp_path / "c.zarr", {"inputs": ["x"], "classes": "species"}
        rows = pd.DataFrame({"x": np.arange(40.0), "species": ["cod", "hake"] * 20})
        rows.to_csv(tmp_path / "a.csv", index=False)
        misspelt = rows.assign(x=rows["x"] + 40, species=["cod", "Hake"] * 20)
        misspelt.to_csv(tmp_path / "b.csv", index=False)
        for night in ("a", "b"):
            ingest([tmp_path / f"{night}.csv"], store, **names, append=store.exists())
        words = ["drop", store, "--source", "b.csv", "--json"]
        assert "labels_without_rows" not in json.loads(call(*words, "--dry-run").stdout)
        assert json.loads(call(*words).stdout)["labels_without_rows"] == ["Hake"]

    def test_dropped_rows_count_no_gaps(self, tmp_path: Path) -> None:
        rows = field(points(30))
        rows[:4, 2] = np.nan
        store = tmp_path / "s.zarr"
        add([write_csv(tmp_path / "gaps.csv", rows), night(tmp_path, "b", points(30, 2))], store)
        assert open_dataset(store).unusable == 4
        drop(store, "gaps.csv")
        assert open_dataset(store).unusable == 0


class TestLongitudes:
    @pytest.mark.parametrize(
        ("name", "units", "is_said"),
        [
            ("lon", "", True),
            ("Longitude", "degrees", True),
            ("x", "degrees_east", True),
            ("x", "degree_E", True),
            ("x", "", False),
            ("lat", "degrees_north", False),
            ("lonely", "m", False),
        ],
    )
    @pytest.mark.parametrize("turned", [360, -360, 100])
    def test_a_whole_turn_is_said(self, name: str, units: str, is_said: bool, turned: float, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        for number, shift in enumerate((0, turned)):
            values = field(points(60, number))
            columns = {
                name: ("row", values[:, 0] + shift, {"units": units} if units else {}),
                "u": ("row", values[:, 2]),
            }
            xr.Dataset(columns).to_netcdf(tmp_path / f"{number}.nc")
            notices: list[str] = []
            ingest(
                [tmp_path / f"{number}.nc"], store, inputs=[name], targets=["u"],
                append=store.exists(), notice=notices.append,
            )  # fmt: skip
        said = [note for note in notices if "may count longitudes in another way" in note]
        assert len(said) == (is_said and turned != 100), notices


class TestColumns:
    """What changes between deliveries."""

    def test_added_and_missing_columns_are_said(self, tmp_path: Path) -> None:
        store = tmp_path / "s.zarr"
        add([write_csv(tmp_path / "a.csv", np.column_stack([field(points(20)), np.ones(20)]), "x,t,u,v,depth")], store)
        new = np.column_stack([field(points(20, 4)), np.ones((20, 2))])
        _, notices = add([write_csv(tmp_path / "b.csv", new, "x,t,u,v,qc,site")], store)
        assert len(notices) == 1 and all(name in notices[0] for name in ("qc", "site", "depth"))
        _, notices = add([write_csv(tmp_path / "c.csv", new + 7, "x,t,u,v,qc,site")], store)
        assert not any("columns" in notice for notice in notices)

    @pytest.mark.parametrize(("column", "factor", "rows", "warned"), [
        (2, 100.0, 60, True), (2, 0.01, 60, True), (2, 5.0, 60, False), (2, 100.0, 40, False),
        (0, 100.0, 60, True), (0, 0.01, 60, False),  # a delivery may lie at one place
    ])  # fmt: skip
    def test_a_spread_that_jumps_is_said(
        self, column: int, factor: float, rows: int, warned: bool, store: Path, tmp_path: Path
    ) -> None:
        new = field(points(rows, 7))
        new[:, column] *= factor
        n, notices = add([write_csv(tmp_path / "c.csv", new)], store)
        assert (
            n == 120 + rows
            and bool([one for one in notices if "'xtuv'"[1 + column] in one and "unit" in one]) == warned
        )

    @pytest.mark.parametrize(("column", "offset", "rows", "warned"), [
        (2, 273.15, 60, True), (2, -273.15, 60, True), (3, 10.0, 60, True), (2, 3.0, 60, False),
        (2, 273.15, 40, False), (0, 273.15, 60, False), (1, 1e6, 60, False),  # inputs move on
    ])  # fmt: skip
    def test_a_median_that_moves_far_is_said(
        self, column: int, offset: float, rows: int, warned: bool, store: Path, tmp_path: Path
    ) -> None:
        """Kelvin after degrees Celsius: the spread is what it was."""
        new = field(points(rows, 7))
        new[:, column] += offset
        n, notices = add([write_csv(tmp_path / "c.csv", new)], store)
        said = [notice for notice in notices if "unit" in notice]
        assert n == 120 + rows and len(said) == warned, notices
        name = "xtuv"[column]
        assert all(f"{name!r} may have another unit: its median is" in notice for notice in said)

    @pytest.mark.parametrize("constant", ["before", "after"])
    def test_medians_of_constant_columns_are_not_compared(self, constant: str, tmp_path: Path) -> None:
        first, second = field(points(60)), field(points(60, 7)) + np.array([0, 0, 273.15, 0])
        changed = first if constant == "before" else second
        changed[:, 2] = changed[0, 2]
        _, notices = add([write_csv(tmp_path / "a.csv", first), write_csv(tmp_path / "b.csv", second)], tmp_path / "s")
        assert not any("unit" in notice for notice in notices), notices

    def test_in_one_call_too(self, tmp_path: Path) -> None:
        new = field(points(60, 7)) * [1, 1, 100, 1]
        _, notices = add([night(tmp_path, "a", points(60)), write_csv(tmp_path / "b.csv", new)], tmp_path / "s.zarr")
        assert len(notices) == 1 and "b.csv" in notices[0] and "'u'" in notices[0]

    def test_times_go_on(self, tmp_path: Path) -> None:
        """A month after a day is no other unit."""
        store = tmp_path / "s.zarr"
        begin = np.datetime64("2024-01-01")
        for name, step in (("a", 60), ("b", 86400)):
            lines = [f"{begin + np.timedelta64(i * step, 's')},{i % 7},{i % 5}" for i in range(60)]
            (tmp_path / f"{name}.csv").write_text("\n".join(["when,x,u", *lines]) + "\n")
            notices: list[str] = []
            ingest(
                [tmp_path / f"{name}.csv"], store, inputs=["when", "x"], targets=["u"],
                append=store.exists(), notice=notices.append,
            )  # fmt: skip
            assert not any("unit" in notice for notice in notices)


@pytest.mark.parametrize("kind", ["few keys", "few rows", "distinct", "redelivery"])
def test_memory_does_not_grow_with_rows(kind: str, tmp_path: Path) -> None:
    """Small limits, few rows: four times as many of them take no more."""

    def digests(seed: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        key = rng.integers(0, 5 if kind.startswith("few") else 2**40, 5000).astype(float)
        row = rng.integers(0, 2 if kind == "few rows" else 2**40, 5000).astype(float)
        return digest_rows([key]), digest_rows([key, row])

    def peak(n: int) -> int:
        tracemalloc.start()
        known = KnownRows(tmp_path, partition_rows=5000, max_filter_bits=10)
        met = RowSet(tmp_path, 2 * n, window_rows=5000)
        starts = range(0, n, 5000)
        for start in starts:
            known.deliver(n + start, *digests(start + (0 if kind == "redelivery" else n)))
        blocks = ((np.arange(start, start + 5000), *digests(start)) for start in starts)
        (found,) = known.compare([2 * n], blocks, key_identifies=True, met=met)
        if kind != "distinct":
            assert found.known_keys == n and met.to_runs((), 1) == ((0, n),)
        known.close(), met.close()
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(5000)  # what is imported on the way
    few = peak(10_000)
    assert peak(40_000) < 1.3 * few


@pytest.mark.parametrize(("most", "found"), [(3, True), (2, False)])
def test_runs_are_not_built_beyond_what_is_allowed(most: int, found: bool, tmp_path: Path) -> None:
    """Windows of rows are joined; rows that were dropped before count as runs too."""
    rows = RowSet(tmp_path, 100, window_rows=10)
    rows.add(np.array([99, 10, 9, 11]))
    rows.add(np.array([9, 98]))
    assert rows.to_runs(((12, 15), (40, 41)), most) == (((9, 15), (40, 41), (98, 100)) if found else None)
    rows.close()


def test_an_append_leaves_no_temporary_folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    add([night(tmp_path, "n3", points(60, 3))], store)
    with pytest.raises(InputError):
        add([later(tmp_path)], store)
    assert not list((tmp_path / "temporary").iterdir())


@settings(max_examples=60)
@given(st.data())
def test_counts_are_those_of_sets(data: st.DataObject) -> None:
    """Against Python's own sets, in one partition or several."""
    values = st.integers(0, data.draw(st.sampled_from([3, 40])))
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
    old = data.draw(st.integers(0, 30))
    n = old + sum(sizes)
    key = np.array(data.draw(st.lists(values, min_size=n, max_size=n)), float)
    row = np.array(data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), float)
    stops, declared = (old + np.cumsum(sizes)).tolist(), data.draw(st.booleans())
    part, window = (data.draw(st.sampled_from([few, 1000])) for few in (4, 8))
    withdrawn = data.draw(st.lists(st.lists(values, max_size=3), min_size=len(sizes), max_size=len(sizes)))
    with tempfile.TemporaryDirectory() as folder:
        known = KnownRows(Path(folder), partition_rows=part, max_partitions=7)
        keys, rows = digest_rows([key]), digest_rows([key, row])
        known.deliver(old, keys[old:], rows[old:])
        for size, stop, left_out in zip(sizes, stops, withdrawn, strict=True):
            known.withdraw(stop - size, digest_rows([np.array(left_out, float)]))
        earlier = [
            (np.arange(start, stop), keys[start:stop], rows[start:stop])
            for start, stop in itertools.pairwise([*range(0, old, 10), old])
        ]
        met = RowSet(Path(folder), n, window_rows=window)
        found = known.compare(stops, earlier, key_identifies=declared, met=met)
        runs = met.to_runs((), n)
        known.close(), met.close()
        assert not list(Path(folder).iterdir())
    begin, expected = old, set()
    for one, stop, left_out in zip(found, stops, withdrawn, strict=True):
        earlier = set(zip(key[:begin], row[:begin], strict=True))
        same = sum((key[i], row[i]) in earlier for i in range(begin, stop))
        of_key = sum(key[i] in set(key[:begin]) for i in range(begin, stop))
        assert (one.rows, one.duplicates, one.known_keys) == (stop - begin, same, of_key)
        assert one.corrected == (of_key - same if one.is_identified else 0)
        before, mine = key[:begin].tolist(), key[begin:stop].tolist()
        alone = set(left_out) - set(mine)
        repeats = len(set(mine)) < len(mine) or any(before.count(value) > 1 for value in [*mine, *alone])
        assert one.repeated_keys == len(mine) - len(set(mine))
        assert one.withdrawn_keys == len(alone & set(before))
        assert one.is_identified == (declared or not repeats)
        expected |= {j for j in range(begin) if key[j] in {*mine, *left_out}}
        begin = stop
    assert runs is not None
    assert {i for first, stop in runs for i in range(first, stop)} == expected


def test_samples_of_many_sources_take_time_in_proportion() -> None:
    """A list of pieces that grows with the sources would be gone through for each of them."""
    values = np.arange(30.0).reshape(10, 3)
    sample = ColumnSample()
    for number in range(300):
        other = ColumnSample()
        other.add(np.arange(10, dtype=np.uint64) + np.uint64(10 * number), values + number)
        sample = sample.merge(other)
    assert len(sample.digests) == len(sample.values) <= 2
    assert np.concatenate(sample.values)[:, 0].tolist() == [3.0 * row + n for n in range(300) for row in range(10)]
