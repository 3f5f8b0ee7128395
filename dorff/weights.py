"""Operator weights psi for a kernel and its frequencies."""

from __future__ import annotations

import numpy as np

from dorff.kernels import Decomposable, Measure, OperatorKernel, Spectral
from dorff.kernels.scalar import FloatArray


def constant_weights(kernel: OperatorKernel, m: int) -> FloatArray | None:
    """psi (m, r, p), the same for every feature and stored once, where the kernel is one scalar kernel times a matrix.

    None where it is not. `kernel` must have its output matrices fixed.
    """
    terms = [(weight, base) for weight, base in kernel.terms() if weight > 0]
    if len({base.scalar for _, base in terms}) > 1 or not all(isinstance(base, Decomposable) for _, base in terms):
        return None
    root = np.concatenate([np.sqrt(weight) * base.root(np.ones((1, 1)))[0] for weight, base in terms])
    if len(root) > root.shape[1]:
        root = np.asarray(np.linalg.qr(root, mode="r"))
    return np.broadcast_to(root, (m, *root.shape))


def operator_weights(kernel: OperatorKernel, omega: FloatArray, log_density: FloatArray) -> FloatArray:
    """psi (m, r, p), m = 2D, for trig features (all cosines, then all sines) at frequencies omega (D, d).

    psi_a^T psi_a = mu(omega_a) / rho(omega_a), mu the kernel's spectral density and rho the density the
    frequencies were drawn from (Minh 2016, eq. 21-24), so that the mean over omega of
    cos<omega, x - z> psi^T psi is the kernel. `kernel` must have its output matrices fixed. Where the stacked
    roots of a sum have more than p rows they are replaced by an equivalent p x p root: r is never above p.
    """
    stacked = []
    for weight, term in kernel.terms():
        if weight > 0:
            assert isinstance(term.scalar, Spectral)  # of others `fix` lets through only those of constant weights
            ratio = np.exp(0.5 * (term.scalar.log_density(omega, Measure.UNBOUNDED) - log_density))
            stacked.append(np.sqrt(weight) * ratio[:, None, None] * term.root(omega))
    psi = np.concatenate(stacked, axis=1)
    if psi.shape[1] > psi.shape[2]:
        psi = np.asarray(np.linalg.qr(psi, mode="r"))
    return np.concatenate([psi, psi])


def effective_sample_size(kernel: OperatorKernel, omega: FloatArray, log_density: FloatArray) -> float:
    """(sum u)^2 / sum u^2 of the importance weights u = tr mu / rho, between 1 and D."""
    psi = operator_weights(kernel, omega, log_density)[: len(omega)]
    u = np.sum(psi**2, axis=(1, 2))
    return float(u.sum() ** 2 / np.sum(u**2))
