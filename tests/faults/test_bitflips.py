"""A bit flipped in anything that dorff keeps is noticed, mended, or changes nothing: a hundred of the benchmark's."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import zarr

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bitflips.py"
ROWS = 275_000  # two leaves and the beginning of a third


@pytest.fixture(scope="module")
def bitflips() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("bitflips", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = sys.modules["bitflips"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bitflips"]


@pytest.fixture(scope="module")
def scene(bitflips: ModuleType, tmp_path_factory: pytest.TempPathFactory):
    return bitflips.Scene.made(tmp_path_factory.mktemp("flips"), rows=ROWS)


@pytest.mark.slow
def test_no_flip_is_undetected(bitflips: ModuleType, scene) -> None:
    found = list(bitflips.flips(scene, 100, seed=6))
    assert [one for one in found if one["outcome"] == "UNDETECTED"] == []
    table = bitflips.table(found)
    assert {name for name, outcomes in table.items() if not sum(outcomes.values())} == set()  # of every kind some
    for name, outcomes in table.items():
        noticed = outcomes["detected"] + outcomes["healed"]
        assert noticed >= sum(outcomes.values()) // 2, (name, outcomes)  # the files are full of what matters


def test_a_flip_that_nothing_can_notice_is_called_undetected(bitflips: ModuleType, tmp_path: Path) -> None:
    """The control: a store that others wrote, without checksums."""
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w", zarr_format=3)
    rng = np.random.default_rng(0)
    columns = {"x": rng.random((50, 2)), "y": rng.random((50, 1)), "weights": rng.random((50, 1))}
    codes = {"classes": rng.integers(0, 2, (50, 1)), "groups": rng.integers(0, 5, (50, 1))}
    for name, values in {**columns, **codes}.items():
        group.create_array(name, data=values, compressors=None)
    chunks = bitflips.Chunks(bitflips.Scene(tmp_path))
    outcomes = [chunks.outcome(path, 0, 1, tmp_path)[0] for path in chunks.files]
    assert len(outcomes) == 5 and set(outcomes) == {"UNDETECTED"}
