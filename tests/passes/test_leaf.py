"""Leaves: stopped and gone on with, read again where rows change, and never wrong without a word."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Any

import numpy as np
import pytest
from cases import plain_map
from pass_specs import constants_of, spec_of

from dorff.data import Dataset, ingest, open_dataset
from dorff.engine import SerialEngine, Task
from dorff.engine.base import forget_spare
from dorff.errors import CorruptError, IncompleteError, InputError, StoppedError
from dorff.errors.stopping import clear_stop, request_stop
from dorff.moments import FloatArray, Kind, gram
from dorff.passes import BlockSums, FoldRule, Leaf, Pass, frozen_hash, sum_leaf
from dorff.passes.leaf import PassSums, run_leaf
from dorff.store import Receipt
from dorff.store.receipts import Checkpoint

ROWS, BLOCK, READ = 700, 64, 128
FEATURES = plain_map(np.random.default_rng(1).standard_normal((8, 2)))
Y0 = np.array([0.5, -1.0])
V = np.random.default_rng(2).standard_normal((19, 3))
WAYS: dict[str, dict[str, Any]] = {
    "gram": {},
    "triangle": {"kind": Kind.TRIANGLE},
    "product": {"kind": Kind.PRODUCT, "V": V},
    "mixed": {"precision": "mixed"},
}


@pytest.fixture(autouse=True)
def nobody_stops() -> Iterator[None]:
    clear_stop()
    forget_spare()
    yield
    clear_stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("leaf"), 0)


def write(folder: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((ROWS, 2))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1]]) + 0.1 * rng.standard_normal((ROWS, 2))
    Y[rng.random((ROWS, 2)) < 0.1] = np.nan
    np.savez(folder / "rows.npz", x=X, y=Y, weight=rng.uniform(0.0, 2.0, ROWS))
    path = folder / "rows.zarr"
    ingest([folder / "rows.npz"], path, inputs=["x"], targets=["y"], weights="weight", shard_rows=256)
    return path


@pytest.fixture
def dataset(store: Path) -> Dataset:
    return open_dataset(store, weights="weight")


def make_pass(folder: Path, *, nan: str = "drop", folds: FoldRule = FoldRule(), read_rows: int = READ) -> Pass:  # noqa: B008
    """A pass as a plan freezes it, but for its frozen text, which the leaf only looks at the name of."""
    folder = folder / "plan"  # files say the name of their plan's folder, so that of two it has to be the same
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "plan.json").write_text("{}")
    name = frozen_hash(folder)
    assert name is not None
    spec = spec_of(block_rows=BLOCK, read_rows=read_rows, folds=folds, nan=nan)
    return Pass(folder, name, spec, constants_of(FEATURES, Y0))


def new_sums(way: dict[str, Any]) -> BlockSums:
    return BlockSums(FEATURES, Y0, block_rows=BLOCK, **way)


def run(this: Pass, dataset: Dataset, way: dict[str, Any]) -> Receipt:
    return sum_leaf(this, this, new_sums(way), dataset, Leaf(3, 10, ROWS))


def node(this: Pass, receipt: Receipt) -> bytes:
    return this.node(0, receipt.number, receipt.key).read_bytes()


def stopped_at_every_block(this: Pass, dataset: Dataset, way: dict[str, Any]) -> tuple[Receipt, int]:
    """The receipt of a leaf that is asked to stop whenever it runs, and how often it stopped."""
    request_stop()
    for times in range(100):
        try:
            return run(this, dataset, way), times
        except StoppedError:
            assert Receipt.load(this.receipts, 3) is None
            assert len(list(this.checkpoints.iterdir())) == 2
    raise AssertionError


@pytest.mark.parametrize("what", ["state", "data"])
def test_what_a_worker_does_not_see_is_named(dataset: Dataset, tmp_path: Path, what: str) -> None:
    """As where each node has a disk of its own; it may be there a moment later, so that it is tried three times."""
    gone = tmp_path / "gone"
    state, source = (gone / "plan", dataset) if what == "state" else (tmp_path, replace(dataset, path=str(gone)))
    task = Task(run_leaf, (PassSums, str(state), "0" * 64, source, (0, 0, BLOCK)))
    with pytest.raises(IncompleteError, match=f"^{gone}: {gethostname()} does not see it, .* have to, 3 times over"):
        SerialEngine().run([task], lambda *_: ())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("nan", "folds", "read_rows"),
    [("drop", FoldRule(), READ), ("partial", FoldRule(3, by_rows=True), READ), ("partial", FoldRule(5), 256)],
    ids=["dropped", "folds by rows", "long runs"],
)
def test_a_stopped_leaf_goes_on_to_the_same_bits(
    way: str, nan: str, folds: FoldRule, read_rows: int, dataset: Dataset, tmp_path: Path
) -> None:
    one, other = (make_pass(tmp_path / name, nan=nan, folds=folds, read_rows=read_rows) for name in "ab")
    whole = run(one, dataset, WAYS[way])
    parts, times = stopped_at_every_block(other, dataset, WAYS[way])
    assert times == 10 and list(other.checkpoints.iterdir()) == []
    assert node(other, parts) == node(one, whole)
    timeless = {"seconds": 0.0, "syrk_seconds": 0.0, "rows_read": 0}
    assert replace(parts, **timeless) == replace(whole, **timeless) and parts.rows_read >= whole.rows_read == ROWS - 10
    assert 0 < parts.rows_used < ROWS - 10 and parts.seconds > parts.syrk_seconds > 0


def stopped(this: Pass, dataset: Dataset, way: dict[str, Any]) -> Checkpoint:
    request_stop()
    with pytest.raises(StoppedError, match=r"leaf 3.*after row 73 of 10\.\.699"):
        run(this, dataset, way)
    clear_stop()
    found = Checkpoint.load(this.checkpoints, 3)
    assert found is not None and found.row == 74
    return found


def rewritten(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_that_is_torn_or_damaged_or_of_other_rows_is_as_none(
    way: str, dataset: Dataset, tmp_path: Path
) -> None:
    this = make_pass(tmp_path / "a")
    wanted = run(this, dataset, WAYS[way])
    bits = node(this, wanted)
    found = stopped(this, dataset, WAYS[way])
    kept = {path: path.read_bytes() for path in this.checkpoints.iterdir()}
    damages: list[Callable[[bytes], bytes | None]] = [
        lambda _: None, lambda raw: raw[:-1], lambda raw: raw[: len(raw) // 2], lambda raw: rewritten(raw, 3),
        lambda raw: rewritten(raw, len(raw) // 2), lambda raw: rewritten(raw, len(raw) - 2), lambda raw: raw + b"x",
    ]  # fmt: skip
    for path in kept:
        for damage in damages:
            for other, raw in kept.items():
                other.write_bytes(raw)
            after = damage(kept[path])
            path.unlink() if after is None else path.write_bytes(after)
            receipt = run(this, dataset, WAYS[way])
            assert node(this, receipt) == bits and receipt.rows_read == wanted.rows_read  # read from the start
    others = [{"stamp": "other"}, {"plan": "other"}, {"stop": ROWS - 1}, {"row": ROWS}, {"row": 10}, {"low": (0.0,)}]
    for other_rows in [replace(found, **one) for one in others]:
        adders = new_sums(WAYS[way])
        assert found.restore(this.checkpoints, adders.of) is False  # removed by the last run
        adders.add(np.ones((3, 2)), np.ones((3, 2)))
        other_rows.save(this.checkpoints, adders.sums)
        assert node(this, run(this, dataset, WAYS[way])) == bits


def test_a_checkpoint_of_another_shape_is_not_restored(dataset: Dataset, tmp_path: Path) -> None:
    this = make_pass(tmp_path / "a")
    found = stopped(this, dataset, WAYS["gram"])
    assert found.restore(this.checkpoints, new_sums(WAYS["gram"]).of)
    wider = BlockSums(plain_map(np.ones((9, 2))), Y0, block_rows=BLOCK)
    shifted = BlockSums(FEATURES, Y0 + 1.0, block_rows=BLOCK)
    for sums in (new_sums(WAYS["triangle"]), new_sums(WAYS["product"]), wider, shifted):
        assert not found.restore(this.checkpoints, sums.of)


class Standing(BlockSums):  # final to mypy, but where else to stand between two blocks?
    """Calls `between` with itself before each block; what that does with `last` is done to the block's features."""

    between: Callable[[Standing], None] = staticmethod(lambda _: None)
    blocks = 0

    def _featurize(self, x: FloatArray, y: FloatArray, weight: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        found = super()._featurize(x, y, weight)
        self.last, self.blocks = found[0], self.blocks + 1
        self.between(self)
        return found


def standing(way: dict[str, Any], between: Callable[[Standing], None]) -> Standing:
    sums = Standing(FEATURES, Y0, block_rows=BLOCK, **way)
    sums.between = between  # type: ignore[method-assign]
    return sums


def replacing(path: Path, contents: list[bytes]) -> Callable[[Standing], None]:
    """Gives a file these contents in turn, one each time that the leaf begins."""

    def between(sums: Standing) -> None:
        if contents and not any(adder.n for adder in sums.sums.values()):
            new = path.with_name("new")
            new.write_bytes(contents.pop(0))
            os.replace(new, path)

    return between


def test_rows_that_change_while_they_are_read_are_read_again(tmp_path: Path) -> None:
    path, this = write(tmp_path, 0), make_pass(tmp_path / "state")
    before = run(this, open_dataset(path, weights="weight"), {})
    (tmp_path / "other").mkdir()
    shard, new = (
        folder / "x" / "c" / "2" / "0" for folder in (path, write(tmp_path / "other", 1))
    )  # rows from 512, read after the first block is added
    torn = new.read_bytes()[:-9]
    dataset = open_dataset(path, weights="weight")
    for contents in ([new.read_bytes()] * 2, [torn, new.read_bytes()]):
        receipt = sum_leaf(this, this, standing({}, replacing(shard, contents)), dataset, Leaf(3, 10, ROWS))
        assert receipt.digest != before.digest and receipt.stamp == dataset.stamp(10, ROWS)
        again = run(this, dataset, {})
        assert again.digest == receipt.digest and again.key == receipt.key
    changing = standing({}, replacing(shard, [new.read_bytes()] * 3))
    with pytest.raises(IncompleteError, match=r"rows 10\.\.699 changed while they were read, 3 times"):
        sum_leaf(this, this, changing, dataset, Leaf(3, 10, ROWS))
    shard.write_bytes(torn)
    with pytest.raises(InputError, match="damaged"):  # and stays so
        run(this, dataset, {})


def accumulator(sums: Standing) -> None:
    """The sign of a number in the sums, after the fourth block."""
    if sums.blocks == 4:
        (adder,) = sums.sums.values()
        piece = list(adder.held())[-3 if len(list(adder.held())) > 2 else 0]
        piece[1] = -2.0 * piece[1]


def features(sums: Standing) -> None:
    """One feature of a row of the fourth block, before it is added."""
    if sums.blocks == 4:
        sums.last[5, 2] = 1e3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", [accumulator, features])
def test_a_number_that_changes_in_memory_is_noticed_and_the_leaf_can_be_done_again(
    fault: Callable[[Standing], None], way: str, dataset: Dataset, tmp_path: Path
) -> None:
    this, other = make_pass(tmp_path / "a"), make_pass(tmp_path / "b")
    with pytest.raises(CorruptError, match=r"leaf 3 \(rows 10\.\.699\).*memory or processor faulty"):
        sum_leaf(this, this, standing(WAYS[way], fault), dataset, Leaf(3, 10, ROWS))
    assert Receipt.load(this.receipts, 3) is None and not (this.directory / "nodes").exists()
    assert node(this, run(this, dataset, WAYS[way])) == node(other, run(other, dataset, WAYS[way]))


@pytest.mark.parametrize("way", ["gram", "mixed"])
def test_a_syrk_that_is_wrong_is_noticed_also_across_a_stop(
    way: str, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this, right = make_pass(tmp_path / "a"), gram.syrk

    def wrong(Z: FloatArray, square: FloatArray) -> None:
        right(Z, square)
        square[3, 4] += 20.0

    with monkeypatch.context() as patch:
        patch.setattr(gram, "syrk", wrong)
        stopped(this, dataset, WAYS[way])
    with pytest.raises(CorruptError):
        run(this, dataset, WAYS[way])
    assert list(this.checkpoints.iterdir()) == []  # so that the next try does not go on from it
    assert run(this, dataset, WAYS[way]).rows_used > 0


def test_sums_that_overflow_are_the_rows_fault(tmp_path: Path) -> None:
    X, Y = np.ones((ROWS, 2)), np.ones((ROWS, 2))
    Y[300, 1] = 1e170
    np.savez(tmp_path / "rows.npz", x=X, y=Y)
    ingest([tmp_path / "rows.npz"], tmp_path / "rows.zarr", inputs=["x"], targets=["y"])
    dataset, this = open_dataset(tmp_path / "rows.zarr"), make_pass(tmp_path / "a")
    for way in ("gram", "product"):
        with pytest.raises(InputError, match=r"rows 10\.\.699: the sums overflow float64.*larger than 1e150"):
            run(this, dataset, WAYS[way])
    with pytest.raises(InputError, match=r"overflow float32.*larger than 1e18.*precision: double"):
        run(replace(this, spec=replace(this.spec, precision="mixed")), dataset, WAYS["mixed"])


def test_any_changed_bit_of_a_receipt_is_noticed(dataset: Dataset, tmp_path: Path) -> None:
    this = make_pass(tmp_path / "a")
    receipt = run(this, dataset, {})
    (path,) = this.receipts.iterdir()
    raw = path.read_bytes()
    assert Receipt.load(this.receipts, 3) == receipt
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        assert Receipt.load(this.receipts, 3) is None, f"byte {at}"
    for torn in (b"", raw[:-1], raw + b"\n", b"[1]", b"{}"):
        path.write_bytes(torn)
        assert Receipt.load(this.receipts, 3) is None
