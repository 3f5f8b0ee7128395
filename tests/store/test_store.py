"""Durable bytes: whole or absent, and damage is noticed."""

from __future__ import annotations

import errno
import json
import os
import resource
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import plain_map
from hypothesis import given
from hypothesis import strategies as st

from dorff import kernels
from dorff.errors import IncompleteError, InputError
from dorff.model import Model
from dorff.model.weights import OperatorWeights
from dorff.moments import Moments, Products, Triangle, merge_folds
from dorff.storage.files import remove_tree, seal
from dorff.store import (
    Receipt,
    append_history,
    current_version,
    load_model,
    load_moments,
    load_sums,
    merge_moments,
    prune_versions,
    read_history,
    resolve_model,
    save_model,
    save_moments,
    space_on,
    undamaged,
    unseal,
    versions,
    write_atomic,
)
from dorff.store.models import number_version, switch_current, write_version


def some_moments(seed: int, *, m: int = 4, q: int = 2) -> Moments:
    rng = np.random.default_rng(seed)
    width = m + 1 + q
    return Moments(m=m, q=q, n=seed + 1, y0=np.array([0.5, 1.0]), values=rng.standard_normal(width * (width + 1) // 2))


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
        header = {"m": 9, "q": 2, "n": found.n, "observed": "", "unit": unit}
        return kind.read(header, found.y0, values)

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
    assert replace(RECEIPT, seconds=99.0).key == RECEIPT.key


def small_model() -> Model:
    omega = np.ones((2, 1))
    kernel = kernels.Decomposable(kernels.Gaussian(1.0)).fix(1, 1)
    return Model(
        plain_map(omega),
        OperatorWeights(np.ones(4), np.ones((1, 1, 1))),
        np.ones((4, 1)),
        np.ones(1),
        np.ones(1),
        kernel,
        {},
        0,
    )


def test_models_published_at_once_get_versions_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        saved = list(pool.map(lambda _: save_model(small_model(), tmp_path / "m"), range(16)))
    assert len(set(saved)) == 16 and current_version(tmp_path / "m") in {path.name for path in saved}
    assert load_model(tmp_path / "m").p == 1


def test_any_flipped_bit_or_cut_of_current_is_noticed(tmp_path: Path) -> None:
    assert current_version(tmp_path) is None
    version = save_model(small_model(), tmp_path)
    assert current_version(tmp_path) == version.name == "v000001"
    raw = (tmp_path / "current").read_bytes()
    flipped = [raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :] for at in range(len(raw)) for bit in range(8)]
    for damaged in (*flipped, *(raw[:cut] for cut in range(len(raw))), raw + b"\n", b"v000001", b"../x 00000000"):
        (tmp_path / "current").write_bytes(damaged)
        with pytest.raises(InputError, match=r"current: is damaged: .*give one of the versions"):
            resolve_model(tmp_path)
    assert load_model(version).p == 1
    switch_current(tmp_path, "v000001")
    assert resolve_model(tmp_path) == version


def test_a_version_is_seen_when_it_is_numbered_and_current_when_switched_to(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "m"
    first = write_version(small_model(), root)
    assert load_model(first).p == 1 and versions(root) == [] and current_version(root) is None
    second = write_version(small_model(), root)
    assert number_version(second).name == "v000001" and number_version(first).name == "v000002"
    switch_current(root, "v000001")
    remove_tree(root / "v000002")
    assert sorted(path.name for path in root.iterdir()) == ["current", "v000001"]


def test_a_reader_finds_one_whole_model_while_others_are_published_and_pruned(tmp_path: Path) -> None:
    def publish() -> None:
        for number in range(2, 14):
            value = np.full(1, float(number))
            save_model(replace(small_model(), coefficients=np.full((4, 1), value), intercept=value), tmp_path)
            prune_versions(tmp_path, 1)

    seen = [1.0]
    save_model(small_model(), tmp_path)
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        while not publishing.done():
            found = load_model(tmp_path)
            assert np.all(found.coefficients == found.intercept)
            seen.append(float(found.intercept[0]))
        publishing.result()
    assert seen == sorted(seen) and len(set(seen)) > 1


def claim(version: Path, name: str, shape: list[int], *, size: int | None = None, codecs: object = None) -> None:
    """Make a model's array claim another shape, with all checksums of the description right; its file is hollow."""
    group = json.loads((version / "zarr.json").read_text())
    description = json.loads(group["attributes"]["description"])
    description["shapes"][name] = shape
    text = json.dumps(description, sort_keys=True)
    group["attributes"] |= {"description": text, "crc32": zlib.crc32(text.encode())}
    (version / "zarr.json").write_text(json.dumps(group))
    array = json.loads((version / name / "zarr.json").read_text())
    array["shape"] = array["chunk_grid"]["configuration"]["chunk_shape"] = shape
    if codecs is not None:
        array["codecs"] = codecs
    (version / name / "zarr.json").write_text(json.dumps(array))
    if size is not None:
        os.truncate(next(file for file in (version / name / "c").rglob("*") if file.is_file()), size)
    switch_current(version.parent, version.name)


PLAIN = {"name": "bytes", "configuration": {"endian": "little"}}


@pytest.mark.parametrize(
    ("shape", "changes", "said"),
    [
        ([10**12, 1], {}, r"claims to hold up to 8e\+12 bytes, more than"),
        ([10**8, 1], {}, "claims other bytes than its file holds"),
        (
            [10**8, 1],
            {"codecs": [PLAIN, {"name": "gzip", "configuration": {"level": 1}}], "size": 8 * 10**8},
            "claims",
        ),
        ([-1, 1], {}, "no whole numbers"),
        ([2.5], {}, "no whole numbers"),
        (["x"], {}, "no whole numbers"),
        ([], {}, "claims other bytes"),
    ],
)
def test_what_a_model_claims_is_looked_at_before_memory_is_taken(
    tmp_path: Path, shape: list[int], changes: dict[str, Any], said: str
) -> None:
    version = save_model(small_model(), tmp_path)
    claim(version, "coefficients", shape, **changes)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=said):
            load_model(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_models_arrays_lie_inside_it(tmp_path: Path) -> None:
    version = save_model(small_model(), tmp_path)
    chunk = version / "coefficients" / "c" / "0" / "0"
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="coefficients"):
        load_model(tmp_path)


def test_history_is_told_in_order_and_damaged_lines_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "m"
    assert read_history(root) == []
    lines = [{"number": number, "text": "\u2028 \n é", "score": number / 3} for number in range(3)]
    for line in lines:
        append_history(root, line)
    assert read_history(root) == lines
    path = root / "history.jsonl"
    raw = path.read_bytes()
    starts = [0, raw.index(b"\n") + 1, raw.rindex(b"\n", 0, -1) + 1]
    for at in range(starts[1], starts[2] - 1, 3):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        assert read_history(root) == [lines[0], lines[2]], at
    for cut in range(starts[2], len(raw) - 1, 8):  # a writer was killed in the middle of the last line
        path.write_bytes(raw[:cut])
        append_history(root, {"after": cut})
        assert read_history(root) == [*lines[:2], {"after": cut}]


def test_a_line_is_added_to_a_plain_file_alone(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"mine\n")
    for name, put in (("link", lambda path: path.symlink_to("../outside")), ("pipe", os.mkfifo)):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "history.jsonl")
        with pytest.raises(InputError, match=r"history\.jsonl: is (a link|no plain file), which does not belong"):
            append_history(tmp_path / name, {"number": 1})
    assert (tmp_path / "outside").read_bytes() == b"mine\n"


def test_a_sealed_line_is_what_was_sealed_or_nothing() -> None:
    assert unseal(seal({"a": [1, 2.5, None, "x"]})) == {"a": [1, 2.5, None, "x"]}
    for raw in (b"", b"null", b"[]", b"{}", b'{"record": {}}', b"[" * 10**5, seal({})[:-1], seal({}) + b" ", b"\xff"):
        assert unseal(raw) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_disk_that_is_full_or_fails_leaves_the_job_incomplete(tmp_path: Path, number: int) -> None:
    said = r"x: (no space left|the disk failed).*run the same command again"
    with pytest.raises(IncompleteError, match=said), space_on(tmp_path / "x"):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ELOOP])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(InputError, match=r"x: cannot be written .*choose another path"), space_on(tmp_path / "x"):
        raise OSError(number, os.strerror(number))


def test_a_file_too_large_is_not_there_at_all(tmp_path: Path) -> None:
    """A limit of the process, so that a write fails half-way as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    write_atomic(tmp_path / "x", [b"old"], sync=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(IncompleteError, match="no space left"):
            write_atomic(tmp_path / "x", [b"new" * 300, b"new" * 300], sync=True)
        with pytest.raises(IncompleteError, match="no space left"):
            save_model(small_model(), tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "x").read_bytes() == b"old" and [path.name for path in (tmp_path).glob(".*")] == []
    assert list((tmp_path / "m").iterdir()) == []
