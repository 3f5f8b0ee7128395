"""Moments as checksummed files: one file a tree node, one section a fold."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from dorff.moments import Moments
from dorff.store.atomic import write_atomic

_MAGIC = b"dorffM01"
Folds = dict[int, Moments]


def save_moments(path: Path, folds: Folds) -> None:
    """Write the moments of each fold that has rows. Layout: magic, header length, JSON header, packed arrays."""
    sections: list[dict[str, Any]] = []
    for fold, moments in sorted(folds.items()):
        checksum = zlib.crc32(moments.packed.data)
        sections.append(
            {
                "fold": fold,
                "m": moments.m,
                "q": moments.q,
                "n": moments.n,
                "y0": moments.y0.tolist(),
                "crc": checksum,
            }
        )
    header = json.dumps(sections).encode()
    prefix = _MAGIC + struct.pack("<II", len(header), zlib.crc32(header))
    arrays = [moments.packed.data.cast("B") for _, moments in sorted(folds.items())]
    write_atomic(path, [prefix, header, *arrays], sync=False)


def load_moments(path: Path) -> Folds | None:
    """The moments in a file, or None where the file is absent, torn or damaged: its leaves are to be done again."""
    try:
        with path.open("rb") as file:
            prefix = file.read(16)
            if len(prefix) < 16 or prefix[:8] != _MAGIC:
                return None
            length, checksum = struct.unpack("<II", prefix[8:])
            header = file.read(length)
            if len(header) != length or zlib.crc32(header) != checksum:
                return None
            folds: Folds = {}
            for section in json.loads(header):
                width = section["m"] + 1 + section["q"]
                packed = np.empty(width * (width + 1) // 2)
                raw = packed.data.cast("B")
                if file.readinto(raw) != len(raw) or zlib.crc32(raw) != section["crc"]:
                    return None
                y0 = np.array(section["y0"], dtype=np.float64)
                folds[section["fold"]] = Moments(section["m"], section["q"], section["n"], y0, packed)
            return folds if not file.read(1) else None
    except FileNotFoundError:
        return None


def merge_folds(left: Folds, right: Folds) -> Folds:
    """Fold by fold sums; overwrites `left`'s arrays, which the caller owns."""
    merged = dict(left)
    for fold, moments in right.items():
        if fold in merged:
            moments = merged[fold].absorb(moments)
        merged[fold] = moments
    return merged
