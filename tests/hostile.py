"""What tests of hostile files share: the files, made with right checksums, and what it is to refuse them."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dorff.errors import InputError

MUCH = 10**12
LARGE = 2**26  # bytes


@contextmanager
def small() -> Iterator[None]:
    """Nothing large is allocated inside."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LARGE
    finally:
        tracemalloc.stop()


def refused(load: Callable[[], object], naming: object = "") -> None:
    """InputError, in one sentence of sane length that names something, before anything large is allocated."""
    with small(), pytest.raises(InputError) as caught:
        load()
    assert str(naming) in str(caught.value) and len(str(caught.value)) < 2000


def deep(levels: int = 20_000) -> str:
    """JSON, and YAML, of lists in lists."""
    return "[" * levels + "]" * levels


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


def npy(value: Any, *, claims: tuple[int, ...] | None = None) -> bytes:
    """A NPY file; one that says another shape than it has."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(value), allow_pickle=True)
    raw = buffer.getvalue()
    if claims is None:
        return raw
    header = io.BytesIO()
    told = {"descr": np.asarray(value).dtype.str, "fortran_order": False, "shape": claims}
    np.lib.format.write_array_header_1_0(header, told)
    start = 10 + int.from_bytes(raw[8:10], "little")
    return header.getvalue() + raw[start:]
