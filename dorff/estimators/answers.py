"""What a model, or a feature map, says of every kind of array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.delayed import delayed

from dorff.estimators.arrays import Flags, StoredRows, finite_in, runs_of
from dorff.kernels.scalar import FloatArray
from dorff.model.model import Model

M = TypeVar("M")
Answer: TypeAlias = Callable[[M, FloatArray], npt.NDArray[Any]]  # from a model and X (k, d) to what is asked for


def answered(
    X: Any, model: M, answer: Answer[M], columns: tuple[int, ...], dtype: Any = np.float64, read: Flags | None = None
) -> Any:
    """What `answer` makes of a model, or of a feature map, and X (n, d), (n, *columns): a lazy Dask array for Dask
    input, else NumPy. Only the columns `read` (d,) of what is read here are looked at, where it is given."""
    if isinstance(X, da.Array):
        return _by_chunks(X, model, answer, columns, dtype, read)
    if not isinstance(X, StoredRows):
        return answer(model, X)
    out = np.empty((len(X), *columns), dtype)
    for start, stop in runs_of(len(X), X.unit_rows):
        out[start:stop] = answer(model, finite_in(X[start:stop], read, "X", start))
    return out


def _by_chunks(
    X: da.Array, model: M, answer: Answer[M], columns: tuple[int, ...], dtype: Any, read: Flags | None
) -> da.Array:
    shared = delayed(replace(model, info={}) if isinstance(model, Model) else model)  # one copy in the graph
    mapped: da.Array = X.rechunk({1: -1}).map_blocks(
        _answer_of_chunk,
        shared,
        answer=answer,
        read=read,
        dtype=dtype,
        chunks=(X.chunks[0], *((width,) for width in columns)),
        drop_axis=None if columns else 1,
        meta=np.empty((0,) * (1 + len(columns)), dtype),
    )
    return mapped


def _answer_of_chunk(
    X: FloatArray, model: M, *, answer: Answer[M], read: Flags | None, block_id: tuple[int, ...]
) -> npt.NDArray[Any]:
    return answer(model, finite_in(np.ascontiguousarray(X, dtype=np.float64), read, f"X, chunk {block_id[0]}", 0))
