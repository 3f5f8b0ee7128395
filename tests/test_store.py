"""Durable bytes: whole or absent, and damage is noticed."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cases import plain_map
from hypothesis import given
from hypothesis import strategies as st

from dorff import kernels
from dorff.errors import InputError
from dorff.model import Model
from dorff.moments import Moments, Products, Triangle
from dorff.store import (
    Receipt,
    load_model,
    load_moments,
    load_sums,
    merge_folds,
    merge_moments,
    remove_torn,
    save_model,
    save_moments,
    undamaged,
)
from dorff.weights import OperatorWeights


def some_moments(seed: int, *, m: int = 4, q: int = 2) -> Moments:
    rng = np.random.default_rng(seed)
    width = m + 1 + q
    return Moments(m=m, q=q, n=seed + 1, y0=np.array([0.5, 1.0]), packed=rng.standard_normal(width * (width + 1) // 2))


def test_moments_come_back_to_the_bit(tmp_path: Path) -> None:
    folds = {(3, ""): some_moments(1), (0, ""): some_moments(2)}
    save_moments(tmp_path / "a.moments", folds)
    found = load_moments(tmp_path / "a.moments")
    assert found is not None and sorted(found) == [(0, ""), (3, "")]
    for fold, moments in folds.items():
        assert np.array_equal(found[fold].packed, moments.packed) and np.array_equal(found[fold].y0, moments.y0)
        assert (found[fold].n, found[fold].m, found[fold].q) == (moments.n, moments.m, moments.q)


def test_any_flipped_bit_or_cut_of_moments_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.moments"
    save_moments(path, {(0, ""): some_moments(1), (1, ""): some_moments(2)})
    raw = path.read_bytes()
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        assert load_moments(path) is None and not undamaged(path), f"byte {at}"
    for cut in (0, 5, 15, 40, len(raw) - 1):
        path.write_bytes(raw[:cut])
        assert load_moments(path) is None
    path.write_bytes(raw + b"x")
    assert load_moments(path) is None
    assert load_moments(tmp_path / "absent.moments") is None and not undamaged(tmp_path / "absent.moments")
    path.write_bytes(raw)
    assert undamaged(path)


def test_files_add_fold_by_fold_to_the_bits_of_their_folds(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("left", "right", "into")]
    for m in (4, 600):  # one piece, and several
        left = {(0, ""): some_moments(1, m=m), (1, ""): some_moments(2, m=m), (4, ""): some_moments(6, m=m)}
        right = {(1, ""): some_moments(3, m=m), (2, ""): some_moments(4, m=m), (4, ""): some_moments(5, m=m)}
        save_moments(paths[0], left)
        save_moments(paths[1], right)
        assert merge_moments(*paths)
        found, wanted = load_moments(paths[2]), merge_folds(left, right)
        assert found is not None and [fold for fold, _ in found] == [0, 1, 2, 4] and list(found) == sorted(wanted)
        for fold, moments in wanted.items():
            assert np.array_equal(found[fold].packed, moments.packed) and found[fold].n == moments.n


@pytest.mark.parametrize("kind", [Triangle, Products])
def test_files_of_any_kind_merge_to_the_bits_of_their_sums(tmp_path: Path, kind: type[Triangle | Products]) -> None:
    paths = [tmp_path / name for name in ("left", "right", "into")]

    def some(seed: int) -> Triangle | Products:
        found = some_moments(seed, m=9)
        unit = 1e-7 if seed == 3 else 1e-16
        values = found.packed if kind is Triangle else found.packed[: 12 * 3]
        return kind.read(9, 2, found.n, found.y0, values, "", unit)

    left, right = {(0, ""): some(1), (1, ""): some(2)}, {(1, ""): some(3), (2, ""): some(4)}
    save_moments(paths[0], left)
    save_moments(paths[1], right)
    assert merge_moments(*paths)
    found = load_sums(paths[2], kind)
    wanted = {(0, ""): left[0, ""], (1, ""): left[1, ""] + right[1, ""], (2, ""): right[2, ""]}
    assert found is not None and list(found) == list(wanted)
    for fold, sums in wanted.items():
        assert np.array_equal(next(found[fold].pieces()), next(sums.pieces())) and found[fold].n == sums.n
        assert found[fold].unit == (1e-7 if fold == (1, "") else 1e-16)
    with pytest.raises(InputError, match=f"kind {kind.kind}, wanted gram"):
        load_moments(paths[2])
    raw = paths[1].read_bytes()
    paths[1].write_bytes(raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:])
    assert not merge_moments(*paths)
    save_moments(paths[1], {(1, ""): some_moments(3, m=9)})
    with pytest.raises(InputError, match="different plans"):
        merge_moments(*paths)


@pytest.mark.parametrize("which", [0, 1])
def test_damaged_files_are_not_added(tmp_path: Path, which: int) -> None:
    paths = [tmp_path / name for name in ("left", "right", "into")]
    for path in paths[:2]:
        save_moments(path, {(0, ""): some_moments(1), (1, ""): some_moments(2)})
    raw = paths[which].read_bytes()
    damages = [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] for at in range(0, len(raw), 7)]
    for damaged in (*damages, raw[:-1], raw + b"x", b""):
        paths[which].write_bytes(damaged)
        assert not merge_moments(*paths)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["left", "right"]
    paths[which].unlink()
    assert not merge_moments(*paths)
    save_moments(paths[which], {(0, ""): some_moments(1, m=5)})
    with pytest.raises(InputError, match="different plans"):
        merge_moments(*paths)


def test_folds_merge_fold_by_fold() -> None:
    left = {(0, ""): some_moments(1), (1, ""): some_moments(2)}
    right = {(1, ""): some_moments(3), (2, ""): some_moments(4)}
    wanted = left[1, ""].packed + right[1, ""].packed
    merged = merge_folds(left, right)
    assert sorted(merged) == [(0, ""), (1, ""), (2, "")] and merged[1, ""].n == 3 + 4
    assert np.array_equal(merged[1, ""].packed, wanted)


RECEIPT = Receipt(
    plan="abc", number=7, start=0, stop=10, digest="d", stamp="s", rows_used=9, rows_dropped=1, rows_read=12,
    low=(0.1, -2.0), high=(1.0, 3.5), seconds=0.1, syrk_seconds=0.05,
)  # fmt: skip


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_changed_receipt_is_none(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("receipts")
    RECEIPT.save(folder)
    assert Receipt.load(folder, 7) == RECEIPT and Receipt.load(folder, 8) is None
    path = folder / "000007.json"
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] ^= 1 << bit
    path.write_bytes(raw)
    assert Receipt.load(folder, 7) in (None, RECEIPT)  # white space may change without changing what it says


def test_the_key_is_of_content_not_of_time() -> None:
    assert RECEIPT.timed(99.0).key == RECEIPT.key


def small_model() -> Model:
    omega = np.ones((2, 1))
    kernel = kernels.Decomposable(kernels.Gaussian(1.0)).fix(1, 1)
    return Model(
        plain_map(omega),
        OperatorWeights.of(np.ones((4, 1, 1))),
        np.ones((4, 1)),
        np.ones(1),
        np.ones(1),
        kernel,
        {},
        0,
    )


def test_models_published_at_once_get_versions_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda _: save_model(small_model(), tmp_path / "m"), range(16)))
    assert len(set(versions)) == 16 and (tmp_path / "m" / "current").read_text() in {path.name for path in versions}
    assert load_model(tmp_path / "m").p == 1


def test_what_killed_writers_left_is_removed_when_old(tmp_path: Path) -> None:
    for name in (".old.moments.1", ".young.moments.2", "kept.moments"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".new-1").mkdir()
    for name in (".old.moments.1", ".new-1", "kept.moments"):
        os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    remove_torn(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".young.moments.2", "kept.moments"]
