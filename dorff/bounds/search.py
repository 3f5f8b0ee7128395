"""How many frequencies a bound asks for."""

from __future__ import annotations

from collections.abc import Callable

from dorff.errors import InputError


def features_needed(bound: Callable[[float, int], float], epsilon: float, delta: float, *, most: int = 10**15) -> int:
    """The smallest D with bound(epsilon, D) <= delta; a feature map then has n_features = 2 D columns.

    `bound`: any bound of this package with its first arguments given, as in `partial(minh_uniform, constants)`: a
    probability that never rises with D. InputError where even D = `most` is not enough (an infinite constant).
    """
    if not callable(bound):
        raise InputError(
            f"bound must be a function of epsilon and D, such as partial(minh_uniform, constants), not {bound!r}"
        )
    if not epsilon > 0 or not 0 < delta < 1:
        raise InputError(f"epsilon must be above 0 and delta between 0 and 1, not {epsilon!r} and {delta!r}")
    high = 1
    while bound(epsilon, high) > delta:
        if high >= most:
            raise InputError(
                f"no D up to {most:g} brings the bound to {delta:g} at epsilon = {epsilon:g}; a constant of the "
                "kernel may be infinite under its measure: choose trace or bounded, a larger epsilon or another bound"
            )
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(epsilon, middle) <= delta else (middle, high)
    return high
