"""States, sums and data that somebody else wrote, with right checksums: refused, or as if they were not there."""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from command_line import field, write_csv, write_job
from hostile import MUCH, archive, deep, npy, refused, small
from test_security_models import ARCHIVES

from dorff.data import ingest, open_dataset
from dorff.errors import InputError
from dorff.passes import frozen_hash, load_pass
from dorff.plan import freeze_constants, make_plan
from dorff.spec.reader import load_job
from dorff.storage.files import identity, seal
from dorff.store import Receipt, load_moments, merge_moments, undamaged
from dorff.store.moments import _MAGIC as MAGIC


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A frozen plan's folder."""
    home = tmp_path_factory.mktemp("state")
    ingest([write_csv(home / "sea.csv", field(400))], home / "sea.zarr", inputs=["a", "b"], targets=["u", "v"])
    plan = make_plan(load_job(write_job(home / "job.yaml", features={"count": 8})))
    freeze_constants(plan)
    return plan.directory


class ForgedState:
    """A copy of a frozen plan; `load` makes its checksums right and reads it."""

    def __init__(self, directory: Path, copy: Path) -> None:
        self.directory = copy
        shutil.copytree(directory, copy)
        self.body = json.loads((copy / "plan.json").read_text())
        self.raw = (copy / "arrays.npz").read_bytes()
        with np.load(io.BytesIO(self.raw), allow_pickle=False) as found:
            self.arrays = dict(found)

    def pack(self) -> None:
        """Write the arrays as they now are."""
        self.raw = archive(*((f"{name}.npy", npy(value)) for name, value in self.arrays.items()))

    def load(self, text: str | None = None) -> object:
        if text is None:
            body = {key: value for key, value in self.body.items() if key != "check"}
            body["arrays"] = hashlib.sha256(self.raw).hexdigest()
            told = identity(self.directory / "plan.json", 2) + json.dumps(body, sort_keys=True)
            body["check"] = hashlib.sha256(told.encode()).hexdigest()
            text = json.dumps(body)
        (self.directory / "arrays.npz").write_bytes(self.raw)
        (self.directory / "plan.json").write_text(text)
        name = frozen_hash(self.directory)
        assert name is not None
        return load_pass(self.directory, name)


@pytest.fixture
def forged(state: Path, tmp_path: Path) -> ForgedState:
    return ForgedState(state, tmp_path / state.name)


def test_a_forged_state_that_changes_nothing_loads(forged: ForgedState) -> None:
    """The control."""
    forged.arrays["y0"] = np.array([3.0, 4.0])
    forged.pack()
    assert forged.load().constants.y0.tolist() == [3.0, 4.0]  # type: ignore[attr-defined]


def test_arrays_of_another_plan_are_refused(forged: ForgedState) -> None:
    """Whole, and of the same shapes: what `plan.json` says of them alone tells."""
    text, raw = (forged.directory / "plan.json").read_text(), forged.raw
    forged.arrays["y0"] = forged.arrays["y0"] + 1.0
    forged.pack()
    refused(lambda: forged.load(text), forged.directory)
    forged.raw = raw
    assert forged.load(text)  # the control


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_lie_are_refused(forged: ForgedState, name: str) -> None:
    forged.raw = ARCHIVES[name]
    refused(forged.load, forged.directory)


def part(name: str, change: Callable[[Any], Any]) -> Callable[[ForgedState], None]:
    def changed(forged: ForgedState) -> None:
        forged.arrays[name] = change(forged.arrays.get(name))
        forged.pack()

    return changed


def asked(**words: Any) -> Callable[[ForgedState], None]:
    return lambda forged: forged.body["question"].update(words)


def folds(**words: Any) -> Callable[[ForgedState], None]:
    return lambda forged: forged.body["question"]["folds"].update(words)


LIES: dict[str, Callable[[ForgedState], None]] = {
    "NaN y0": part("y0", lambda y0: y0 * math.nan), "y0 of a matrix": part("y0", lambda y0: y0[None]),
    "no y0": lambda forged: (forged.arrays.pop("y0"), forged.pack())[1],
    "y0 of bytes": part("y0", lambda y0: y0.view("u1")), "NaN omega": part("omega", lambda omega: omega * math.nan),
    "omega of one": part("omega", lambda omega: omega[:, :1]),
    "weights of classes": part("class_weight", lambda _: np.array([math.nan, 1.0])),
    "weights of other classes": part("class_weight", lambda _: np.ones(7)),
    "weights below 0": part("class_weight", lambda _: np.array([-1.0, 1.0])),
    "densities of others": part("log_density", lambda _: np.zeros(3)),
    "serves none": part("serves", lambda _: np.ones((1, 3), dtype=bool)),
    "an extra": part("extra", lambda _: np.ones(3)),
    **{f"{key} {value!r}"[:40]: asked(**{key: value}) for key in ("block_rows", "read_rows")
       for value in (MUCH, 0, -5, 2.5, True, "9", None, [], math.nan)},
    **{f"{key} {value!r}": asked(**{key: value}) for key in ("nan", "sums", "precision")
       for value in ("other", [], None)},
    "no question": lambda forged: forged.body.update(question=None),
    "a list": lambda forged: forged.body.update(question=[]),
    "features": lambda forged: forged.body.update(features=None),
    "folds": asked(folds=None), "folds' list": asked(folds=[1]),
    **{f"patterns {value!r}": asked(patterns=value) for value in (5, "01", True, ["2"], [1], ["1"] * 9, {"0": 1})},
    **{f"folds {key} {value!r}"[:40]: folds(**{key: value}) for key in ("count", "held", "seed", "first")
       for value in (1.5, "1", None, math.nan)},
    "no fold": folds(count=0), "many folds": folds(count=MUCH), "other folds": folds(other=1),
    "by": folds(by_rows="no"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_states_that_lie_are_refused(forged: ForgedState, name: str) -> None:
    LIES[name](forged)
    refused(forged.load, forged.directory)


@pytest.mark.parametrize(
    "text", [deep(), "[]", "3", "null", "{}", "{", "\ufeff{}", '{"check": []}'], ids=lambda t: t[:9]
)
def test_plans_that_are_something_else_are_refused(forged: ForgedState, text: str) -> None:
    refused(lambda: forged.load(text), forged.directory)


# --- Receipts --------------------------------------------------------------------------------------------------------

RECEIPT = Receipt(
    plan="abc", number=7, start=0, stop=10, digest="d", stamp="s", rows_used=9, rows_dropped=1, rows_read=12,
    low=(0.1, -2.0), high=(1.0, 3.5), seconds=0.1, syrk_seconds=0.05,
)  # fmt: skip
NUMBERS = ("number", "start", "stop", "rows_used", "rows_dropped", "rows_read")
WRONG: list[dict[str, Any]] = [
    *({key: value} for key in NUMBERS for value in (-1, 0.5, True, "3", None, math.nan, math.inf, [], 10**30)),
    *({key: value} for key in ("seconds", "syrk_seconds") for value in (math.nan, math.inf, -1.0, "3", None, [])),
    *({key: value} for key in ("plan", "digest", "stamp") for value in (3, None, [], {})),
    *({key: value} for key in ("low", "high")
      for value in (3, None, "ab", [math.nan, 1.0], [[1.0]], ["a", "b"], [1.0])),
    {"extra": 1}, {"start": 10}, {"stop": 0}, {"number": 8},
    {"stop": 11}, {"rows_used": 8}, {"rows_dropped": 0}, {"rows_unlabelled": 1},  # rows that do not add up
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_receipts_that_cannot_be_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "000007.json"
    path.write_bytes(seal(asdict(RECEIPT), identity(path)))
    assert Receipt.load(tmp_path, 7) == RECEIPT  # the control
    path.write_bytes(seal({**asdict(RECEIPT), **change}, identity(path)))
    with small():
        assert Receipt.load(tmp_path, 7) is None


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"3", deep().encode(), b"\xff\xfe", b'{"record": {}}'], ids=lambda r: str(r[:9])
)
def test_receipts_that_are_something_else_are_none(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "000007.json").write_bytes(raw)
    assert Receipt.load(tmp_path, 7) is None


# --- Sums ------------------------------------------------------------------------------------------------------------

SECTION = {
    "kind": "gram",
    "length": 10,
    "fold": 0,
    "observed": "",
    "m": 2,
    "q": 1,
    "n": 5,
    "y0": [0.0],
    "unit": 2.0**-52,
}


def sums(path: Path, sections: object, values: np.ndarray[Any, Any]) -> bytes:
    """A file of sums at a path, its checksums right; `sections` of bytes are the whole header."""
    text, raw = sections, values.tobytes()
    if not isinstance(text, bytes):
        text = json.dumps({"of": identity(path), "sections": sections}).encode()
    checksums = [struct.pack("<I", google_crc32c.value(part)) for part in (text, raw)]
    return MAGIC + struct.pack("<I", len(text)) + checksums[0] + text + raw + checksums[1]


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in SECTION.items() if name != key}


HEADERS: dict[str, object] = {
    **{f"{key} {value!r}"[:40]: [{**SECTION, key: value}] for key in ("length", "m", "q", "n", "fold")
       for value in (-1, 2.5, True, "3", None, math.nan, [])},
    **{f"{key} 10^12": [{**SECTION, key: MUCH}] for key in ("length", "m", "q")},
    **{f"no {key}": [without(key)] for key in SECTION},
    "of nothing known": [{**SECTION, "kind": "other"}], "kind of a list": [{**SECTION, "kind": []}],
    "m and length": [{**SECTION, "m": MUCH, "length": (MUCH + 2) * (MUCH + 3) // 2}],
    "NaN y0": [{**SECTION, "y0": [math.nan]}], "y0 of many": [{**SECTION, "y0": [0.0] * 9}],
    "y0 of text": [{**SECTION, "y0": "0"}], "y0 of a list": [{**SECTION, "y0": [[0.0]]}],
    "unit NaN": [{**SECTION, "unit": math.nan}], "unit text": [{**SECTION, "unit": "1"}],
    "observed other": [{**SECTION, "observed": "x"}], "observed many": [{**SECTION, "observed": "11"}],
    "observed a list": [{**SECTION, "observed": []}], "twice": [SECTION, SECTION], "extra": [{**SECTION, "extra": 1}],
    "no list": SECTION, "a number": 3, "null": None, "text": "gram", "lists": [[]], "deep": deep().encode(),
    "not UTF-8": b"\xff\xfe", "nothing": b"{}", "sections alone": json.dumps([SECTION]).encode(),
    "of nobody": json.dumps({"sections": [SECTION]}).encode(),
}  # fmt: skip


def test_sums_forged_without_a_lie_are_read(tmp_path: Path) -> None:
    """The control."""
    (tmp_path / "a").write_bytes(sums(tmp_path / "a", [SECTION], np.arange(10.0)))
    found = load_moments(tmp_path / "a")
    assert found is not None and found[0, ""].n == 5 and undamaged(tmp_path / "a")


@pytest.mark.parametrize("name", HEADERS)
def test_sums_that_lie_are_as_good_as_absent(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_bytes(sums(tmp_path / "a", HEADERS[name], np.arange(10.0)))
    (tmp_path / "b").write_bytes(sums(tmp_path / "b", [SECTION], np.arange(10.0)))
    with small():
        assert load_moments(tmp_path / "a") is None
        assert not undamaged(tmp_path / "a")
        assert not merge_moments(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert not (tmp_path / "c").exists()


# --- Data ------------------------------------------------------------------------------------------------------------

SOURCES = {
    "pickled.npy": npy(np.array([print, None], dtype=object)), "void.npy": npy(np.zeros(9, "V8")),
    "claims.npy": npy(np.zeros((3, 1)), claims=(MUCH, 1)), "columns.npy": npy(np.zeros((3, 1)), claims=(3, MUCH)),
    "negative.npy": npy(np.zeros((3, 1)), claims=(-3, 1)),
    "pickled.npz": archive(("a.npy", npy(np.array([print, None], dtype=object)))),
    "claims.npz": archive(("a.npy", npy(np.zeros((3, 1)), claims=(MUCH, 1)))),
    "columns.npz": archive(("a.npy", npy(np.zeros((3, 1)), claims=(3, MUCH)))),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_sources_that_lie_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(SOURCES[name])
    column = "a" if name.endswith("npz") else "c0"
    refused(lambda: ingest([tmp_path / name], tmp_path / "out.zarr", inputs=[column], targets=["=0"]), name)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == [name]


def zarr_store(path: Path, **changes: Any) -> Path:
    """A store of others, of two arrays, whose second says something else."""
    for name in ("x", "y"):
        (path / name / "c" / "0").mkdir(parents=True)
        (path / name / "c" / "0" / "0").write_bytes(np.zeros((4, 1)).tobytes())
        node = {
            "zarr_format": 3, "node_type": "array", "shape": [4, 1], "data_type": "float64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 1]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0.0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {}, "storage_transformers": [], **(changes if name == "y" else {}),
        }  # fmt: skip
        (path / name / "zarr.json").write_text(json.dumps(node))
    (path / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}))
    return path


def grid(*sizes: Any) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(sizes)}}


STORES: dict[str, dict[str, Any]] = {
    "rows": {"shape": [MUCH, 1], "chunk_grid": grid(MUCH, 1)}, "chunk": {"chunk_grid": grid(MUCH, 1)},
    "columns": {"shape": [4, MUCH], "chunk_grid": grid(4, MUCH)}, "negative": {"shape": [-4, 1]},
    "float": {"shape": [4.5, 1]}, "no chunk": {"chunk_grid": grid(0, 1)}, "text": {"shape": "4"},
    "pickled": {"data_type": "object"}, "codec": {"codecs": [{"name": "numcodecs.pickle"}]},
    "filter": {"codecs": [{"name": "numcodecs.python", "configuration": {"id": "pickle"}}]},
    "many axes": {"shape": [1] * 70},
}  # fmt: skip


def test_a_store_of_others_is_read(tmp_path: Path) -> None:
    """The control."""
    assert open_dataset(zarr_store(tmp_path / "a.zarr"), inputs="x", targets="y").block(0, 4).Y.shape == (4, 1)


@pytest.mark.parametrize("name", STORES)
def test_stores_that_lie_are_refused(tmp_path: Path, name: str) -> None:
    path = zarr_store(tmp_path / "a.zarr", **STORES[name])
    refused(lambda: open_dataset(path, inputs="x", targets="y").block(0, 4), path)


def test_an_array_may_not_be_named_out_of_its_store(tmp_path: Path) -> None:
    zarr_store(tmp_path / "a.zarr")
    zarr_store(tmp_path / "b.zarr")
    for name in ("../b.zarr/x", str(tmp_path / "b.zarr" / "x"), "x/../../b.zarr/x", "", ".", ".."):
        with pytest.raises(InputError):
            open_dataset(tmp_path / "a.zarr", inputs=name, targets="y")
