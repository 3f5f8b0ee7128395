"""Operator weights psi for a kernel and its frequencies."""

from __future__ import annotations

import numpy as np

from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray, Measure


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
