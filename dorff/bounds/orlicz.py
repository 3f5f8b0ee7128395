"""The psi_1 Orlicz norm: how heavy a random variable's exponential tail is."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dorff.bounds.concentration import positive
from dorff.errors import InputError


def orlicz_norm(variable: Callable[[float], float] | npt.ArrayLike) -> float:
    """The psi_1 norm inf {C > 0: E exp(|X| / C) <= 2}, in the units of X (Brault et al. 2016, definition 9).

    `variable`: the moment generating function t -> E exp(t |X|), inf where it diverges; or a sample of X, whose own
    mean then stands for E (it misses tails that the sample misses, and so tends to be low). 1 / C is where the
    function reaches 2 (their lemma 7). Zero for X = 0; inf where the function is above 2 for every t > 0.
    """
    if callable(variable):
        generating = variable
    else:
        sample = np.abs(np.asarray(variable, dtype=np.float64)).ravel()
        if sample.size == 0 or not np.all(np.isfinite(sample)):
            raise InputError("variable: a sample must be finite numbers, one at least; or give a function t -> E e^tX")
        unit = float(sample.max())

        def generating(t: float) -> float:
            return float(np.mean(np.exp(sample * t))) if unit * t < 700 else math.inf

    low, high = 1e-200, 1e200
    if generating(low) > 2:
        return math.inf
    if generating(high) <= 2:
        return 0.0
    while high / low > 1 + 1e-14:
        # In logarithms, as nothing is known of the units.
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = (middle, high) if generating(middle) <= 2 else (low, middle)
    return 1.0 / low


def gamma_orlicz(shape: float, scale: float) -> float:
    """The psi_1 norm of a Gamma variable, (1 - scale t)^-shape = 2 at t = 1 / C: scale / (1 - 2^(-1 / shape)).

    |omega|^2 of the Gaussian kernel has shape d / 2 and scale 2 / lengthscale^2: C^-1 = lengthscale^2 / 2
    (1 - 4^(-1/d)), as Brault et al. (2016), section 4.3, have it for the curl-free and divergence-free kernels.
    """
    positive(shape=shape, scale=scale)
    return scale / -math.expm1(-math.log(2) / shape)
