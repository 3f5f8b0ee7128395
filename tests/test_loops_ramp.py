"""steps and ramps against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.errors import InputError
from dorff.loops import ramps, steps

TYPES = [np.dtype(np.float64), np.dtype(np.float32)]
TWINS = {steps: lambda z: np.heaviside(z, z.dtype.type(0.5)), ramps: lambda z: np.maximum(z, 0)}  # both keep NaN
UNTOUCHED = 7.0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("loop", TWINS)
@settings(max_examples=40)
@given(
    b=st.integers(0, 5),
    D=st.integers(0, 70),
    reflect=st.booleans(),
    extra=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_agrees_with_numpy(loop, dtype, b, D, reflect, extra, seed):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(b, D + 2)).astype(dtype)
    special = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, -1e-310], base.shape).astype(dtype)
    z = np.where(rng.random(base.shape) < 0.3, special, base)[:, 1 : D + 1]  # rows in a wider buffer
    weights = rng.normal(size=D).astype(dtype)
    columns = 2 * D if reflect else D
    out = np.full((b, columns + extra), UNTOUCHED, dtype)
    loop(z, out, weights, reflect)
    expected = np.hstack([weights * TWINS[loop](side) for side in ([z, -z] if reflect else [z])])
    assert np.array_equal(out[:, :columns], expected, equal_nan=True)
    assert np.all(out[:, columns:] == UNTOUCHED)


Z, W = np.zeros((4, 6)), np.ones(6)


@pytest.mark.parametrize("loop", TWINS)
def test_refuses_what_does_not_fit(loop):
    loop(Z, np.zeros((4, 6)), W, False)
    with pytest.raises(InputError, match=r"out must be float64 of shape \(4, 12 or more\)"):
        loop(Z, np.zeros((4, 6)), W, True)
    with pytest.raises(InputError, match="z must be a float64 or float32 matrix"):
        loop(Z.astype(int), np.zeros((4, 6)), W, False)
    with pytest.raises(InputError, match=r"weights must be C-contiguous float64 of shape \(6,\)"):
        loop(Z, np.zeros((4, 6)), W[:5], False)
    with pytest.raises(InputError, match="out must not overlap z"):
        loop(Z, Z, W, False)
