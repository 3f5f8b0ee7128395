"""Files of sums: what a file claims is held against its size before memory is taken for it."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from dorff.moments import Kind, Moments, Products
from dorff.storage.files import identity
from dorff.store import load_sums, merge_moments, save_moments, undamaged

GOOD: dict[str, Any] = {
    "kind": "gram", "length": 6, "fold": 0, "observed": "", "m": 1, "q": 1, "n": 5, "y0": [0.5], "unit": 2.0**-52,
}  # fmt: skip


def write(path: Path, header: Any, numbers: int = 6, *, length: int | None = None) -> Path:
    """A file as `save_moments` writes it, with right checksums, whatever the header says."""
    text = json.dumps({"of": identity(path), "sections": header}).encode()
    (raw,) = struct.unpack("<8s", path.read_bytes()[:8])
    body = np.arange(float(numbers)).tobytes()
    prefix = raw + struct.pack("<II", len(text) if length is None else length, google_crc32c.value(text))
    path.write_bytes(prefix + text + body + struct.pack("<I", google_crc32c.value(body)))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    sums = Moments(m=1, q=1, n=5, y0=np.array([0.5]), values=np.arange(6.0))
    save_moments(tmp_path / "sums", {(0, ""): sums})
    return tmp_path / "sums"


def test_the_writer_here_writes_what_the_store_does(path: Path) -> None:
    before = path.read_bytes()
    assert write(path, [GOOD]).read_bytes() == before and undamaged(path)


@pytest.mark.parametrize(
    "claim",
    [
        {"length": 10**12}, {"length": 10**12, "m": 10**6}, {"m": 10**6, "length": (10**6 + 2) * (10**6 + 3) // 2},
        {"length": -6}, {"length": 6.0}, {"length": "6"}, {"m": -4, "q": 4}, {"m": 2}, {"m": 1.5}, {"n": -1},
        {"n": None}, {"y0": []}, {"y0": 3}, {"y0": [0.5, 0.5]}, {"y0": ["a"]}, {"kind": "product", "m": 3},
        {"kind": "other", "length": 5}, {"kind": "other"}, {"kind": None}, {"fold": "x"}, {"fold": 0.5},
        {"observed": 3}, {"observed": "10"}, {"unit": "big"}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_claims_that_cannot_be_true_are_damage_and_take_no_memory(claim: dict[str, Any], path: Path) -> None:
    write(path, [GOOD | claim])
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    tracemalloc.start()
    try:
        assert load_sums(path, Moments) is None
        assert not undamaged(path) and not merge_moments(path, other, path.with_name("into"))
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("header", [{}, None, 5, [5], [{}], "text", [[GOOD]]])
def test_headers_of_another_shape_are_damage(header: Any, path: Path) -> None:
    assert load_sums(write(path, header), Moments) is None and not undamaged(path)


def test_a_header_longer_than_its_file_takes_no_memory(path: Path) -> None:
    write(path, [GOOD], length=2**32 - 1)
    tracemalloc.start()
    try:
        assert load_sums(path, Moments) is None
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


def test_products_have_whole_rows(path: Path) -> None:
    found = load_sums(write(path, [GOOD | {"kind": "product"}]), Products)
    assert found is not None and found[0, ""].values.shape == (3, 2) and found[0, ""].kind == Kind.PRODUCT
    assert load_sums(write(path, [GOOD | {"kind": "product", "length": 5}], 5), Products) is None
