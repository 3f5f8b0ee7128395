"""What a solve needs besides moments, and what it makes of the moments of any rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import dorff.solvers.select as select
from dorff.errors import InputError
from dorff.features import FeatureMap
from dorff.kernels import Covariance, Decomposable, Factor, FloatArray, Learned, OperatorKernel
from dorff.model.posterior import Posterior
from dorff.model.weights import Density, OperatorWeights, operator_weights
from dorff.solvers.cg import conjugate_gradients
from dorff.solvers.direct import SpectralSolver, problem_of, solve
from dorff.solvers.few_rows import LEAST_WEIGHT, average_posteriors, ridge_weights, spread_of_means
from dorff.solvers.matrixfree import make_system, of_moments
from dorff.solvers.outputs import learn_output, output_directions, targets_apart
from dorff.solvers.problem import Parts, Problem, Units, target_covariance
from dorff.solvers.scores import Ridge, Solution, criterion_of
from dorff.solvers.select import Spread
from dorff.solvers.stochastic import Preconditioned, estimated, heavy, lattice_parts
from dorff.solvers.system import Penalty
from dorff.solvers.uncertainty import (
    UNBOUNDED,
    LeftOut,
    leave_one_out_errors,
    posterior,
    prior_covariance,
    sampled_posterior,
)
from dorff.spec.registry import lazily

linear_sum_assignment = lazily("scipy.optimize", "linear_sum_assignment")

CG: Final = "cg"  # the other `Setting.method`
LEAST_RIDGE: Final = 1e-100  # in place of a ridge of 0, by which a prior has no bounds
Made = tuple[OperatorKernel, Problem, Solution]  # with its output matrices written out


@dataclass(frozen=True, eq=False)
class Fit:
    """f = F W + bias, W (m, p) and bias (p,) in the targets' units; psi and h that W is made of, in the scaled ones.
    `scale` (p,) is the outputs' scale, `kernel` the kernel with its output matrices written out. `noise_variance` (q,)
    is that of the targets' noise, in their units, of a row of mean weight: None where not asked for (`judged`)."""

    kernel: OperatorKernel
    weights: OperatorWeights
    solution: Solution
    scale: FloatArray
    bias: FloatArray
    noise_variance: FloatArray | None = None

    @property
    def noise(self) -> FloatArray | None:
        """The covariance (q, q) of the targets' noise."""
        return None if self.noise_variance is None else np.diag(self.noise_variance)

    @property
    def W(self) -> FloatArray:
        return self.weights.combined(self.solution.h) * self.scale

    @property
    def log_evidence(self) -> float | None:
        """Log marginal likelihood of the targets in their own units, each one's noise at its best, if known."""
        return self.solution.log_evidence


@dataclass(frozen=True, eq=False)
class Setting:
    """A kernel on m features of d inputs, and how targets are treated.

    `density` holds the features' frequencies; None where they have none, and then the kernel must be one scalar kernel
    times a matrix. `observe` is C (q, p): targets are values of C f (Minh 2016, eq. 67), the identity if None. Used
    for all rows, and for each fold's training rows, from which alone the target scale, a covariance or a learned
    output matrix come. `method` is "direct", or "cg" for conjugate gradients on products with the moments: no system
    is formed, so there are no scores but estimates, and a posterior of samples where it is wanted (`sampled`), by sums
    over a lattice, and one ridge for all outputs. `normalize` is that of `operator_weights`. `penalties` are of all
    rows, and the same for every fold; with them there are no scores either, and one ridge for all outputs.
    `free_scale`: targets are one-hot rows, and only the order of f's values counts, so that held-out errors are those
    of s f with the best s >= 0. `r2_of` is what k-fold chooses by, where other kernels that this one is compared with
    have a say. `sample`: rows left out. `features` are its own where the moments are a lattice's sums, which serve
    several settings (`choose.of_first`). `unequal_weights` (m / 2,) are those of a skeleton's pairs of features.
    `landmarks`: features are of landmarks, the first m' of them those of the first m' landmarks, and leave out a part
    of k(x, x). `missing` is the share of it that features leave out at every x alike, those of a lattice; `halves`:
    either half of the frequencies estimates the kernel, so that fits to both tell how far f depends on the draw
    (`feature_variance`). InputError: penalties of learned outputs."""

    kernel: OperatorKernel
    d: int
    m: int
    density: Density | None
    standardize: bool
    intercept: bool
    observe: FloatArray | None = None
    one_scale: bool = False
    method: str = "direct"
    normalize: bool = False
    penalties: tuple[Penalty, ...] = ()
    free_scale: bool = False
    r2_of: select.R2 | None = None
    sample: LeftOut | None = None
    sampled: bool = False
    features: FeatureMap | None = None
    unequal_weights: FloatArray | None = None
    landmarks: bool = False
    missing: float = 0.0
    halves: bool = False

    def __post_init__(self) -> None:
        check_output(self.kernel, self.observe)  # refused here where it cannot be, before any pass
        if self.penalties and learned_term(self.kernel) is not None:
            raise InputError("manifold: does not go with output 'learned'; give a matrix, or covariance")

    @property
    def r2(self) -> select.R2:
        """What held-out R2 is of."""
        return self.r2_of or select.R2.of([self.kernel], self.observe, classes=self.free_scale)

    def level(self, parts: Parts) -> float:
        """The features' mean of k(x, x) over the rows and the outputs, to three digits; 1 where it is none."""
        weights, rows = self.weights(self.fixed(parts)), sum(float(part.corner[0, 0]) for part in parts)
        squares = np.sum([part.diagonal[: self.m] for part in parts], axis=0)
        level = float(squares @ weights.sizes) / (rows * weights.shape[2])
        return float(f"{level:.3g}") if level > 0 and np.isfinite(level) else 1.0

    def scaling(self, parts: Parts) -> FloatArray:
        """The targets' scale (q,), ones if not asked for; one number for all where outputs are tied to directions or
        mixed by C, or another kernel that this one is compared with needs it (`one_scale`)."""
        if not self.standardize:
            return np.ones(parts[0].q)
        together = self.one_scale or self.kernel.vector_field or self.observe is not None
        return spread(np.diag(target_covariance(parts)), together=together)

    def fixed(self, parts: Parts) -> OperatorKernel:
        """The kernel with its output matrices written out; a covariance is that of the scaled targets."""
        scale = self.scaling(parts)
        covariance = target_covariance(parts) / np.outer(scale, scale) if self.observe is None else None
        return self.kernel.fix(self.d, parts[0].q if self.observe is None else self.observe.shape[1], covariance)

    def solve(
        self, parts: Parts, ridges: Sequence[Ridge], *, scores: bool = False, evidence: bool | None = None
    ) -> list[Fit]:
        """A fit for each ridge, or for each array (p,) of ridges, one a direction of the outputs (`solve_each`).
        `scores` asks for GCV scores and, unless `evidence` is False, for evidences, which are not always computed
        otherwise; if it is True, route cg estimates evidences alone. InputError for an array where the outputs do not
        fall apart, and for scores with penalties."""
        if scores or any(np.ndim(ridge) for ridge in ridges):
            self.check_scored()
        scored = scores and not (evidence and self.method == CG)
        fits = [self.fit_of(*one) for one in self._trials(parts, ridges, scores=scored)]
        return self.judged(parts, fits) if scores and evidence is not False else fits

    def left_out(self, parts: Parts, ridges: Sequence[Ridge]) -> tuple[list[Fit], select.FoldErrors]:
        """Return a fit for each ridge, or each array of ridges, and its leave-one-out errors."""
        assert self.sample is not None
        trials = self._trials(parts, ridges, scores=False, spectral=len(ridges) > 1)
        systems = [trial[1:] for trial in trials]
        errors = leave_one_out_errors(systems, self.sample, free_scale=self.free_scale)
        return [self.fit_of(*trial) for trial in trials], errors

    def _trials(self, parts: Parts, ridges: Sequence[Ridge], *, scores: bool, spectral: bool = False) -> list[Made]:
        """What `fit_of` takes, for each ridge; `spectral` asks for the blocks' spectra."""
        kernel, scale = self.fixed(parts), self.scaling(parts)
        if self.method == CG:
            return [(kernel, *one) for one in self._iterated(self.weights(kernel), parts, scale, ridges, scores=scores)]
        problem = self._of_weights(self.weights(kernel), parts, scale)
        if (learned := learned_term(self.kernel)) is not None or spectral:
            problem = _spectral(problem)
        if learned is not None:
            return [self._learned(learned, problem, parts, float(ridge)) for ridge in ridges]
        return [(kernel, problem, solution) for solution in solve(problem, ridges, scores=scores)]

    def _iterated(
        self, weights: OperatorWeights, parts: Parts, scale: FloatArray, ridges: Sequence[Ridge], *, scores: bool
    ) -> Iterator[tuple[Problem, Solution]]:
        """By products with the sums: of a lattice, of which the heaviest features are known, or of any."""
        each = [float(ridge) for ridge in ridges]
        if lattice_parts(parts):
            of = system, inverse = self._preconditioned(weights, parts, scale, [] if scores else each)
            if scores:
                yield from ((system.problem, estimated(of, ridge).solution) for ridge in each)
                return
        else:
            how: dict[str, Any] = {"intercept": self.intercept, "scale": scale, "observe": self.observe}
            system, inverse = make_system(*of_moments(parts), weights, **how), None
        for ridge in each:
            yield system.problem, conjugate_gradients(system, ridge, inverse)

    def _preconditioned(
        self, weights: OperatorWeights, parts: Parts, scale: FloatArray | Units, ridges: Sequence[float] = ()
    ) -> Preconditioned:
        """The systems of sums over a lattice; the less is estimated the more is factored, if no ridges are given."""
        how: dict[str, Any] = {"intercept": self.intercept, "scale": scale, "observe": self.observe}
        system = make_system(*of_moments(parts), weights, **how)
        return Preconditioned(system, heavy(system, lattice_parts(parts), ridges))

    def solve_each(self, parts: Parts, ridges: Sequence[float], criterion: str) -> Fit:
        """Every direction of the outputs with the best of the ridges for it alone, by "gcv" or "evidence". Directions
        are the targets themselves where the output matrix is diagonal, else its eigenvectors: in these a kernel that
        is one scalar kernel times a matrix falls apart. InputError for others. GCV is a mean of theirs."""
        self.check_scored()
        rule, kernel = criterion_of(criterion).of_fit, self.fixed(parts)
        assert rule is not None
        problem = self._of_weights(self.weights(kernel), parts, self.scaling(parts))
        problem.outputs_apart()
        spectral = SpectralSolver(problem)
        table = [rule.each(spectral.scores(ridge)) for ridge in ridges]
        best = np.asarray(ridges, dtype=np.float64)[np.argmin(table, axis=0)]
        # Each direction's own score, of which the best ridges have the least: not that of all entries together.
        gcv = float(np.average(spectral.scores(best).gcv_each, weights=problem.totals.weight))
        fit = self.fit_of(kernel, problem, replace(spectral.solve(best), gcv=gcv))
        return self.judged(parts, [fit])[0] if rule.noise else fit

    def judged(self, parts: Parts, fits: Sequence[Fit]) -> list[Fit]:
        """The fits with each target's noise and log evidence (`solvers.uncertainty`); without one by penalties and,
        but for sums over a lattice, by route cg."""
        scored = not self._unscored or (not self.penalties and bool(lattice_parts(parts)))
        judged = [fit for fit in fits if fit.log_evidence is not None or not scored]
        lacking = [fit for fit in fits if fit.log_evidence is None and scored]
        models = select.noise_models(parts, (self.reweighed(parts, fit) for fit in lacking))
        for fit, model in zip(lacking, models, strict=True):
            noise = fit.noise_variance
            solution = replace(fit.solution, log_evidence=model.log_evidence, error=model.error)
            if noise is None and not targets_apart(fit.weights, self.observe):
                noise = select.noise_of(parts, self.scaling(parts), model.variance)
            judged.append(replace(fit, noise_variance=noise, solution=solution))
        return [self.noised(parts, fit) for fit in judged]

    def noised(self, parts: Parts, fit: Fit, squares: FloatArray | None = None) -> Fit:
        """The fit with each target's noise; by residuals for route cg without a posterior, penalties and given scaled
        `squares` (q,). InputError at ridge 0 where samples are wanted."""
        if fit.noise_variance is not None:
            return fit
        if self.method == CG and self.sampled and not fit.solution.ridge > 0:
            raise InputError(UNBOUNDED)
        if squares is not None or self.penalties or (self.method == CG and not self.sampled):
            squares = self._residuals(parts, fit) if squares is None else squares
            variance = select.residual_variance(fit.solution, squares, self._counts(parts))
            return replace(fit, noise_variance=select.noise_of(parts, self.scaling(parts), variance))
        if not targets_apart(fit.weights, self.observe):
            return self.judged(parts, [fit])[0]
        if self.method == CG:
            of = self._preconditioned(fit.weights, parts, self.scaling(parts))
            problem, again = of.system.problem, estimated(of, fit.solution.ridge).solution
        else:
            problem = self._of_weights(fit.weights, parts, self.scaling(parts))
            (again,) = solve(problem, [fit.solution.ridge], scores=True)
        return replace(fit, noise_variance=select.noise_variance(problem, again))

    def reweighed(self, parts: Parts, fit: Fit) -> select.Reweighed:
        """What finding the noise of each target starts from, for the weights and ridge of a fit."""
        scale, solution, weights = self.scaling(parts), fit.solution, fit.weights
        if solution.ridges is not None:  # as one ridge, which gives each direction its prior, tied to its own noise
            assert solution.variance is not None
            V = output_directions(weights.root[0])
            each = solution.variance / solution.variance.mean() * solution.ridge / solution.ridges
            weights = replace(weights, root=weights.root @ (V * np.sqrt(each)) @ V.T)

        def weighed(noise: FloatArray) -> Problem | Preconditioned:
            made = self._preconditioned if self.method == CG else self._of_weights
            return made(weights, parts, Units(scale, noise))

        first = select.relative_noise(self._residuals(parts, fit), self._counts(parts))
        return select.Reweighed(weighed, solution.ridge, first)

    @property
    def _unscored(self) -> bool:
        return self.method == CG or bool(self.penalties)

    def _residuals(self, parts: Parts, fit: Fit) -> FloatArray:
        """Summed squares (q,) of the scaled targets."""
        return select.squared_errors(parts, fit.W, fit.bias, self.observe) / self.scaling(parts) ** 2

    def _counts(self, parts: Parts) -> FloatArray:
        """Entries (q,) of each target, less one for an intercept."""
        return np.maximum(sum(part.n * part.mask for part in parts) - self.intercept, 0.0)

    def posterior(self, parts: Parts, fit: Fit) -> Posterior:
        """The posterior of the model that `fit` is of, from the same moments; by samples for route cg."""
        if self.method != CG:
            return self._posterior_of(self._of_weights(fit.weights, parts, self.scaling(parts)), parts, fit)

        noise, weights = self.noised(parts, fit).noise, fit.weights
        assert noise is not None
        if weights.separable and not targets_apart(weights, self.observe):
            # Their noise ties all columns together, or what of the intercept C leaves open does.
            weights = replace(weights, root=np.repeat(weights.root, len(weights.gain), axis=0))
        of = self._preconditioned(weights, parts, self.scaling(parts))
        return self._with_left_out(sampled_posterior(of, fit.solution, noise), of.system.problem, fit)

    def averaged_posterior(self, parts: Parts, fit: Fit, ridges: Sequence[float]) -> Posterior:
        """Return the posterior of the model that `fit` is of, averaged over ridges by their evidence.

        A variance is the mean of those at each ridge, and of the squared differences between the functions and the
        model's (the law of total variance).

        Parameters
        ----------
        parts : sequence of moments
        fit : Fit
            At one of the ridges.
        ridges : sequence of float
            Above 0, ascending.
        """
        targets = Spread.of_moments(parts)
        if np.any(targets.squares <= targets.rounding):  # the evidence of a target that does not vary is rounding
            return self.posterior(parts, fit)
        fits = self.solve(parts, ridges, scores=True)
        evidences = np.array([-np.inf if fit.log_evidence is None else fit.log_evidence for fit in fits])
        if not np.isfinite(evidences).all():  # of targets that do not vary
            return self.posterior(parts, fit)
        weights = ridge_weights(ridges, evidences.tolist())
        kept = np.flatnonzero(weights >= LEAST_WEIGHT * weights.max())
        weights = weights[kept] / weights[kept].sum()

        # The eigenvectors of each block are those of all ridges.
        problem = _spectral(self._of_weights(fit.weights, parts, self.scaling(parts)))
        found = average_posteriors([self._posterior_of(problem, parts, fits[at]) for at in kept], weights)
        differences = np.array([fits[at].solution.h - fit.solution.h for at in kept])
        return replace(found, blocks=(*found.blocks, spread_of_means(problem, differences, weights)))

    def _posterior_of(self, problem: Problem, parts: Parts, fit: Fit) -> Posterior:
        """Return the posterior of a fit whose system is formed."""
        noise = self.noised(parts, fit).noise
        assert noise is not None
        return self._with_left_out(posterior(problem, fit.solution, noise, parts), problem, fit)

    def _with_left_out(self, found: Posterior, problem: Problem, fit: Fit) -> Posterior:
        """Return the posterior with what the features leave out of the kernel."""
        noise, solution = found.noise, fit.solution
        is_bounded = bool(np.all((solution.ridge if solution.ridges is None else solution.ridges) > 0))
        if self.landmarks:
            if not is_bounded:
                raise InputError(UNBOUNDED)
            return replace(found, prior=prior_covariance(problem, solution, noise))
        if self.missing > 0:
            if not is_bounded:  # a prior wider than any noise, which bounds what is left out
                solution = replace(solution, ridge=LEAST_RIDGE, ridges=None)
            left_out = self.missing * prior_covariance(problem, solution, noise)
            return replace(found, unexplained=within_noise(left_out, noise, self.observe))
        return found

    def check_scored(self) -> None:
        """InputError where there are penalties: for GCV, evidence, and outputs with ridges of their own."""
        if self.penalties:
            problem = "manifold: gcv, evidence and ridge_per_output do not count what a manifold term says"
            raise InputError(f"{problem}; choose by kfold (of the labelled rows), with one ridge for all outputs")

    def weights(self, kernel: OperatorKernel) -> OperatorWeights:
        """psi of a kernel whose output matrices are written out."""
        return operator_weights(kernel, self.m, self.density, normalize=self.normalize)

    def _of_weights(self, weights: OperatorWeights, parts: Parts, scale: FloatArray | Units) -> Problem:
        return problem_of(
            parts, weights, intercept=self.intercept, scale=scale, observe=self.observe, penalties=self.penalties
        )

    def _learned(self, term: tuple[float, Decomposable, Learned], problem: Problem, parts: Parts, ridge: float) -> Made:
        """The fit with the output matrix that is best at this ridge; GCV then counts the matrix as given. `problem` is
        that of A = I, diagonalised once for all. A kernel `weight` k0 A is k0 A at ridge / weight."""
        if len(parts) > 1:
            raise InputError("output 'learned': needs rows that have all targets; set data.nan: drop")
        (block,), (weight, base, output) = problem.blocks, term
        assert block.rotation is not None
        values, _ = block.spectrum
        # Both of the kernel k0 I, be the weight in the root or not.
        seen = block.rotated @ block.rotation.T / float(problem.weights.root[0, 0, 0])
        rotated = seen if self.observe is None else seen @ np.linalg.pinv(self.observe)
        learned = learn_output(values, rotated, problem.l, ridge / weight, penalty=output.penalty, observe=self.observe)
        kernel: OperatorKernel = Decomposable(base.scalar, Factor(learned.factor))
        kernel = kernel if weight == 1 else weight * kernel
        problem = self._of_weights(self.weights(kernel), parts, problem.scale)
        if block.squared:  # of triangles each matrix has an SVD of its own
            problem = replace(problem, blocks=(replace(problem.blocks[0], given=block.spectrum, G=np.empty((0, 0))),))
        return kernel, problem, replace(SpectralSolver(problem).solve(ridge), converged=learned.converged)

    def fit_of(self, kernel: OperatorKernel, problem: Problem, solution: Solution) -> Fit:
        """The fit of a kernel whose output matrices are written out, by whatever solver."""
        weights = problem.weights
        bias, noise = problem.bias(weights.combined(solution.h)), select.noise_variance(problem, solution)
        if len(problem.scale) > 1 and (noise is None or solution.ridges is None):
            solution = replace(solution, log_evidence=None)  # that of one noise, or prior, a direction: see `judged`
        return Fit(kernel, weights, solution, problem.outputs, bias, noise_variance=noise)


def _spectral(problem: Problem) -> Problem:
    """Return the problem with the matrix of each block given up for its spectrum."""
    blocks = tuple(replace(block, given=block.spectrum, G=np.empty((0, 0))) for block in problem.blocks)
    return replace(problem, blocks=blocks)


def within_noise(covariance: FloatArray, noise: FloatArray, observe: FloatArray | None) -> FloatArray:
    """Return a covariance (p, p) of what features leave out of f, scaled down to be no more than the targets' noise.

    What no feature can follow is among the residuals, of which the noise (q, q) is estimated. A ridge that was not
    chosen by the evidence may stand for a prior that is far wider than f.
    """
    seen = np.diag(covariance if observe is None else observe @ covariance @ observe.T)
    return np.asarray(min(1.0, float(np.min(np.diag(noise) / np.maximum(seen, 1e-300)))) * covariance)


def carried_ridges(setting: Setting, parts: Parts, fit: Fit) -> Ridge:
    """The ridge of a fit of other rows for a solve of `parts`; of ridges of directions of their own, each goes to the
    direction here that is most like its own: eigenvectors of an output covariance differ, and so may their order."""
    if (ridges := fit.solution.ridges) is None:
        return fit.solution.ridge
    here = setting.weights(setting.fixed(parts))
    theirs, mine = output_directions(fit.weights.root[0]), output_directions(here.root[0])
    fitted, at = linear_sum_assignment(np.abs(theirs.T @ mine), maximize=True)
    carried = np.empty(len(ridges))
    carried[at] = ridges[fitted]
    return carried


def learned_term(kernel: OperatorKernel) -> tuple[float, Decomposable, Learned] | None:
    """The weight, the kernel and the output of a kernel whose output matrix is to be learned; None of others.
    InputError where it is one term of several, which is not built."""
    terms = [(weight, base) for weight, base in kernel.terms() if weight > 0]
    for weight, base in terms:
        if isinstance(base, Decomposable) and isinstance(base.output, Learned):
            if len(terms) > 1:
                remedy = "give the matrix, or use covariance"
                raise InputError(f"output 'learned' can only be learned where the kernel has no other term; {remedy}")
            return weight, base, base.output
    return None


def check_output(kernel: OperatorKernel, observe: FloatArray | None) -> None:
    """InputError for a learned output matrix beside other terms, or a covariance where targets are not the outputs."""
    learned_term(kernel)
    outputs = [base.output for _, base in kernel.terms() if isinstance(base, Decomposable)]
    if observe is not None and any(isinstance(output, Covariance) for output in outputs):
        problem = "observe: output 'covariance' is that of the targets, which are not the outputs f here but C f"
        raise InputError(f"{problem}; use identity, learned or a matrix")


def check_apart(kernel: OperatorKernel, observe: FloatArray | None) -> None:
    """InputError for a kernel whose outputs do not fall apart into problems of one ridge each."""
    bases = [base for weight, base in kernel.terms() if weight > 0]
    one = all(isinstance(base, Decomposable) for base in bases) and len({base.scalar for base in bases}) == 1
    if not one or observe is not None or learned_term(kernel) is not None:
        needs = "a kernel that is one scalar kernel times a given matrix, and targets that are its outputs (no observe)"
        raise InputError(f"solve.ridge_per_output: needs {needs}; leave it out, or use a decomposable kernel")


def spread(variances: FloatArray, *, together: bool) -> FloatArray:
    """Standard deviations, or one for all of them; 1 where a column does not vary."""
    if together:
        variances = np.full(len(variances), variances.mean())
    return np.sqrt(np.where(variances > 0, variances, 1.0))
