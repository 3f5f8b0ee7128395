"""Operator weights psi for a kernel and its frequencies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.kernels import BaseKernel, Decomposable, FloatArray, Measure, MultiView, OperatorKernel, Spectral

#: omega (D, d), the log density (D,) they were drawn from, and which terms (T, D) each one serves (None: all); or of n
#: frequencies that one pair of features stands for omega (D, n, d) and log densities (D, n).
Density = tuple[FloatArray, FloatArray, npt.NDArray[np.bool_] | None]
IntArray = npt.NDArray[np.int64]
_Terms = Sequence[tuple[int, float, BaseKernel]]


@dataclass(frozen=True, eq=False)
class OperatorWeights:
    """psi_a = gain_a root_a: `gain` (m,), `root` (m, r, p), or (1, r, p) where it is the same for every feature. The
    latter is what makes a solve cost m^3 rather than (m r)^3: `gain` only rescales the features. Of `count` views of p
    outputs each `views` (m,) names the view that a feature belongs to, and psi_a = e_view^T (x) gain_a root_a, (r,
    count p): the outputs are those of the first view, then those of the second. With one root such weights are not
    separable; but every view has the same root. Views of rank below r have zero rows."""

    gain: FloatArray
    root: FloatArray
    views: IntArray | None = None
    count: int = 1

    @property
    def separable(self) -> bool:
        """Whether psi is one matrix times a number a feature."""
        return len(self.root) == 1 and self.views is None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(m, r, p), p the outputs of all views."""
        return len(self.gain), self.root.shape[1], self.root.shape[2] * self.count

    @property
    def psi(self) -> FloatArray:
        """psi (m, r, p), written out unless every feature has the same."""
        inside = np.broadcast_to(self.root, (len(self.gain), *self.root.shape[1:]))
        if self.separable and np.all(self.gain == 1.0):
            return inside
        return np.asarray(self.gain[:, None, None] * (inside if self.views is None else self._placed(inside)))

    @property
    def sizes(self) -> FloatArray:
        """tr psi_a^T psi_a (m,)."""
        return np.asarray(self.gain**2 * np.sum(self.root**2, axis=(1, 2)))

    def combined(self, h: FloatArray) -> FloatArray:
        """W (m, p), rows psi_a^T h_a: f(x) = F(x) W for coefficients h (m, r)."""
        weighted = self.gain[:, None] * h
        one = len(self.root) == 1
        W: FloatArray = weighted @ self.root[0] if one else np.einsum("arp,ar->ap", self.root, weighted)
        return W if self.views is None else self._placed(W)

    def pulled(self, G: FloatArray) -> FloatArray:
        """(m, r): slopes G (m, p) by W, as they are by h; the transpose of `combined`."""
        if self.separable:
            return np.asarray(self.gain[:, None] * (G @ self.root[0].T))
        psi = np.broadcast_to(self.psi, (len(G), *self.shape[1:]))
        return np.asarray(np.einsum("arp,ap->ar", psi, G))

    def _placed(self, inside: FloatArray) -> FloatArray:
        """(m, ..., count p): of each feature's values (m, ..., p) for its own view, and zeros for the others."""
        out = np.zeros((*inside.shape[:-1], self.count, inside.shape[-1]))
        out[np.arange(len(inside)), ..., self.views, :] = inside
        return out.reshape(*inside.shape[:-1], -1)


def operator_weights(
    kernel: OperatorKernel, m: int, density: Density | None, *, normalize: bool = False
) -> OperatorWeights:
    """The weights of m features, psi_a^T psi_a = mu(omega_a) / rho(omega_a).

    mu is the kernel's spectral density and rho the density the frequencies were drawn from (Minh 2016, eq. 21-24), so
    that the mean over omega of cos<omega, x - z> psi^T psi is the kernel. Of a sum whose terms have frequencies of
    their own (eq. 60) each frequency has the roots of the terms it serves, and no others. Trig features come as all
    cosines, then all sines, of the frequencies of `density`; a column more stands for omega = 0. `density` is None
    for features that have none; the kernel is then one scalar kernel times a matrix. `kernel` must have its output
    matrices fixed. Of several views each frequency has its view's roots. Roots of more than p rows become p x p ones.

    `normalize`, for frequencies drawn for another kernel, multiplies all psi by the one number that makes the mean
    of tr psi_a^T psi_a over them tr K(0), as it is on average (self-normalised importance sampling, Hesterberg 1995):
    K(x, x) then has its exact trace, for a bias of the order of 1 / D. It changes nothing where every frequency has
    the same tr psi^T psi, as those of the kernel's own trace measure have. InputError for frequencies of a rule or of
    a concatenated sum or a multi-view kernel, which are no plain sample, and where no frequency has any weight."""
    if isinstance(kernel, MultiView):
        assert density is not None and m == 2 * len(density[0])
        weights = _weights_of_views(kernel, density)
    else:
        weights = _weights(kernel, m, density)
    if not normalize or density is None or not isinstance(kernel.terms()[0][1].scalar, Spectral):
        return weights
    omega, _, serves = density
    if serves is not None or m > 2 * len(omega):
        needs = "frequencies that are one plain sample, not those of a rule, a concatenated sum or a multi-view kernel"
        raise InputError(f"normalize: needs {needs}; draw with iid, orthogonal or qmc, and leave concatenate out")
    mean = float(weights.sizes[: len(omega)].mean())
    if not 0 < mean < np.inf:
        problem = "normalize: no frequency has a weight for this kernel"
        raise InputError(f"{problem}, whose length-scale is too far from those they were drawn for; draw for this one")
    factor = np.sqrt(kernel.trace(omega.shape[1], weights.shape[2]) / mean)
    return replace(weights, gain=factor * weights.gain)


def _weights(kernel: OperatorKernel, m: int, density: Density | None) -> OperatorWeights:
    terms = [(number, weight, base) for number, (weight, base) in enumerate(kernel.terms()) if weight > 0]
    roots = [base.root(np.ones((1, 1)))[0] for _, _, base in terms if isinstance(base, Decomposable)]
    if len(roots) == len(terms):
        if (density is None or density[2] is None) and len({base.scalar for _, _, base in terms}) == 1:
            stacked = [np.sqrt(weight) * root for (_, weight, _), root in zip(terms, roots, strict=True)]
            number, _, base = terms[0]
            return OperatorWeights(_gain([(number, 1.0, base)], density, m), _reduced(np.concatenate(stacked)[None]))
        if all(np.array_equal(root, roots[0]) for root in roots):
            return OperatorWeights(_gain(terms, density, m), roots[0][None])
    assert density is not None  # a sampler without densities draws for no other kernel
    omega = density[0]
    root = np.concatenate([_roots(term, density) for term in terms], 1)
    parts = [_reduced(root)] * 2
    if m > 2 * len(omega):  # the centre's column
        zero = np.zeros((1, omega.shape[1]))
        parts.append(_reduced(np.concatenate([np.sqrt(weight) * base.root(zero) for _, weight, base in terms], axis=1)))
    return OperatorWeights(np.ones(m), np.concatenate(parts))


def served(kernel: MultiView, density: Density) -> list[npt.NDArray[np.bool_]]:
    """Of each view which of its terms each frequency serves, (terms, D)."""
    assert density[2] is not None  # as samplers of views draw them
    return np.split(density[2], np.cumsum([len(view.kernel.terms()) for view in kernel.views])[:-1])


def _weights_of_views(kernel: MultiView, density: Density) -> OperatorWeights:
    """Of each view from the frequencies that serve its terms, as their law was drawn for its inputs."""
    omega, log_density, _ = density
    D = len(omega)
    parts: list[tuple[npt.NDArray[np.intp], OperatorWeights]] = []
    for view, own in zip(kernel.views, served(kernel, density), strict=True):
        at = np.flatnonzero(own.any(axis=0))
        inside = None if own[:, at].all() else own[:, at]
        law = omega[at][:, view.columns], log_density[at], inside
        parts.append((np.concatenate([at, D + at]), operator_weights(view.kernel, 2 * len(at), law)))
    gain, views, shared = np.zeros(2 * D), np.zeros(2 * D, dtype=np.int64), _shared([one for _, one in parts])
    r, p = max(one.shape[1] for _, one in parts), parts[0][1].shape[2]
    root = np.zeros((2 * D, r, p)) if shared is None else parts[0][1].root
    for number, (columns, one) in enumerate(parts):
        views[columns] = number
        gain[columns] = one.gain if shared is None else one.gain * shared[number]
        if shared is None:
            root[columns, : one.shape[1]] = one.root
    return OperatorWeights(gain, root, views, kernel.V)


def _shared(parts: Sequence[OperatorWeights]) -> FloatArray | None:
    """By what factors (V,) the weights' roots are that of the first; None where they are other matrices."""
    first = parts[0].root
    if any(len(one.root) > 1 or one.root.shape != first.shape for one in parts):
        return None
    factors = np.array([np.linalg.norm(one.root) for one in parts]) / np.linalg.norm(first)
    level = 1e-14 * float(np.abs(first).max())
    alike = (np.abs(one.root / factor - first).max() <= level for one, factor in zip(parts, factors, strict=True))
    return factors if all(alike) else None


def _gain(terms: _Terms, density: Density | None, m: int) -> FloatArray:
    """(m,): the root of sum_t weight_t rho_t / rho; ones for features that are drawn without a density."""
    gain = np.ones(m)
    if density is not None and isinstance(terms[0][2].scalar, Spectral):
        D = len(density[0])
        total = np.sum([_ratio(term, density) for term in terms], axis=0)
        gain[:D] = gain[D : 2 * D] = np.sqrt(total.reshape(D, -1).sum(axis=1))
    return gain


def _roots(term: tuple[int, float, BaseKernel], density: Density) -> FloatArray:
    """The roots (D, r, p) of one term, times those of its ratio; n r rows of n frequencies that stand together."""
    omega = density[0]
    if omega.ndim == 2:
        return np.asarray(_ratio(term, density, root=True)[:, None, None] * term[2].root(omega))
    ratio, base, each = _ratio(term, density, root=True), term[2], []
    for start in range(0, len(omega), 256):
        some, by = omega[start : start + 256], ratio[start : start + 256]
        roots = base.root(some.reshape(-1, some.shape[2])) * by.reshape(-1, 1, 1)
        each.append(_reduced(roots.reshape(len(some), -1, roots.shape[2])))
    return np.concatenate(each)


def _ratio(term: tuple[int, float, BaseKernel], density: Density, *, root: bool = False) -> FloatArray:
    """weight rho_0 / rho (D,) of one term, or its root; zero where a frequency does not serve it."""
    number, weight, base = term
    omega, log_density, serves = density
    scalar = base.scalar
    assert isinstance(scalar, Spectral)  # of others `fix` lets through only those of one scalar kernel
    log_own = scalar.log_density(omega.reshape(-1, omega.shape[-1]), Measure.UNBOUNDED).reshape(log_density.shape)
    log_ratio = log_own - log_density + np.log(weight)
    ratio: FloatArray = np.exp(0.5 * log_ratio if root else log_ratio)
    return ratio if serves is None else np.where(serves[number], ratio, 0.0)


def _reduced(root: FloatArray) -> FloatArray:
    """The same psi^T psi with at most p rows."""
    return np.asarray(np.linalg.qr(root, mode="r")) if root.shape[1] > root.shape[2] else root


def effective_sample_size(kernel: OperatorKernel, density: Density) -> float:
    """(sum u)^2 / sum u^2 of the importance weights u = tr mu / rho: of D frequencies, how many count (Kong 1992).
    Between 1 and D: D for the kernel's own trace measure, about D d / (d + 2) for a Gaussian curl-free kernel's
    frequencies from its unbounded one. Of one Gaussian drawn for another, psi for the length-scale s' = c s from
    frequencies drawn for s, it is D (2 c^2 - 1)^(d/2) / c^(2 d) on average; shorter ones, c < 1, have a wider spectrum
    than was drawn, and from c^2 = 1/2 on E u^2 is infinite, which frequencies that missed it do not say: `covered`."""
    u = operator_weights(kernel, 2 * len(density[0]), density).sizes[: len(density[0])]
    peak = float(u.max())
    return float(np.sum(u / peak) ** 2 / np.sum((u / peak) ** 2)) if 0 < peak < np.inf else 1.0


def covered(kernel: OperatorKernel, own: Density, log_density: FloatArray) -> float:
    """The same as a share of D, as the kernel's own frequencies see it: (E v)^2 / E (v u), 0 to about 1. `own` holds
    frequencies drawn for the kernel, of weights v, and `log_density` (D,) the log of the density rho, that others were
    drawn from, at them. E u^2 = E (v u) is over the kernel's spectrum, which sees where u is large."""
    omega, mine, serves = own
    m, D = 2 * len(omega), len(omega)
    with np.errstate(over="ignore"):  # u is infinite, and the share zero, where rho has nothing
        v = operator_weights(kernel, m, (omega, mine, serves)).sizes[:D]
        u = operator_weights(kernel, m, (omega, log_density, serves)).sizes[:D]
        return float(v.mean() ** 2 / np.mean(v * u))
