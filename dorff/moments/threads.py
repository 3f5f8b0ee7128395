"""BLAS threads, pinned and checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from threadpoolctl import ThreadpoolController

from dorff.moments.blas import syrk


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    syrk(np.ones((1, 1)), np.zeros((1, 1), order="F"))  # every BLAS this process will use is loaded now
    return ThreadpoolController()


def pin() -> None:
    """One BLAS thread for this process from now on, checked; for workers, which belong to dorff's tasks.

    Dask owns the parallelism, and a sum's bits depend on the number of threads. dorff's own loops are
    compiled single-threaded. Raises RuntimeError where a library does not obey.
    """
    _controller().limit(limits=1)
    _check()


@contextmanager
def pinned() -> Iterator[None]:
    """One BLAS thread inside the block, as it was before outside of it."""
    with _controller().limit(limits=1):
        _check()
        yield


def _check() -> None:
    wrong = [library.filepath for library in _controller().lib_controllers if library.num_threads not in (None, 1)]
    if wrong:
        raise RuntimeError(f"could not set {', '.join(wrong)} to one thread; start with OMP_NUM_THREADS=1")
