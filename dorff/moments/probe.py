"""A fixed direction u: sums over rows Z are looked at along it, to see that no number in them was changed.

u^T Z^T Z u is |Z u|^2. The one side is had from the sums at a leaf's end, the other is summed beside them while the
rows are in cache (Huang & Abraham 1984, checksums of matrices; here one number for all of a leaf).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from dorff.moments.blas import FloatArray

_SEED: Final = 6


@lru_cache(maxsize=16)
def probe(width: int) -> FloatArray:
    """u (width,): numbers of either sign, of sizes from 1 to 2 so that equal columns do not cancel. Not to be written
    to. The same for ever, whatever NumPy's version: a checkpoint holds sums along it."""
    bits = np.random.PCG64(_SEED).random_raw(width)
    u = np.asarray(1.0 + (bits >> np.uint64(12)) * 2.0**-52, np.float64)
    u[bits & np.uint64(1) > 0] *= -1.0
    u.setflags(write=False)
    return u
