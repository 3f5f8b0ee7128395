"""Features whose frequencies move with the length-scales, from one fixed draw; and how their weights psi follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, final

import numpy as np

from dorff.errors import InputError
from dorff.frequencies import QMC, Orthogonal, Sampler, default_sampler
from dorff.kernels import CurlFree, Decomposable, DivergenceFree, Measure, OperatorKernel, Spectral, from_config
from dorff.kernels.scalar import FloatArray
from dorff.kernels.stretched import Stretched
from dorff.loops import trig_pairs


@final
@dataclass(frozen=True, eq=False)
class UnitFeatures:
    """Frequencies drawn at length-scale 1, omega = units / lengthscale, and weights psi that are linear in them.

    units (D, d). psi (D, R, P) = sizes[j, i] sum_k [omega_j | 1]_k roots[i, :, k], with sizes (D, R), the roots of
    the terms' weights over the density drawn from, and roots (R, P, d + 1): a length-scale moves the kernel's density
    and the law that was drawn from alike, so their ratio stays. P is 1 where all terms are decomposable: their output
    matrices count as the identity, and all outputs share one system.
    """

    units: FloatArray
    sizes: FloatArray
    roots: FloatArray

    @classmethod
    def of(cls, kernel: OperatorKernel, *, d: int, p: int, columns: int, seed: int) -> UnitFeatures:
        """Of a kernel, whose own length-scales are not looked at: all its terms get one and the same.

        At most `columns` columns of psi (x) F. Orthogonal frequencies, quasi-random ones (scrambled Sobol) for laws
        that rotations change: of low variance, and smooth in the length-scales since the draw is fixed. A sum that
        is concatenated is drawn from its mixture all the same: the kernel is the same.
        """
        unit = with_lengthscale(kernel, 1.0, identity=True).fix(d, p)
        terms = [(weight, base) for weight, base in unit.terms() if weight > 0]
        separable = all(isinstance(base, Decomposable) for _, base in terms)
        P = 1 if separable else p
        parts = [np.eye(1, d + 1, d)[None] if separable else _linear_root(base, d, p) for _, base in terms]
        rows = min(P, sum(len(part) for part in parts))
        drawn = _sampler(unit).draw(unit, d=d, p=p, count=max(1, columns // (2 * rows)), seed=seed)
        assert drawn.log_density is not None  # of all samplers that mix
        sizes = []
        for (weight, base), part in zip(terms, parts, strict=True):
            assert isinstance(base.scalar, Spectral)
            log_ratio = base.scalar.log_density(drawn.omega, Measure.UNBOUNDED) - drawn.log_density
            sizes += [np.sqrt(weight) * np.exp(0.5 * log_ratio)] * len(part)
        return cls(drawn.omega, np.stack(sizes, axis=1), np.concatenate(parts))

    @property
    def separable(self) -> bool:
        """Whether all outputs share one system."""
        return self.roots.shape[1] == 1 and not np.any(self.roots[:, :, :-1])

    def observed(self, C: FloatArray) -> UnitFeatures:
        """The same of targets C f, C (q, p): psi C^T in place of psi."""
        return replace(self, roots=np.einsum("rpk,qp->rqk", self.roots, C))

    def phases(self, X: FloatArray, lengthscale: FloatArray) -> FloatArray:
        """omega . x, (n, D), for X (n, d) and the length-scale(s) (1,) or (d,)."""
        z: FloatArray = X @ (self.units / lengthscale).T
        return z

    def columns(self, X: FloatArray, lengthscale: FloatArray) -> FloatArray:
        """F (n, 2 D): all cosines, then all sines, each over sqrt(D)."""
        D = len(self.units)
        F = np.empty((len(X), 2 * D))
        trig_pairs(self.phases(X, lengthscale), F, np.full(D, D**-0.5))
        return F

    def psi(self, lengthscale: FloatArray) -> FloatArray:
        """psi (D, R, P) as above, R maybe more than P."""
        omega = np.column_stack([self.units / lengthscale, np.ones(len(self.units))])
        psi: FloatArray = self.sizes[:, :, None] * np.einsum("jk,rpk->jrp", omega, self.roots)
        return psi

    def omega_gradient(self, of_psi: FloatArray) -> FloatArray:
        """What a gradient (D, R, P) by psi says by omega, (D, d)."""
        gradient: FloatArray = np.einsum("jrp,jr,rpk->jk", of_psi, self.sizes, self.roots[:, :, :-1])
        return gradient


def with_lengthscale(
    kernel: OperatorKernel, lengthscale: float | FloatArray, *, identity: bool = False
) -> OperatorKernel:
    """The kernel with this length-scale (one, or one an input) in all its terms; `identity`: and no output matrices.

    InputError for a scalar kernel that has none.
    """
    for _, base in kernel.terms():
        if not isinstance(base.scalar, Stretched):
            raise InputError(
                f"lengthscale: {type(base.scalar).__name__} has none to tune; use gaussian, matern, "
                "rational_quadratic, laplacian or cauchy"
            )
    value = float(np.ravel(lengthscale)[0]) if np.size(lengthscale) == 1 else np.asarray(lengthscale).tolist()

    def replaced(config: Any) -> Any:
        if isinstance(config, Mapping):
            put = {"lengthscale": value, **({"output": "identity"} if identity else {})}
            return {key: put[key] if key in put else replaced(item) for key, item in config.items()}
        return [replaced(item) for item in config] if isinstance(config, list | tuple) else config

    return from_config(
        {**replaced(kernel.config()), **({"concatenate": False} if identity and kernel.concatenated else {})}
    )


def _sampler(unit: OperatorKernel) -> Sampler:
    chosen = default_sampler(unit)
    return chosen if isinstance(chosen, Orthogonal) else QMC()


def _linear_root(base: object, d: int, p: int) -> FloatArray:
    """B (r, p, d + 1) such that U = B [omega | 1] has U^T U = M(omega).

    For the divergence-free kernel the rows omega_i e_j - omega_j e_i, i < j, which are linear in omega, in place of
    |omega| Q^T; they are more than p where p > 3.
    """
    if isinstance(base, CurlFree):
        root = np.zeros((1, p, d + 1))
        root[0, range(p), range(d)] = 1.0
    elif isinstance(base, DivergenceFree):
        pairs = list(combinations(range(p), 2))
        root = np.zeros((len(pairs), p, d + 1))
        for row, (i, j) in zip(root, pairs, strict=True):
            row[j, i], row[i, j] = 1.0, -1.0
    else:
        root = np.zeros((p, p, d + 1))
        root[range(p), range(p), d] = 1.0
    return root
