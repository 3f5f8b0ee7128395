"""How sure a fit is: the noise of each target, the evidence, and the posterior, from the system that gave the fit.

One model serves every kernel: y = C f + e, f a Gaussian process of covariance t2 K for the kernel K as it stands, a
flat prior on the intercept, and e of one variance a target, D = diag(s_1^2 .. s_q^2), over the row's weight. The ridge
ties t2 to the noise: l ridge t2 is the mean of D, over the entries observed. D is what the evidence is greatest at.
The fit itself is the ridge's, which counts all targets alike: it is the mean of the posterior where D = s2 I, and else
an estimate whose error has the covariance that is given here as the posterior's.

Independent outputs (a diagonal output matrix, C = I) have one model for their evidence, which is compared with that of
other kernels. Their noise and posterior are of models of their own, each with a t2 tied to its own noise: what is said
of each depends neither on the others nor on their units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
from scipy.linalg import blas, lapack

from dorff.errors import InputError
from dorff.moments import FloatArray, Solvable
from dorff.posterior import CoupledBlock, Posterior, PosteriorBlock, SeparableBlock
from dorff.solvers.dense import factored
from dorff.solvers.eigen import divided
from dorff.solvers.problem import Problem, Solution
from dorff.solvers.scores import Scores, Tally
from dorff.solvers.select import squared_error
from dorff.solvers.system import Block, IntArray

Spread = tuple[FloatArray, FloatArray]  # basis (k, k'), spread (k', c): the columns' inverses basis diag(s_j) basis^T

STEPS: Final = 50  # of finding D
CLOSE: Final = 1e-4  # a step that changes no variance by more of itself is the last
STRIPE: Final = 256  # rows of a matrix that are weighed at a time
LEAST: Final = 1e-10  # of the mean variance: less counts as that much where targets are divided by it


@final
@dataclass(frozen=True, eq=False)
class NoiseModel:
    """The noise variances (q,) of the scaled targets, in rows of weight 1, at which the evidence is greatest for a
    ridge, 0 for a target that the intercept uses up; and its log there, of the targets in their own units."""

    variance: FloatArray
    log_evidence: float


def noise_model(
    weighed: Callable[[FloatArray], Problem], parts: Sequence[Solvable], ridge: float, start: FloatArray
) -> NoiseModel:  # fmt: skip
    """D, and the restricted likelihood (Patterson & Thompson 1971) at it, of the model above.

    `weighed` gives the problem whose targets are divided by the roots of relative variances (q,), `start` are the
    first ones. The steps are MacKay's (1992, eq. 4.10): s_j^2 = |r_j|^2 / (n_j - df_j), r_j and df_j being the
    residuals and the degrees of freedom of target j under D. Departures: the intercept's degrees are off n_j, and as
    t2 is tied to D each side has its share of |h|^2 / t2 and of sum df; of one target it is (RSS + l ridge |h|^2) / n
    at once. A step is a factorisation and its inverse, or of columns apart a division: their spectrum stays.
    """
    noise, first, best = start, None, None
    for _ in range(STEPS):
        problem = weighed(noise)
        if first is not None:  # columns apart: only rotations of the targets and their sizes are new
            pairs = zip(problem.blocks, first.blocks, strict=True)
            problem = replace(problem, blocks=tuple(replace(new, known=old.spectrum) for new, old in pairs))
        model, step = _stepped(problem, parts, ridge)
        if best is None or model.log_evidence >= best.log_evidence:
            best = model
        if all(block.rotation is not None and block.squared for block in problem.blocks):
            first = first or problem
        del problem  # before the next is formed
        if np.abs(np.log(step / noise)).max() <= CLOSE:
            break
        noise = step
    assert best is not None
    return best


def relative_noise(squares: FloatArray, left: FloatArray) -> FloatArray:
    """Variances (q,) of mean 1 over the entries that are left, in proportion to `squares` over these."""
    each = np.where(left > 0, squares / np.maximum(left, 1.0), 0.0)
    mean = float(left @ each) / max(float(left.sum()), 1.0)
    each = np.maximum(each / mean, LEAST) if mean > 0 else np.ones(len(left))
    return np.where(left > 0, each, 1.0)


def _stepped(problem: Problem, parts: Sequence[Solvable], ridge: float) -> tuple[NoiseModel, FloatArray]:
    """What the relative variances of a problem give, and the next ones."""
    assert problem.noise is not None
    solved, tallies, freedom = [], [], np.zeros(len(problem.noise))
    for block in problem.blocks:
        x, tally, own = _solved(problem, block, parts, ridge)
        solved.append(x)
        tallies.append(tally)
        freedom += own
    scores, W = Scores(problem, tallies), problem.weights.combined(problem.coefficients(solved))
    s2, noise, counts = float(scores.variance[0]), problem.noise, _contrasts(problem)
    unit = max(s2, float(np.finfo(np.float64).tiny))
    squares, held = residual_squares(problem, parts, W) / unit, sum(float(one.shrunk.sum()) for one in tallies) / unit
    share = counts * noise / max(float(counts @ noise), 1.0)
    bottom = problem.entries - _spent(problem) - freedom + share * freedom.sum()
    there = (counts > 0) & (bottom > 0)
    ratio = np.where(there, (squares + share * held) / np.where(there, bottom, 1.0), 1.0)
    model = NoiseModel(np.where(counts > 0, s2 * noise, 0.0), scores.log_evidence)
    return model, relative_noise(counts * noise * np.clip(ratio, 1e-3, 1e3), counts)


def _contrasts(problem: Problem) -> FloatArray:
    """Entries (q,) of each target, less one for an intercept: by these variances are averaged."""
    return np.maximum(problem.entries - problem.intercept, 0.0)


def _spent(problem: Problem) -> FloatArray:
    """The intercept's degrees of freedom (q,) at each target."""
    free = np.einsum("qp,ps,qs->q", problem.C, problem.free[0], problem.C)
    return problem.intercept * np.asarray(free * sum(one.n * one.mask for one in problem.rows))


def residual_squares(problem: Problem, parts: Sequence[Solvable], W: FloatArray) -> FloatArray:
    """(q,): summed squares of the targets, divided as the problem's are, less C f; W (m, p) is in the scaled units."""
    bias, C = problem.bias(W), np.eye(len(problem.scale)) if problem.observe is None else problem.observe
    W = (W * _outputs(problem)) @ C.T
    return np.asarray(np.sum([squared_error(part, W, C @ bias) for part in parts], axis=0) / problem.units**2)


def _solved(
    problem: Problem, block: Block, parts: Sequence[Solvable], ridge: float
) -> tuple[FloatArray, Tally, FloatArray]:  # fmt: skip
    """x (k, c), its tally, and of each target the degrees of freedom (q,) that it takes."""
    shift = problem.shifts(block, ridge)
    factor = factored(block, float(shift[0])) if block.rotation is None and block.known is None else None
    if factor is None:
        x, tally, _ = divided(problem, block, ridge)
        assert tally.freedom is not None
        values, vectors = block.spectrum
        if block.load is not None:
            own = (block.load**2 / np.where(block.a > 0, block.a, 1.0)) @ tally.freedom
        else:
            kept = (shift > 0) | (values > block.floor * values.max(initial=0.0))
            own = _freedom(problem, block, parts, (vectors / np.where(kept, values + shift, np.inf)) @ vectors.T)
        return vectors @ x, tally, own
    x, _ = lapack.dpotrs(factor.lower, block.rhs, lower=1)
    largest, k = factor.norm + block.removed, len(block.rhs)
    log_det = 2.0 * float(np.log(np.diag(factor.lower)).sum()) - k * np.log(shift) if shift[0] > 0 else shift + np.inf
    half, _ = lapack.dtrtri(factor.lower, lower=1, overwrite_c=1)
    inverse, _ = lapack.dlauum(half, lower=1, overwrite_c=1)
    squares = np.sum(x**2, axis=0)
    tally = Tally(
        block, np.sum(x * block.rhs, axis=0), shift * squares, largest * squares,
        factor.condition * largest / factor.norm, k - shift * np.trace(inverse), log_det,
    )  # fmt: skip
    return x, tally, _freedom(problem, block, parts, inverse)


def _freedom(problem: Problem, block: Block, parts: Sequence[Solvable], inverse: FloatArray) -> FloatArray:
    """(q,): tr(G_t inverse), G_t what target t has of the G of a system for everything; the lower triangle of the
    inverse is read."""
    feature, row = block.at
    psi, freedom = problem.weights.psi[feature, row], np.zeros(len(problem.scale))
    centre = _centres(problem, feature, psi)
    for part, one in zip(parts, problem.rows, strict=True):
        product = part.full[: part.m, : part.m][np.ix_(feature, feature)].T  # by columns, as LAPACK has the inverse
        product *= inverse
        for j in range(1, len(product)):
            product[:j, j] = 0.0
        seen, away = psi @ problem.C[one.mask].T, centre @ problem.C[one.mask].T
        found = 2.0 * np.sum(seen * (product @ seen), axis=0) - np.diag(product) @ seen**2
        del product
        reached = blas.dsymm(1.0, inverse, away, lower=1)
        found += np.sum((one.n * away - 2.0 * one.s[feature, None] * seen) * reached, axis=0)
        freedom[one.mask] += found
    return freedom


def independent(problem: Problem) -> bool:
    """Whether each target has a problem of its own."""
    V = problem.directions
    return len(problem.scale) == 1 or (V is not None and np.array_equal(V, np.eye(len(V))))


def noise_covariance(problem: Problem, solution: Solution) -> FloatArray | None:
    """(q, q): of the targets' noise in their own units, for a row of mean weight; None where it takes more than the
    solution. Of targets that are problems of their own: where the evidence is greatest if the ridge is its own too;
    one ridge for all can fit none, and the residuals over the degrees of freedom left depend on it least."""
    variance = solution.variance
    if variance is None or not independent(problem):
        return None
    if len(variance) > 1 and solution.ridges is None and not problem.pulls:
        if solution.rss is None or solution.freedom is None:
            return None
        left = problem.entries - solution.freedom
        variance = np.where(left > 0, solution.rss / np.where(left > 0, left, 1.0), variance)
    return noise_of(problem, problem.scale, variance)


def noise_of(seen: Problem | Sequence[Solvable], scale: FloatArray, variance: FloatArray) -> FloatArray:
    """(q, q) of variances (q,) of the scaled targets in rows of weight 1, for a row of the mean weight of those that
    see a target: so a constant factor of all weights changes nothing."""
    return np.diag(variance * scale**2 / _mean_weight(seen))


def _mean_weight(seen: Problem | Sequence[Solvable]) -> FloatArray:
    """Of the rows that have a target, (q,)."""
    rows = (
        [(one.n, one.count, one.mask) for one in seen.rows]
        if isinstance(seen, Problem)
        else [(float(part.corner[0, 0]), part.n, part.mask) for part in seen]
    )
    weight, entries = sum(n * mask for n, _, mask in rows), sum(count * mask for _, count, mask in rows)
    return np.asarray(np.where(weight > 0, weight, 1.0) / np.where(weight > 0, entries, 1.0))


def residual_variance(solution: Solution, squares: FloatArray, counts: FloatArray) -> FloatArray:
    """(q,), where nothing is factored: each target's `squares` that are left over `counts` of its entries, (q,) both,
    less the same share for degrees of freedom.

    These are l ridge |h|^2 over the noise, as they are on average for the ridge of most evidence (MacKay 1992, section
    4), and no more than the unknowns. What the fit, which counts targets alike, has taken on of noisier ones counts
    as a target's own noise, and so does what it misses: right for rows far above the degrees of freedom, else more.
    """
    assert solution.variance is not None
    variance, total = solution.variance, max(float(counts.sum()), 1.0)
    mean = variance[0] if len(variance) == 1 else np.average(variance, weights=np.maximum(counts, 1e-300))
    share = max(0.0, 1.0 - float(squares.sum()) / max(float(mean) * total, 1e-300))
    left = counts * (1.0 - min(share, solution.h.size / total))
    return np.where(left > 0, squares / np.where(left > 0, left, 1.0), 0.0)


@final
@dataclass(frozen=True, eq=False)
class _Noise:
    """Of the scaled targets in rows of weight 1: their variances (q,), and the mean of these. `prior` (J,) is l ridge
    times the prior's variance, of each direction where there are any: in proportion to its own noise where it has a
    ridge of its own. `alone` (J,) are the variances of directions that are problems of their own, else None."""

    variance: FloatArray
    level: float
    prior: FloatArray
    alone: FloatArray | None

    @classmethod
    def of(cls, problem: Problem, solution: Solution, noise: FloatArray) -> _Noise:
        assert solution.variance is not None
        variance, counts = np.diag(noise) / problem.scale**2 * _mean_weight(problem), _contrasts(problem)
        level = float(counts @ variance) / max(float(counts.sum()), 1.0)
        fitted = solution.variance
        prior = level * (np.ones(len(fitted)) if solution.ridges is None else fitted / fitted.mean())
        # A penalty's own target, 0, has no noise: with it f is that of the model of one noise a direction.
        alone = fitted if problem.pulls else variance if independent(problem) else None
        return cls(variance, level, prior, alone)

    @property
    def excess(self) -> FloatArray:
        """(q,): what is above the mean."""
        return self.variance - self.level


def posterior(
    problem: Problem, solution: Solution, noise: FloatArray, parts: Sequence[Solvable]
) -> Posterior:  # fmt: skip
    """How far f may lie from the fit, for the noise (q, q) of a row of mean weight.

    With K = (G + l ridge I)^-1 the error of x is K (Phi C* e) less l ridge K x, so that its covariance is
    K (G_D + s2 l ridge I) K = s2 K + K (G_D - s2 G) K, with G_D of noise D in place of I and s2 its mean: s2 K, the
    Bayesian linear model's (Rasmussen & Williams 2006, eq. 2.8), where D = s2 I or outputs are independent. That of
    the intercept, about the features' means, is of the same form. With penalties it is s2 K, G + l ridge I has theirs,
    and s2 is the one noise of `Scores`. What of the intercept C leaves open stays the fit's: no deviation is counted
    there.
    A Cholesky factor's inverse where one serves all columns, else the eigenvectors of G. InputError at ridge 0 where G
    is singular.
    """
    about, ridge = _Noise.of(problem, solution, noise), solution.ridge if solution.ridges is None else solution.ridges
    blocks = list[PosteriorBlock]()
    for block in problem.blocks:
        if block.rotation is None:
            blocks.append(_of_everything(problem, block, ridge, about, parts))
        elif problem.weights.views is not None:
            blocks += _columns(problem, block, ridge, about)
        else:
            blocks.append(_block(problem, block, ridge, about))
    return Posterior(tuple(blocks), _intercept(problem, about), noise)


def _outputs(problem: Problem) -> FloatArray:
    """The outputs' scale (p,)."""
    return problem.scale if problem.observe is None else np.full(problem.weights.shape[2], problem.scale[0])


def _intercept(problem: Problem, about: _Noise) -> FloatArray:
    scale, p = _outputs(problem), problem.weights.shape[2]
    if not problem.intercept:
        return np.zeros((p, p))
    free, variance = problem.free[0], about.alone
    if variance is None:
        middle = sum(one.n * (problem.C.T * (about.excess * one.mask)) @ problem.C for one in problem.rows)
        scaled = about.level * free + free @ middle @ free
    elif problem.directions is None:
        scaled = variance[0] * free
    else:
        V = problem.directions  # in which the system of the intercept falls apart too
        turn = np.kron(np.eye(problem.weights.count), (V * np.sqrt(variance)) @ V.T)
        scaled = turn @ free @ turn
    return np.asarray(scaled * np.outer(scale, scale))


def _spread(problem: Problem, block: Block, ridge: float | FloatArray, *, spectral: bool) -> Spread:
    """`spectral` asks for the eigenvectors of G."""
    shift = problem.shifts(block, ridge)
    found = factored(block, float(shift[0])) if block.plain and np.ptp(shift) == 0 and not spectral else None
    if found is not None:
        inverse, _ = lapack.dtrtri(found.lower, lower=1, overwrite_c=1)
        return np.tril(inverse).T, np.ones((len(inverse), 1))
    values, vectors = block.spectrum
    inverse = values[:, None] * block.a + shift
    if not np.all(inverse > np.where(shift > 0, 0.0, block.floor * inverse.max(initial=0.0))):
        raise InputError("posterior: at ridge 0 what the data do not see has no bounds; give a ridge above 0")
    return vectors, 1.0 / inverse


def _of_columns(
    problem: Problem, block: Block, ridge: float | FloatArray, about: _Noise
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Basis (k, k'), spread and variances (c,) of a block whose columns are problems of their own, or hang together by
    their noise: the spread is then (k', c, c)."""
    basis, spread = _spread(problem, block, ridge, spectral=about.alone is None)
    at = np.zeros(len(block.a), np.int64) if problem.directions is None else block.columns
    if about.alone is not None:
        return basis, spread, about.alone[at]
    assert block.load is not None
    noisy = np.multiply.outer(block.spectrum[0], (block.load.T * about.variance) @ block.load)
    noisy += np.diag(about.prior[at] * problem.shifts(block, ridge))
    return basis, spread[:, :, None] * noisy * spread[:, None, :], np.ones(len(block.a))


def _block(problem: Problem, block: Block, ridge: float | FloatArray, about: _Noise) -> PosteriorBlock:
    gain, root, scale = problem.weights.gain, problem.weights.root, _outputs(problem)
    assert block.rotation is not None
    basis, spread, variance = _of_columns(problem, block, ridge, about)
    into = np.zeros((len(block.a), root.shape[1]))
    into[:, block.at] = block.rotation.T
    if problem.intercept and problem.observe is not None and np.linalg.matrix_rank(problem.observe) < len(scale):
        # The intercept takes the features' means in what C sees alone: no one centre serves all outputs.
        k, r = len(gain), root.shape[1]
        turned = np.einsum("ai,ijl,jr->aril", basis, _roots(spread, variance), into, optimize=True)
        feature, row = np.repeat(np.arange(k), r), np.tile(np.arange(r), k)
        return _coupled(problem, turned.reshape(k * r, -1), feature, row, gain[feature, None] * root[0][row])
    loading = into @ root[0] * scale
    return SeparableBlock(basis, spread, variance, gain, gain * _centre(problem, block), loading, into)


def _columns(problem: Problem, block: Block, ridge: float | FloatArray, about: _Noise) -> Iterator[CoupledBlock]:
    """Of several views with one root: a block for each independent combination of columns, with the rows of the root
    that it turns to."""
    assert block.rotation is not None
    basis, spread, variance = _of_columns(problem, block, ridge, about)
    for lift in _roots(spread, variance).transpose(2, 0, 1) @ block.rotation.T:  # (k', r)
        rows, k = np.flatnonzero(np.any(lift != 0, axis=0)), len(basis)
        feature, row = np.repeat(np.arange(k), len(rows)), np.tile(rows, k)
        turned = (basis[:, None] * lift.T[rows]).reshape(len(feature), -1)
        yield _coupled(problem, turned, feature, row, problem.weights.psi[feature, row])


def _roots(spread: FloatArray, variance: FloatArray) -> FloatArray:
    """T (k', c, c): T_i T_i^T are the covariances of the columns' coordinates."""
    c = len(variance)
    if spread.ndim == 3:
        return np.asarray(np.linalg.cholesky(spread))
    diagonal = np.sqrt(np.broadcast_to(spread, (len(spread), c)) * variance)
    return np.asarray(diagonal[:, :, None] * np.eye(c))


def _centre(problem: Problem, block: Block) -> FloatArray:
    """The features' weighted mean (m,) over the rows that a block is of, penalties among them; zeros without an
    intercept."""
    direction = 0 if block.columns is None else int(block.columns[0])
    there = [(rows.s, rows.n) for rows in problem.rows if problem.directions is None or rows.mask[direction]]
    if problem.directions is not None:
        shares = [float(np.sum((pull.C @ problem.directions[:, direction]) ** 2)) for pull in problem.pulls]
        there += [(pull.s * share, pull.n * share) for pull, share in zip(problem.pulls, shares, strict=True)]
    n = sum(n for _, n in there)
    if not problem.intercept or n == 0:
        return np.zeros(len(problem.weights.gain))
    return np.asarray(sum(s for s, _ in there) / n)


def _of_everything(
    problem: Problem, block: Block, ridge: float | FloatArray, about: _Noise, parts: Sequence[Solvable]
) -> CoupledBlock:  # fmt: skip
    """Of one system for everything."""
    basis, spread = _spread(problem, block, ridge, spectral=False)
    basis = basis * np.sqrt(spread[:, 0])
    feature, row = (np.asarray(at) for at in block.at)
    psi = problem.weights.psi[feature, row]
    if about.alone is not None:
        return _coupled(problem, basis * np.sqrt(about.alone[0]), feature, row, psi)
    excess = _weighed(problem, feature, psi, parts, about.excess)
    excess = excess @ basis
    excess = basis.T @ excess
    excess[np.diag_indices(len(excess))] += about.level
    return _coupled(problem, basis @ np.linalg.cholesky(excess), feature, row, psi)


def _weighed(
    problem: Problem, feature: IntArray, psi: FloatArray, parts: Sequence[Solvable], variance: FloatArray
) -> FloatArray:  # fmt: skip
    """G (k, k) of the rows, each target times its `variance` (q,), about what the intercept takes of the features."""
    G, centre = np.zeros((len(psi), len(psi))), _centres(problem, feature, psi)
    for part, one in zip(parts, problem.rows, strict=True):
        C, S = problem.C[one.mask], part.full[: part.m, : part.m]
        seen, away, e = psi @ C.T, centre @ C.T, variance[one.mask]
        summed = one.s[feature, None] * seen
        for start in range(0, len(G), STRIPE):
            some = slice(start, start + STRIPE)
            stripe = S[np.ix_(feature[some], feature)]
            stripe *= (seen[some] * e) @ seen.T
            stripe += ((one.n * away[some] - summed[some]) * e) @ away.T
            stripe -= (away[some] * e) @ summed.T
            G[some] += stripe
    return G


def _centres(problem: Problem, feature: IntArray, psi: FloatArray) -> FloatArray:
    """(k, p): what the intercept takes of features that go with rows psi (k, p); zeros without one."""
    centre = np.zeros_like(psi)
    if not problem.intercept:
        return centre
    for one in problem.sights:
        centre += one.s[feature, None] * ((psi @ one.C.T) @ one.C)
    return np.asarray(centre @ problem.free[0])


def _coupled(
    problem: Problem, basis: FloatArray, feature: IntArray, row: IntArray, psi: FloatArray
) -> CoupledBlock:  # fmt: skip
    """Of x with covariance basis basis^T; `psi` (k, p) are the rows that x goes with."""
    scale, width = _outputs(problem), basis.shape[1]
    centre = _centres(problem, feature, psi) * scale
    return CoupledBlock(basis, np.ones((width, 1)), np.ones(1), feature, row, psi * scale, centre)
