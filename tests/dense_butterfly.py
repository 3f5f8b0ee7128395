"""The butterfly rotation as a matrix, in plain NumPy."""

import numpy as np


def butterfly_matrix(cosines, sines):
    """The matrix B (d, d) of `dorff.loops.rotations.rotate`, in O(d^2); cosines and sines (d - 1,)."""
    d = len(cosines) + 1
    B = np.eye(d)
    angle, stride = d - 1, 1
    while 2 * stride < d:
        stride *= 2
    while stride:  # the widest stride acts first
        starts = range(0, d - stride, 2 * stride)
        angle -= len(starts)
        for k, start in enumerate(starts):
            c, s = cosines[angle + k], sines[angle + k]
            end = min(start + 2 * stride, d)
            a, b = B[start : end - stride].copy(), B[start + stride : end].copy()
            B[start : end - stride], B[start + stride : end] = c * a - s * b, s * a + c * b
        stride //= 2
    return B
