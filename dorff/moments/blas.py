"""BLAS and LAPACK on the arrays of a pass, without the interpreter's lock; BLAS threads, pinned and checked. SciPy's
own wrappers hold that lock, and would stop a worker's heartbeat and read-ahead; ctypes releases it."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from dorff.errors import InputError
from dorff.loops.config import loops_processor

FloatArray = npt.NDArray[np.float64]
SingleArray = npt.NDArray[np.float32]
PANEL: Final = 64  # columns that tpqrt reflects at a time: the fastest of 16, 32, 64 and 96 at widths from 1000


def syrk(Z: FloatArray | SingleArray, square: FloatArray | SingleArray) -> None:
    """Add Z^T Z to the upper triangle of `square` (w, w), column-major, for Z (n, w) with contiguous rows. Both
    float64, or both float32."""
    rows, width = Z.shape
    size = Z.itemsize
    # A lone row may carry any stride; BLAS wants its length.
    steps = Z.strides[0] // size if rows > 1 else width, square.strides[1] // size
    floats = Z.dtype in (np.float64, np.float32)
    if not floats or Z.strides[1] != size or square.strides[0] != size or Z.dtype != square.dtype:
        raise InputError("syrk needs float64, rows of Z contiguous and columns of the square contiguous")
    if square.shape != (width, width) or min(steps) < width:  # BLAS would write elsewhere, or print and return
        raise InputError(f"syrk needs a ({width}, {width}) square and rows that do not overlap, not {square.shape}")
    one = ctypes.byref(ctypes.c_double(1.0) if size == 8 else ctypes.c_float(1.0))
    multiply, shape = _routine("dsyrk" if size == 8 else "ssyrk"), (_integer(width), _integer(rows))
    at = [(array.ctypes.data, _integer(step)) for array, step in zip((Z, square), steps, strict=True)]
    multiply(b"U", b"N", *shape, one, *at[0], one, *at[1])


def syr2k(Z: FloatArray, LZ: FloatArray, square: FloatArray) -> None:
    """As `syrk`, but adds (Z^T LZ + LZ^T Z) / 2, float64, rows of Z and LZ as far apart; twice the flops."""
    rows, width = Z.shape
    step = Z.strides[0] // 8 if rows > 1 else width
    for array in (Z, LZ):
        if array.dtype != np.float64 or array.shape != Z.shape or array.strides != Z.strides or array.strides[1] != 8:
            raise InputError("syr2k needs two float64 arrays of the same shape and strides, their rows contiguous")
    if square.shape != (width, width) or square.strides[0] != 8 or min(step, square.strides[1] // 8) < width:
        raise InputError(f"syr2k needs a ({width}, {width}) square and rows that do not overlap, not {square.shape}")
    half, one = ctypes.byref(ctypes.c_double(0.5)), ctypes.byref(ctypes.c_double(1.0))
    pair, into = [Z.ctypes.data, _integer(step), LZ.ctypes.data, _integer(step)], square.ctypes.data
    shape = _integer(width), _integer(rows)
    _routine("dsyr2k")(b"U", b"N", *shape, half, *pair, one, into, _integer(square.strides[1] // 8))


def tpqrt(R: FloatArray, B: FloatArray, *, triangular: bool = False) -> None:
    """Overwrite the upper triangle of R (w, w) with that of a QR of [R; B], for B (n, w), which is destroyed. Both
    column-major, columns contiguous. Of a `triangular` B (w, w) what is below the diagonal is not looked at."""
    rows, width = B.shape
    for array in (R, B):
        if array.dtype != np.float64 or array.strides[0] != 8 or array.strides[1] < 8 * array.shape[0]:
            raise InputError("tpqrt needs float64 arrays whose columns are contiguous and do not overlap")
    if R.shape != (width, width) or (triangular and rows != width):
        raise InputError(f"tpqrt needs a triangle ({width}, {width}), not {R.shape}, and rows {B.shape} to go with it")
    if not rows or not width:
        return
    panel, failed = min(PANEL, width), ctypes.c_int(0)
    T, work = np.empty(panel * width), np.empty(panel * width)
    sizes = _integer(rows), _integer(width), _integer(rows if triangular else 0), _integer(panel)
    both = R.ctypes.data, _integer(R.strides[1] // 8), B.ctypes.data, _integer(B.strides[1] // 8)
    _routine("dtpqrt")(*sizes, *both, T.ctypes.data, _integer(panel), work.ctypes.data, ctypes.byref(failed))
    assert not failed.value  # it can only name an argument, and all were looked at


def _integer(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


@cache
def _routine(name: str) -> Any:
    """A function of SciPy's documented C interfaces `scipy.linalg.cython_blas` and `cython_lapack`."""
    from scipy.linalg import cython_blas, cython_lapack

    capsule = (cython_blas.__pyx_capi__ | cython_lapack.__pyx_capi__)[name]
    named = ctypes.pythonapi.PyCapsule_GetName
    named.restype, named.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = named(capsule)
    return ctypes.CFUNCTYPE(None, *([ctypes.c_void_p] * signature.count(b"*")))(pointer(capsule, signature))


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    syrk(np.ones((1, 1)), np.zeros((1, 1), order="F"))  # every BLAS this process will use is loaded now
    return ThreadpoolController()


def pin() -> None:
    """One BLAS thread for this process from now on, checked; for workers, which belong to dorff's tasks. Dask owns
    the parallelism, and a sum's bits depend on the number of threads. dorff's own loops are compiled single-threaded.
    Raises RuntimeError where a library does not obey."""
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


@cache
def processor_kind() -> str:
    """Return the kinds of processor that the loops and the BLAS were compiled for, by which results round otherwise."""
    libraries = [library.info() for library in _controller().lib_controllers]
    kernels = {
        f"{library['internal_api']} {library['architecture']}" for library in libraries if library.get("architecture")
    }
    return ", ".join([f"numba {loops_processor()}", *sorted(kernels)])
