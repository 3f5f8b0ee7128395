"""`lengthscale: tune`: length-scales of the most evidence, by a Bayesian linear model on a sample's features."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from dorff.errors import InputError
from dorff.features.projected import UnitFeatures, with_lengthscale
from dorff.kernels import FloatArray, Laplacian, OperatorKernel, Skeleton, median_lengthscale
from dorff.kernels.scalar import whole

_BLOCK: Final = 512  # rows whose features are in memory at a time
RATIOS: Final = (1e-8, 1e6)  # the ratios of noise variance to signal variance looked at
CLASS_RATIO: Final = 0.03  # the least of them where targets are ones and zeros


@dataclass(frozen=True, eq=False)
class Evidence:
    """The log evidence of rows X (n, d), Y (n, P, c) as a function of length-scales and of a noise ratio. y = sum_a
    F_a psi_a^T h_a + b + noise, h ~ N(0, (s2 / ratio) I), noise of variance s2 / w in a row of weight w, and b free,
    of a flat prior (the restricted likelihood of Patterson & Thompson 1971; as `Solution.log_evidence`). Each of the c
    columns of Y is a problem of its own with the same features and s2 of its own, which is put at its best value; the
    P targets of one column share s2. psi is scaled such that the kernel's mean variance at zero is 1: `ratio` is noise
    variance over signal variance. (One s2 for a field, unlike `select.noise_models`: what is compared here are
    length-scales of one kernel, and one noise for all favours none of them; it costs precision.) `weights` (n,) are
    positive. No column of Y may be constant. X is best centred: its phases keep more digits. `ratios` are the least and
    the largest ratio that a climb looks at. `share` is what of the log evidence counts against the price of more
    length-scales: 1 / K of K columns that are ones and zeros of classes, as they say one label a row."""

    features: UnitFeatures
    X: FloatArray
    Y: FloatArray
    intercept: bool = True
    weights: FloatArray | None = None
    ratios: tuple[float, float] = RATIOS
    share: float = 1.0

    @property
    def freedom(self) -> int:
        """Contrasts for each column of Y."""
        n, P, _ = self.Y.shape
        return int(n - self.intercept) * int(P)

    @property
    def null(self) -> float:
        """The log evidence of noise alone: what an infinite ratio gives."""
        return self._likelihood(np.sum(self._targets**2, axis=(0, 1)), 0.0)

    def scale(self, lengthscale: FloatArray) -> float:
        """tr k(0) / P of the kernel as drawn, before psi is scaled: ratio * scale is the kernel's own l ridge."""
        return _EvidenceSystem.scale(self.features.psi(lengthscale))

    def __call__(self, lengthscale: FloatArray, ratio: float) -> tuple[float, FloatArray]:
        """The log evidence, and its gradient by (log lengthscale, log ratio); lengthscale (1,) or (d,). 3 n m^2 for
        F^T F and the gradient, (m r)^3 for the factor and the inverse; each column adds n m. The gradient is the
        formulas run backwards (reverse mode), so that d adds next to nothing. At the best h the squares change with F
        and psi alone (the envelope theorem): by -2 <residual, dF W + F dW>."""
        psi = self.features.psi(lengthscale)
        mean = self._mean(lengthscale)
        m, (n, P, c) = len(mean), self.Y.shape
        S, seen, left = np.zeros((m, m)), np.zeros((m, P, c)), np.empty((n, P, c))
        for rows, _, centred in self._blocks(lengthscale, mean):
            S += centred.T @ centred
            seen += np.tensordot(centred, self._targets[rows], (0, 0))
        system = _EvidenceSystem.of(psi, S, seen, ratio)
        for rows, _, centred in self._blocks(lengthscale, mean):
            left[rows] = self._targets[rows] - np.tensordot(centred, system.W, (1, 0))
        sizes = np.sum(system.h**2, axis=(0, 1))
        squares = np.sum(left**2, axis=(0, 1)) + ratio * sizes
        left *= self.freedom / squares
        by_S, by_omega, across = c * system.by_S, np.zeros(self.features.units.shape), np.zeros((m, P, c))
        for rows, F, centred in self._blocks(lengthscale, mean):
            by_F = np.tensordot(left[rows], system.W, ((1, 2), (1, 2))) - centred @ by_S
            by_F *= self._roots[rows, None]  # centring it is not needed: its columns are centred already
            across += np.tensordot(centred, left[rows], (0, 0))
            D = m // 2
            by_omega += (by_F[:, D:] * F[:, :D] - by_F[:, :D] * F[:, D:]).T @ self.X[rows]
        by_omega += self.features.omega_gradient(system.by_psi(across, c))
        by_log = self.features.lengthscale_gradient(by_omega, lengthscale)
        by_ratio = 0.5 * (c * system.freedom - ratio * float(np.sum(self.freedom / squares * sizes)))
        gradient = np.append(by_log if len(lengthscale) > 1 else by_log.sum(), by_ratio)
        return self._likelihood(squares, system.log_det), gradient

    @cached_property
    def _roots(self) -> FloatArray:
        return np.ones(len(self.X)) if self.weights is None else np.sqrt(self.weights)

    @cached_property
    def _targets(self) -> FloatArray:
        """Y times the roots of the weights, less what an intercept explains."""
        mean = np.average(self.Y, axis=0, weights=self.weights) if self.intercept else 0.0
        return np.asarray(self._roots[:, None, None] * (self.Y - mean))

    def _mean(self, lengthscale: FloatArray) -> FloatArray:
        """What an intercept takes from each column of F, (m,)."""
        mean, total = np.zeros(2 * len(self.features.units)), float(np.sum(self._roots**2))
        if self.intercept:
            for rows, F, _ in self._blocks(lengthscale, mean):
                mean += self._roots[rows] ** 2 @ F / total
        return mean

    def _blocks(self, lengthscale: FloatArray, mean: FloatArray) -> Iterator[tuple[slice, FloatArray, FloatArray]]:
        """Runs of rows, their F, and sqrt(w) (F - mean)."""
        for start in range(0, len(self.X), _BLOCK):
            rows = slice(start, start + _BLOCK)
            F = self.features.columns(self.X[rows], lengthscale)
            centred = F - mean
            centred *= self._roots[rows, None]
            yield rows, F, centred

    def _likelihood(self, squares: FloatArray, log_det: float) -> float:
        """Of squares (c,) = y^T V^-1 y and log det V of one column's covariance s2 V, at the best s2 each."""
        freedom, c = self.freedom, len(squares)
        logs = np.sum(np.log(2 * math.pi * squares / freedom) + 1.0)
        free = self.Y.shape[1] * math.log(float(np.sum(self._roots**2))) if self.intercept else 0.0
        return float(-0.5 * (freedom * logs + c * (log_det + free)))


@dataclass(frozen=True, eq=False)
class _EvidenceSystem:
    """(G + ratio I) h = psi (F^T Y), G[ar, bs] = S_ab (psi_a psi_b^T)_rs: h (m, r, c), W (m, P, c) rows psi_a^T h_a.
    `drawn` (D, R, P) is psi before it is scaled and turned, by `turn` (D, R, r) where R > P, into psi (m, r, P).
    `lower` is the Cholesky factor of G + ratio I; half (m, r, m, P) is its inverse K times psi."""

    drawn: FloatArray
    turn: FloatArray | None
    psi: FloatArray
    S: FloatArray
    ratio: float
    lower: FloatArray
    h: FloatArray
    W: FloatArray

    @classmethod
    def of(cls, drawn: FloatArray, S: FloatArray, seen: FloatArray, ratio: float) -> "_EvidenceSystem":
        """With seen (m, P, c) = F^T Y."""
        half, turn = drawn / math.sqrt(cls.scale(drawn)), None
        if half.shape[1] > half.shape[2]:  # an equivalent root of P rows: the evidence sees psi^T psi alone
            turn, half = np.linalg.qr(half)
        psi = np.concatenate([half, half])
        m, r, P = psi.shape
        flat = psi.reshape(m * r, P)
        G = ((flat @ flat.T).reshape(m, r, m, r) * S[:, None, :, None]).reshape(m * r, m * r)
        G[np.diag_indices(m * r)] += ratio
        lower = scipy.linalg.cholesky(G, lower=True, overwrite_a=True, check_finite=False)
        rhs = np.einsum("arp,apc->arc", psi, seen).reshape(m * r, -1)
        h = scipy.linalg.cho_solve((lower, True), rhs, check_finite=False).reshape(m, r, -1)
        return cls(drawn, turn, psi, S, ratio, lower, h, np.einsum("arp,arc->apc", psi, h))

    @staticmethod
    def scale(drawn: FloatArray) -> float:
        """What psi^T psi is divided by: its mean trace over P."""
        return float(np.sum(drawn**2)) / (len(drawn) * int(drawn.shape[2]))

    @property
    def log_det(self) -> float:
        """log det(I + G / ratio)."""
        return float(2 * np.sum(np.log(np.diag(self.lower))) - len(self.lower) * math.log(self.ratio))

    @cached_property
    def _inverse(self) -> FloatArray:
        inverse, _ = lapack.dpotri(self.lower, lower=1)
        return np.asarray(np.tril(inverse) + np.tril(inverse, -1).T)

    @cached_property
    def _half(self) -> FloatArray:
        m, r, _ = self.psi.shape
        return np.asarray(np.einsum("arbs,bsp->arbp", self._inverse.reshape(m, r, m, r), self.psi))

    @property
    def freedom(self) -> float:
        """tr G K."""
        return float(len(self.lower) - self.ratio * np.trace(self._inverse))

    @property
    def by_S(self) -> FloatArray:
        """d log_det = 2 <by_S, F^T dF>, (m, m): K dG with dG = d(S * psi psi^T)."""
        return np.asarray(np.einsum("arbp,arp->ab", self._half, self.psi))

    def by_psi(self, across: FloatArray, c: int) -> FloatArray:
        """The gradient of the log evidence by `drawn`, (D, R, P); across (m, P, c) = F^T residual / s2."""
        D, _, P = self.drawn.shape
        by_psi = np.einsum("arc,apc->arp", self.h, across) - c * np.einsum("arbp,ab->arp", self._half, self.S)
        both = by_psi[:D] + by_psi[D:]
        by_scaled = both if self.turn is None else self.turn @ both
        scale = self.scale(self.drawn)
        along = float(np.sum(by_scaled * self.drawn)) / (scale * D * P)
        return np.asarray((by_scaled - along * self.drawn) / math.sqrt(scale))


ROWS: Final = 8192
FEATURES: Final = 512  # columns of the linear model: of F, times the rows of psi for fields
QUICK_BELOW: Final = 20_000  # rows of data whose search takes fewer rows and features, whose fit takes seconds too
QUICK_ROWS, QUICK = 2048, 256
STARTS: Final = (1 / 3, 1.0, 3.0)  # times the first guess
SHORTER: Final = (1 / 10, 1 / 30, 1 / 100, 1 / 300)
REACH: Final = (1e-3, 1e3)  # the length-scales looked at, times the first guess
ITERATIONS: Final = 100
FLAT, AHEAD = 3.0, 6.0  # a log evidence so much above that of noise alone says nothing; one of shorter starts'
SHORT: Final = (1 / 3, 1 / 6)  # times the first guess, of inputs that seemed to have little effect
MOST_PROBED, MOST_PROBES = 16, 3  # of these; and how often
_FIRST_RATIO: Final = 0.1
_LINEAR: Final = 1.0  # log of a length-scale over the first guess
_value: Final = attrgetter("value")
_TOLERANCE: Final = 1e-7  # of the log evidence an entry of Y
_LEAST_ROWS: Final = 4


def search_size(n: int) -> tuple[int, int]:
    """The most rows and columns that the search takes of n rows, of a job and an estimator."""
    return (ROWS, FEATURES) if n >= QUICK_BELOW else (QUICK_ROWS, QUICK)


@dataclass(frozen=True, eq=False)
class Tuned:
    """What `tune_lengthscales` found. `lengthscale` (1,) or (d,), in the units of X; `kernel` is the kernel with it.
    `ridge` is that of 1/l sum |y - f|^2 + ridge |f|^2 over the sample's l = `rows` rows; for N rows it is ridge * rows
    / N. `log_evidence` is in the units of Y, a sum over outputs, and `history` that of the best climb's iterations.
    `converged` is False where iterations ran out or the evidence is flat; `status` says so, and what is at a bound.
    `smoothness` says how a Matern kernel compares with the Gaussian, where that was looked at (`smoothness`)."""

    lengthscale: FloatArray
    kernel: OperatorKernel
    ridge: float
    rows: int
    log_evidence: float
    history: tuple[float, ...]
    converged: bool
    status: str
    smoothness: str | None = None


@dataclass(frozen=True, eq=False)
class _Climb:
    """Where one climb ended: logs (k + 1,) of the length-scales, over the first guess, and of the ratio."""

    logs: FloatArray
    value: float
    history: tuple[float, ...]
    converged: bool


def tune_lengthscales(
    kernel: OperatorKernel, X: FloatArray, Y: FloatArray, *, each: bool = False, n_features: int = FEATURES,
    seed: int = 0, intercept: bool = True, observe: FloatArray | None = None, weights: FloatArray | None = None,
    rows: int = ROWS, classes: bool = False, spread: FloatArray | None = None,
) -> Tuned:  # fmt: skip
    """The length-scale (`each`: one for each input) and the ridge with the highest evidence on a sample of rows.

    Type-II maximum likelihood (Rasmussen & Williams 2006, section 5.4.1; `each` is their automatic relevance
    determination, 5.1) on random features (see `UnitFeatures`), not on the exact kernel: features are what will be
    fitted. The kernel's own length-scales are not looked at; all terms of a sum get the same. Output matrices count
    as the identity: each target is a problem with a noise variance of its own; a field's targets share one.

    X (n, d), Y (n, q) or (n,); rows that are not finite throughout are left out, of the others at most `rows` are
    taken, evenly spread. `observe` is C (q, p) where Y observes C f. `weights` (n,) are those of the rows; a row of
    weight 0 is left out. `n_features` is the most columns of the linear model of one problem.

    L-BFGS-B climbs from three starts in the logs of one length-scale and of the ratio of noise to signal variance, and
    from the best of shorter ones where that ends 6 higher, as f may be a wave that is short beside the data; `each`
    goes on from the best (and the first guess), and from short length-scales of inputs that seemed to have little
    effect; it keeps one length-scale, in the inputs' standard deviations, where more are not worth their number by
    Schwarz's criterion (1978). The first guess is the median distance; with `each` that in units of the inputs'
    standard deviations, so that the units of X do not matter. Length-scales stay within 1/1000 and 1000 times the first
    guess (an input at the upper bound has no effect), the ratio within 1e-8 and 1e6. Where nothing beats noise alone
    the first guess comes back. The same arguments give the same result.

    `classes`: Y is ones and zeros. A density of these grows without bound where f meets few of them exactly, which a
    short length-scale along any one input does, so that the ratio is then 0.03 at least. The K columns
    say one label a row: what length-scales of several inputs gain in log evidence counts as its mean over the columns.

    `spread` are the inputs' standard deviations (d,), where more rows than these tell them: an input that hardly varies
    among few labelled rows would have a length-scale that is far too short for the others.

    So few features have a price: of data drawn from an exact process in two and four inputs, with a noise of 0.1 to 0.3
    standard deviations, 512 of them find the Gaussian's length-scale 3 to 16% short and the Matern-5/2's 7 to 40%. Many
    rows matter more, where a model is not exact: they show what a few cannot. Raises InputError for a kernel without a
    length-scale, and for arrays or numbers that do not fit."""
    whole("rows", rows, _LEAST_ROWS)
    whole("n_features", n_features, 2)
    X, Y, w = sample_rows(X, Y, weights, rows)
    guess = _first_guess(kernel, X, X.std(axis=0) if spread is None else spread, each=each)
    p = Y.shape[1] if observe is None else observe.shape[1]
    features = UnitFeatures.of(kernel, d=X.shape[1], p=p, columns=n_features, seed=seed)
    if features.separable:
        Y = Y[:, None, np.ptp(Y, axis=0) > 0]  # a class may be missing from the sample
    else:
        features, Y = features if observe is None else features.observed(observe), Y[:, :, None]
    if len(X) < _LEAST_ROWS or not np.ptp(Y, axis=0).any():
        status = f"{len(X)} rows whose targets do not vary say nothing: the length-scale is the median distance"
        return Tuned(guess, with_lengthscale(kernel, guess), _FIRST_RATIO, len(X), -np.inf, (), False, status)
    ratios, share = RATIOS, 1.0
    if classes:
        ratios, share = (CLASS_RATIO, RATIOS[1]), 1.0 / int(Y.shape[2])
    evidence = Evidence(features, X - X.mean(axis=0), Y, intercept, None if weights is None else w, ratios, share)
    return _tuned(kernel, evidence, _climbed(evidence, guess), guess)


def _climbed(evidence: Evidence, guess: FloatArray) -> _Climb:
    """The best of the climbs from all starts, and on from a shorter one. Then, where each input has a length-scale, on
    from there, and from the first guess where there f is almost linear: a bend along one input shows to length-scales
    apart alone. That is kept if it is worth as many numbers (Schwarz 1978): of few rows one length-scale tells more."""
    best = max((_climb(evidence, guess, np.log([start, _FIRST_RATIO])) for start in STARTS), key=_value)
    best = _onward(evidence, guess, best, [np.log([start, 1.0]) for start in SHORTER], AHEAD)
    if len(guess) == 1:
        return best
    first, ratio = best.logs
    starts = [np.append(np.full(len(guess), log), ratio) for log in ((first, 0.0) if first > _LINEAR else (first,))]
    if len(guess) > evidence.Y.size:
        return replace(best, logs=starts[0])
    on = _probed(evidence, guess, max((_climb(evidence, guess, start) for start in starts), key=_value))
    price = 0.5 * (len(guess) - 1) * math.log(evidence.share * evidence.Y.size)
    if evidence.share * (on.value - best.value) > price:
        return replace(on, history=best.history + on.history)
    return replace(best, logs=starts[0])


def _probed(evidence: Evidence, guess: FloatArray, climb: _Climb) -> _Climb:
    """On from a climb's end, with a short length-scale for one input that seemed to have little effect, while the
    evidence is higher there: a climb does not see a wave along an input that begins longer than it."""
    for _ in range(MOST_PROBES):
        far = np.flatnonzero(climb.logs[:-1] > 0.0)[:MOST_PROBED]
        places = np.arange(len(climb.logs))
        starts = [np.where(places == at, math.log(short), climb.logs) for at in far for short in SHORT]
        before, climb = climb, _onward(evidence, guess, climb, starts, 0.0)
        if climb is before:
            break
    return climb


def _onward(evidence: Evidence, guess: FloatArray, climb: _Climb, starts: Sequence[FloatArray], by: float) -> _Climb:
    """A climb from the start of most evidence, if that is more than at the climb's end, and ends `by` higher."""
    values = [evidence(guess * np.exp(start[:-1]), float(np.exp(start[-1])))[0] for start in starts]
    if max(values, default=-np.inf) <= climb.value:
        return climb
    on = _climb(evidence, guess, starts[int(np.argmax(values))])
    return replace(on, history=climb.history + on.history) if on.value > climb.value + by else climb


def _climb(evidence: Evidence, guess: FloatArray, start: FloatArray) -> _Climb:
    """L-BFGS-B on the log evidence an entry of Y; one length-scale in `start` moves all in `guess`."""
    from scipy.optimize import minimize

    entries, history = evidence.Y.size, []

    def descend(logs: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = evidence(guess * np.exp(logs[:-1]), float(np.exp(logs[-1])))
        if len(logs) < len(gradient):
            gradient = np.array([gradient[:-1].sum(), gradient[-1]])
        return -value / entries, -gradient / entries

    def note(intermediate_result: Any) -> None:
        history.append(-float(intermediate_result.fun) * entries)

    bounds = [np.log(REACH)] * (len(start) - 1) + [np.log(evidence.ratios)]
    options = {"maxiter": ITERATIONS, "ftol": _TOLERANCE, "gtol": 1e-5}
    climb = minimize(descend, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=note, options=options)
    return _Climb(climb.x, -float(climb.fun) * entries, tuple(history), climb.status == 0)


def _tuned(kernel: OperatorKernel, evidence: Evidence, climb: _Climb, guess: FloatArray) -> Tuned:
    flat, rows = not climb.value > evidence.null + FLAT, len(evidence.X)
    lengthscale = guess if flat else guess * np.exp(climb.logs[:-1])
    ridge = float(np.exp(climb.logs[-1])) * evidence.scale(lengthscale) / rows
    tuned, converged = with_lengthscale(kernel, lengthscale), climb.converged and not flat
    status = _status(climb, evidence.ratios, flat=flat)
    return Tuned(lengthscale, tuned, ridge, rows, climb.value, climb.history, converged, status)


def _status(climb: _Climb, ratios: tuple[float, float], *, flat: bool) -> str:
    if flat:
        return "the evidence is flat, no better than noise alone: the length-scale is the median distance"
    parts = ["converged" if climb.converged else f"not converged within {ITERATIONS} iterations"]
    low, high = (np.isclose(climb.logs[:-1], bound, atol=1e-3) for bound in np.log(REACH))
    for place, at, meaning in (("lower", low, "noise"), ("upper", high, "no effect")):
        if at.any():
            which = "" if len(at) == 1 else " of inputs " + ", ".join(map(str, np.flatnonzero(at)))
            parts.append(f"the length-scale{which} at the {place} bound ({meaning})")
    if np.isclose(climb.logs[-1], np.log(ratios), atol=1e-3).any():
        parts.append("the ratio of noise to signal at a bound")
    return "; ".join(parts)


def sample_rows(
    X: FloatArray, Y: FloatArray, weights: FloatArray | None, rows: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """At most `rows` rows, evenly spread over those that count: X (l, d), Y (l, q) and their weights (l,)."""
    X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
    Y = Y[:, None] if Y.ndim == 1 else Y
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or not X.shape[1] or not Y.shape[1]:
        problem = "X must be (rows, inputs) and Y (rows, targets) of as many rows"
        raise InputError(f"{problem}; got shapes {X.shape} and {Y.shape}")
    w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (len(X),) or np.any(w < 0):
        raise InputError(f"weights must be {len(X)} numbers, one a row, none negative; got shape {w.shape}")
    count = np.isfinite(X).all(axis=1) & np.isfinite(Y).all(axis=1) & np.isfinite(w) & (w > 0)
    if not count.any():
        raise InputError(f"X, Y: none of {len(X)} rows is free of NaN and infinity and has weight; mend the data")
    at = np.flatnonzero(count)
    at = at[np.linspace(0, len(at) - 1, min(rows, len(at))).astype(np.intp)]
    return X[at], Y[at], w[at]


def _first_guess(kernel: OperatorKernel, X: FloatArray, spread: FloatArray, *, each: bool) -> FloatArray:
    """The median distance (1,), or (d,) in units of each input's standard deviation, `spread` (d,). Of skeletons that
    of the inputs that have a length-scale, over the root of the number of input nodes: a node takes the mean of what it
    is over, and the mean of cos(delta_j / s) over n inputs is about 1 - |delta|^2 / (2 n s^2)."""
    spread = spread if each else np.ones(1)
    spread = np.where(spread > 0, spread, 1.0)
    absolute = all(isinstance(base.scalar, Laplacian) for _, base in kernel.terms())
    few = X[:: max(1, len(X) // 1000)] / spread
    scalars = [base.scalar for _, base in kernel.terms()]
    skeleton = next((scalar for scalar in scalars if isinstance(scalar, Skeleton)), None)
    nodes = 1
    if skeleton is not None:
        skeleton.with_lengthscale(1.0)  # which refuses one without any
        few, nodes = few[:, list(skeleton.input_lengthscales(X.shape[1]))], skeleton.stretched_nodes(X.shape[1])
    return np.asarray(spread * median_lengthscale(few, absolute=absolute) / np.sqrt(nodes), dtype=np.float64)
