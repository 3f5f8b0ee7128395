"""What a pass gives to sums of any kind: folds, checkpoints, receipts, the tree, and workers. Shown with sums that the
package does not know (`toy_sums`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cases import plain_map
from pass_specs import constants_of, spec_of
from toy_sums import Sizes, SizeSums

from dorff.data import Dataset, ingest, open_dataset
from dorff.engine import SerialEngine, open_engine
from dorff.errors import StoppedError
from dorff.errors.stopping import clear_stop, request_stop
from dorff.moments import FloatArray
from dorff.passes import FoldRule, Leaf, Pass, Tree, frozen_hash, load_pass
from dorff.passes.frozen import freeze
from dorff.spec.cluster import LocalCluster
from dorff.store.receipts import Checkpoint

SHARD, LEAVES, FOLDS = 64, 7, FoldRule(3, by_rows=True, seed=5)
CUTS = [Leaf(k, 2 * k * SHARD, 2 * (k + 1) * SHARD) for k in range(LEAVES)]
ROWS = CUTS[-1].stop


@pytest.fixture(autouse=True)
def nobody_stops() -> Iterator[None]:
    clear_stop()
    yield
    clear_stop()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder, rng = tmp_path_factory.mktemp("sizes"), np.random.default_rng(0)
    np.savez(folder / "rows.npz", x=rng.standard_normal((ROWS, 2)), y=rng.standard_normal((ROWS, 2)))
    ingest([folder / "rows.npz"], folder / "rows.zarr", inputs=["x"], targets=["y"], shard_rows=SHARD)
    return open_dataset(folder / "rows.zarr")


def make_pass(folder: Path) -> Pass:
    directory = folder / "plan"
    spec = spec_of(folds=FOLDS, block_rows=32, read_rows=SHARD)
    freeze(directory, spec, constants_of(plain_map(np.ones((4, 2))), np.zeros(2)))
    name = frozen_hash(directory)
    assert name is not None
    return load_pass(directory, name)


def tree_of(frozen: Pass, dataset: Dataset) -> Tree:
    return Tree(SizeSums.of(frozen), dataset, CUTS, kept=0)


def bits(sums: dict[tuple[int, str], Sizes]) -> FloatArray:
    return np.array([[sums[fold, ""].n, *sums[fold, ""].values] for fold in range(FOLDS.count)])


@pytest.mark.process
def test_sums_of_another_kind_go_through_a_pass_on_workers_and_resume_to_the_bit(
    dataset: Dataset, tmp_path: Path
) -> None:
    whole, stopped = (make_pass(tmp_path / name) for name in "ab")
    at_once = bits(tree_of(whole, dataset).collect(SerialEngine(), Sizes))
    Y, fold_of = dataset.read(0, ROWS)[1], FOLDS.of_rows(np.arange(ROWS))
    wanted = [[(fold_of == fold).sum(), *np.abs(Y[fold_of == fold]).sum(axis=0)] for fold in range(FOLDS.count)]
    np.testing.assert_allclose(at_once, wanted, rtol=1e-13)

    place = SizeSums.of(stopped)
    place.leaf(dataset, CUTS[2])
    request_stop()
    with pytest.raises(StoppedError, match=r"leaf 4.*after row 543"):
        place.leaf(dataset, CUTS[4])
    clear_stop()
    assert Checkpoint.load(place.checkpoints, 4) is not None
    with open_engine(LocalCluster(type="local", workers=2)) as engine:
        tree = tree_of(stopped, dataset)
        resumed = tree.collect(engine, Sizes)
    assert tree.computed == {0, 1, 3, 4, 5, 6}  # leaf 2 had its receipt
    # Before the stop 64, or 128 where the next were read ahead by then; after it the 96 that were left, not all 128.
    assert tree.receipts[4].rows_read - 96 in (SHARD, 2 * SHARD)
    np.testing.assert_array_equal(bits(resumed), at_once)
    tree.tidy()
    assert not place.checkpoints.exists() and not tree_of(stopped, dataset).missing()
