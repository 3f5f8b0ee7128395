"""Kernels, data and the steps of a small fit, shared by the tests of the maths; and the files of a store."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from hypothesis import settings
from numpy.typing import ArrayLike

from dorff import frequencies, kernels
from dorff.features import FeatureMap, Projected
from dorff.graphs import degrees, inverse_roots
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import OperatorWeights, operator_weights
from dorff.moments import Accumulator, Moments
from dorff.solvers.choose import fold_scores

MEASURES = ("trace", "unbounded", "bounded")
SAMPLERS = (frequencies.IID(), frequencies.Orthogonal())

#: Laws are proved on the same examples every time: a red run can be repeated.
LAW = settings(deadline=None, derandomize=True, max_examples=40)


def assert_mean(draws: ArrayLike, exact: ArrayLike, *, errors: float = 5.0, rounding: float = 1e-12) -> None:
    """The law of what is unbiased: the mean of independent draws, (N, ...), is the exact value (...), within `errors`
    of its own standard errors, and `rounding` times the largest exact number where they do not vary."""
    values, wanted = np.asarray(draws), np.asarray(exact)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    allowed = errors * error + rounding * max(1.0, np.abs(wanted).max())
    np.testing.assert_array_less(np.abs(values.mean(axis=0) - wanted), allowed)


def laplacian(W: sp.csr_array, *, normalised: bool = False) -> sp.csr_array:
    """D - W, or the symmetric normalised I - D^-1/2 W D^-1/2 (n, n), without a diagonal entry for a row of degree 0.

    f^T L f is the sum over edges of w_ij (f_i - f_j)^2, or of w_ij (f_i / sqrt(d_i) - f_j / sqrt(d_j))^2
    (Chung 1997, 1.2).
    """
    d = degrees(W)
    if not normalised:
        return sp.csr_array(sp.diags_array(d) - W)
    r = inverse_roots(d)
    i = np.repeat(np.arange(len(d)), np.diff(W.indptr))
    scaled = sp.csr_array((W.data * (r[i] * r[W.indices]), W.indices, W.indptr), shape=W.shape)
    L = sp.csr_array(sp.diags_array((d > 0).astype(np.float64)) - scaled)
    L.eliminate_zeros()
    return L


def positive(p: int, rank: int, seed: int = 0) -> FloatArray:
    """A symmetric positive semi-definite matrix (p, p) of the given rank."""
    root = np.random.default_rng(seed).standard_normal((rank, p))
    return root.T @ root


def every_kernel(d: int, p: int) -> Iterator[tuple[str, OperatorKernel]]:
    """Every kernel and measure for d inputs and p outputs; the vector-field ones where d = p."""
    narrow, wide = kernels.Gaussian(0.7), kernels.Gaussian(1.3)
    several = kernels.Gaussian(np.linspace(0.6, 1.4, d))
    yield "identity", kernels.Decomposable(narrow)
    yield "lengthscales", kernels.Decomposable(several)
    yield "matrix", kernels.Decomposable(wide, positive(p, p))
    yield "deficient", kernels.Decomposable(narrow, positive(p, max(1, p - 1)))
    yield "two scalars", kernels.Decomposable(narrow, positive(p, 1)) * 0.5 + kernels.Decomposable(wide) * 2.0
    if d != p:
        return
    yield "fields of several lengthscales", 0.4 * kernels.CurlFree(several) + 0.6 * kernels.DivergenceFree(several)
    for measure in MEASURES:
        curl, div = kernels.CurlFree(narrow, measure), kernels.DivergenceFree(narrow, measure)
        yield f"curl {measure}", curl
        yield f"div {measure}", div
        yield f"helmholtz {measure}", 0.3 * curl + 0.7 * div
        yield (
            f"sum {measure}",
            curl + kernels.DivergenceFree(wide, measure) * 0.2 + kernels.Decomposable(several) * 3.0,
        )
    yield "mixed measures", kernels.CurlFree(narrow, "bounded") + kernels.DivergenceFree(narrow, "trace") * 0.5


def trig_map(omega: FloatArray, center: FloatArray, scale: FloatArray) -> FeatureMap:
    """Cosines and sines of frequencies omega (D, d), each of weight 1/sqrt(D)."""
    return FeatureMap(Projected(frequencies.Dense(omega), np.full(len(omega), len(omega) ** -0.5)), center, scale)


def plain_map(omega: FloatArray) -> FeatureMap:
    """Features of the inputs as they are: nothing centred, nothing scaled."""
    return trig_map(omega, np.zeros(omega.shape[1]), np.ones(omega.shape[1]))


def weights_of(kernel: OperatorKernel, found: frequencies.Frequencies) -> OperatorWeights:
    """psi of the trig features at drawn frequencies."""
    density = None if found.log_density is None else (found.omega, found.log_density, found.serves)
    return operator_weights(kernel, 2 * len(found.omega), density)


def feature_matrix(kernel: OperatorKernel, found: frequencies.Frequencies, X: FloatArray) -> FloatArray:
    """Phi(x)* for every row of X: (n, p, m r)."""
    psi = weights_of(kernel, found).psi
    F = Projected(found.transform, found.weights).transform(X)
    return np.einsum("na,arp->npar", F, psi).reshape(len(X), psi.shape[2], -1)


def estimated_gram(
    kernel: OperatorKernel, found: frequencies.Frequencies, X: FloatArray, Z: FloatArray, p: int
) -> FloatArray:
    """The kernel's estimate, (n, k, p, p), term by term as `Frequencies` says, without `weights`."""
    delta, omega = X[:, None, :] - Z[None, :, :], found.omega
    total = np.zeros((*delta.shape[:2], p, p))
    for number, (weight, base) in enumerate(kernel.terms()):
        if weight == 0:
            continue
        served = slice(None) if found.serves is None else found.serves[number]
        w = omega[served]
        squared = found.weights[served] ** 2
        if found.log_density is not None:
            own = base.scalar.log_density(w, kernels.Measure.UNBOUNDED)
            squared = squared * np.exp(own - found.log_density[served])
        root = base.root(w)
        M = np.einsum("arp,arq->apq", root, root)
        total += weight * np.einsum("nka,a,apq->nkpq", np.cos(delta @ w.T), squared, M)
        zero = base.root(np.zeros((1, X.shape[1])))[0]
        total += weight * (found.centre if found.centres is None else found.centres[number]) * (zero.T @ zero)
    return total


def moments_of(features: FeatureMap, X: FloatArray, Y: FloatArray, *, y0: FloatArray | None = None) -> Moments:
    """The moments of the rows X (n, d), Y (n, q), in one block."""
    shift = np.zeros(Y.shape[1]) if y0 is None else y0
    sums = Accumulator(features.m, Y.shape[1], shift)
    sums.add(np.column_stack([features.transform(X), np.ones(len(X)), Y - shift]))
    return sums.moments()


def rows(n: int, d: int, p: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Inputs in a square and smooth targets with a mean and some noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.5, 1.5, (n, d))
    waves = rng.standard_normal((d, p))
    Y = np.sin(X @ waves + np.arange(p)) + 0.1 * rng.standard_normal((n, p)) + np.linspace(0.5, 2.0, p)
    return X, Y


def traced(function: Callable[[], object]) -> int:
    """The most bytes of arrays that a call holds, what it gives among them."""
    tracemalloc.start()
    try:
        kept = function()
        assert kept is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def unsourced(store: Path) -> dict[str, bytes]:
    """Every file of a store, but for what it remembers of its sources."""
    files = {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}
    group = json.loads(files["zarr.json"])
    for key in ("sources", "crc32"):
        del group["attributes"]["dorff"][key]
    return {**files, "zarr.json": json.dumps(group).encode()}


def kfold_errors(folds, setting, ridges):
    """The mean squared errors (len(ridges),) of `fold_scores`."""
    return np.array([score.value for score in fold_scores(folds, setting, ridges)])


def calibration_error(probabilities, codes, *, bins=15, weights=None):
    """Expected calibration error (Guo et al. 2017, eq. 3): |accuracy - confidence| over `bins` equal ranges of the
    largest probability, averaged by the rows in them. For probabilities (n, K), classes 0..K-1 (n,)."""
    p, w = np.asarray(probabilities), np.ones(len(codes)) if weights is None else np.asarray(weights, dtype=float)
    confidence = p.max(axis=1)
    gap = w / w.sum() * ((p.argmax(axis=1) == codes) - confidence)
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    return float(np.abs(np.bincount(place, gap, bins)).sum())
