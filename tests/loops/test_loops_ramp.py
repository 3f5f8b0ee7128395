"""The pieces (steps, signs, ramps and absolute values) against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.errors import InputError
from dorff.loops import ABSOLUTE, RAMP, SIGN, STEP, pieces

TWINS = {
    STEP: lambda z: np.heaviside(z, 0.5),
    SIGN: np.sign,
    RAMP: lambda z: np.maximum(z, 0),
    ABSOLUTE: np.abs,
}  # all keep NaN
UNTOUCHED = 7.0


@pytest.mark.parametrize("piece", TWINS)
@settings(max_examples=40)
@given(
    b=st.integers(0, 5),
    D=st.integers(0, 70),
    extra=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_agrees_with_numpy(piece, b, D, extra, seed):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(b, D + 2))
    special = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, -1e-310], base.shape)
    z = np.where(rng.random(base.shape) < 0.3, special, base)[:, 1 : D + 1]  # rows in a wider buffer
    weights = rng.normal(size=D)
    out = np.full((b, D + extra), UNTOUCHED)
    pieces(z, out, weights, piece)
    assert np.array_equal(out[:, :D], weights * TWINS[piece](z), equal_nan=True)
    assert np.all(out[:, D:] == UNTOUCHED)


Z, W = np.zeros((4, 6)), np.ones(6)


@pytest.mark.parametrize("piece", TWINS)
def test_refuses_what_does_not_fit(piece):
    pieces(Z, np.zeros((4, 6)), W, piece)
    with pytest.raises(InputError, match=r"out must be float64 of shape \(4, 6 or more\)"):
        pieces(Z, np.zeros((4, 5)), W, piece)
    with pytest.raises(InputError, match="z must be a float64 matrix"):
        pieces(Z.astype(int), np.zeros((4, 6)), W, piece)
    with pytest.raises(InputError, match=r"weights must be C-contiguous float64 of shape \(6,\)"):
        pieces(Z, np.zeros((4, 6)), W[:5], piece)
    with pytest.raises(InputError, match="out must not overlap z"):
        pieces(Z, Z, W, piece)
