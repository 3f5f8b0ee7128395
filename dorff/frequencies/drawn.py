"""Frequencies as samplers find them, what they cost, and those of several views together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.transforms import Dense, Transform
from dorff.kernels import FloatArray, MultiView
from dorff.kernels.scalar import BoolArray


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Frequencies and weights such that `sum_j weights_j^2 g(omega_j) + centre g(0)` estimates E g(omega).

    `transform` is omega (D, d), in 1 / input units; `weights` (D,); `centre` may be negative (see `Quadrature`).
    `reflected`: each frequency stands for itself and its negative, with half the squared weight each; the same
    thing where g is even. `log_density` (D,) is that of the law they come from, None where nobody asks for it: where
    the kernel is decomposable of one scalar kernel and the sampler a rule.

    `serves` (T, D) says which of `kernel.terms()` a frequency is for; None is all. Where it is given, the sum above
    over the frequencies of one term estimates that term's expectation, `centres` (T,) are the terms' centres, and
    `centre` is zero. So the kernel's estimate, whatever the sampler, is

        sum_j weights_j^2 cos(omega_j . delta) sum_{t served} w_t (rho_0,t / rho)(omega_j) M_t(omega_j)  (+ centres).

    Of a multi-view kernel omega is zero outside the columns that its view sees, and the law is the view's own."""

    transform: Transform
    weights: FloatArray
    centre: float = 0.0
    reflected: bool = False
    log_density: FloatArray | None = None
    serves: BoolArray | None = None
    centres: FloatArray | None = None

    @property
    def omega(self) -> FloatArray:
        """omega (D, d) written out, whatever the transform."""
        return self.transform.dense()


class Cost(NamedTuple):
    """What drawn frequencies take: how many come, numbers of 8 bytes held, floating-point operations for a row."""

    frequencies: int
    numbers: int
    flops: float


def uniform(D: int) -> FloatArray:
    """Weights of a plain mean over D frequencies."""
    return np.full(D, 1.0 / np.sqrt(D))


def dealt(kernel: MultiView, count: int) -> list[int]:
    """`count` frequencies dealt out to the views: as many to each, the first ones get what is left over."""
    V = kernel.V
    if count < V:
        problem = f"n_features gives {count} frequencies, but the kernel's {V} views need at least one each"
        raise InputError(f"{problem}; raise n_features to {2 * V} or more")
    return [count // V + (number < count % V) for number in range(V)]


def of_views(kernel: MultiView, parts: Sequence[Frequencies], d: int) -> Frequencies:
    """The views' frequencies one after another. Each serves terms of its view alone."""
    terms = [len(view.kernel.terms()) for view in kernel.views]
    D, T = sum(len(part.weights) for part in parts), sum(terms)
    omega, serves, log_density, row, term = np.zeros((D, d)), np.zeros((T, D), dtype=bool), np.empty(D), 0, 0
    for view, part, size in zip(kernel.views, parts, terms, strict=True):
        rows = slice(row, row + len(part.weights))
        omega[rows, view.columns] = part.omega
        serves[term : term + size, rows] = True if part.serves is None else part.serves
        log_density[rows] = 0.0 if part.log_density is None else part.log_density  # of a skeleton, by its own law
        row, term = rows.stop, term + size
    weights = np.concatenate([part.weights for part in parts])
    return Frequencies(Dense(omega), weights, log_density=log_density, serves=serves, centres=np.zeros(T))
