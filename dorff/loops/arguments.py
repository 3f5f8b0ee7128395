"""What the loops ask of their arguments, checked in a few microseconds, and the flat arrays they run on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dorff.errors import InputError

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Floats = F64 | F32
Array = NDArray[Any]
Strided = tuple[Array, int]  # rows in a flat array, and the entries from row to row

_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


def block(name: str, a: Array) -> None:
    """Refuse what is no float64 or float32 matrix with contiguous rows; the rows may lie in a wider buffer."""
    if a.ndim != 2 or a.dtype not in _FLOATS:
        was = f"{a.dtype} of shape {a.shape}"
        raise InputError(f"{name} must be a float64 or float32 matrix, but is {was}; convert it.")
    if a.flags.c_contiguous:
        return
    tight = a.shape[1] <= 1 or a.strides[1] == a.itemsize
    step, odd_bytes = divmod(a.strides[0], a.itemsize)
    if a.size and not (tight and (a.shape[0] == 1 or (odd_bytes == 0 and step >= a.shape[1]))):
        raise InputError(f"{name} must have C-ordered rows, but has strides {a.strides} bytes; copy it.")


def output(out: Array, source: str, a: Array, columns: int, *, overlap: bool = False) -> None:
    """Refuse an `out` that cannot hold `columns` results for each row of the block `a`, called `source`."""
    block("out", out)
    if out.dtype != a.dtype or out.shape[0] != a.shape[0] or out.shape[1] < columns:
        wanted = f"{a.dtype} of shape ({a.shape[0]}, {columns} or more)"
        raise InputError(f"out must be {wanted} for this {source}, but is {out.dtype} of shape {out.shape}.")
    if not out.flags.writeable:
        raise InputError("out must be writeable, but is read-only; pass a copy.")
    if not overlap and np.may_share_memory(a, out):
        raise InputError(f"out must not overlap {source} in memory; give {source} a buffer of its own.")


def parameter(name: str, a: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """`a`, which must have this shape and type and be C-contiguous, flat and read-only (one signature for all)."""
    if a.shape != shape or a.dtype != dtype or not a.flags.c_contiguous:
        kind = "C-contiguous" if a.flags.c_contiguous else "not C-contiguous"
        wanted = f"C-contiguous {np.dtype(dtype)} of shape {shape}"
        raise InputError(f"{name} must be {wanted}, but is {kind} {a.dtype} of shape {a.shape}; convert it.")
    flat: Array = a.reshape(-1)
    flat.setflags(write=False)  # this view, not `a`
    return flat


def flat(a: Array, used: int, *, writeable: bool = False) -> Strided:
    """The first `used` columns of the rows of `a` as one flat array, and the entries from row to row.

    Numba knows that rows are contiguous, as a vector loop needs, only when they are cut from a flat array.
    Inputs are read-only so that there is one signature, and one compilation, for all of them.
    """
    if a.flags.c_contiguous:
        view, step = a.reshape(-1), a.shape[1]
        view.setflags(write=writeable)
        return view, step
    step = a.strides[0] // a.itemsize if a.shape[0] > 1 else used  # a lone row may carry any stride
    length = (a.shape[0] - 1) * step + used
    return as_strided(a, (length,), (a.itemsize,), writeable=writeable), step
