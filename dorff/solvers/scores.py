"""What a solver is; and what a solution says of the model it belongs to: noise variance, GCV score, evidence.

The model is that of Bayesian linear regression: coefficients h ~ N(0, s2 / (l ridge) I), noise of variance s2 / w for
a row of weight w, a flat prior on the intercept. Its mean is the ridge solution (Rasmussen & Williams 2006, ch. 2.1).
Directions that are problems of their own have an s2 each. Kernels are compared by the evidence of a model that is the
same for all (`select.noise_models`), which is this one for targets divided by their noise."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple, Self

import numpy as np

from dorff.errors import InputError
from dorff.moments import FloatArray
from dorff.solvers.problem import Problem
from dorff.solvers.system import EPS, Block
from dorff.spec.registry import CRITERIA, HELD_OUT, Entry

Ridge = float | FloatArray  # one for all, or (p,) with one for each of the problem's directions
_TINY = float(np.finfo(np.float64).tiny)


def digits_left(condition: float, unit: float = EPS, *, squared: bool = True, size: float = np.inf) -> float:
    """Decimal digits of the fitted values, relative to the targets y, that rounding leaves at least; none below 0. The
    sums of products, and so the system, are wrong by about unit g, g the largest eigenvalue, and their right side by
    unit sqrt(g) |y|: to first order that moves fitted values by sqrt(condition) unit (1 + size) |y|, size = sqrt(g)
    |x| / |y|, which is never more than sqrt(condition) / 2. Where nothing was squared they move by sqrt(condition)
    unit |y|. A factor of 10 is kept for what "about" hides."""
    if squared and 10.0 * unit * condition >= 1.0:
        return 0.0
    lost = np.sqrt(condition) * (1.0 + min(size, np.sqrt(condition) / 2) if squared else 1.0)
    return max(0.0, -float(np.log10(10.0 * unit * max(lost, 1.0))))


@dataclass(frozen=True, eq=False)
class BlockSolution:
    """x (k, c) of one block, and of its columns, (c,) each: rhs . x, shift |x|^2, and |x|^2 times the largest
    eigenvalue of the column's matrix before it was centred; the degrees of freedom tr(G (G + shift)^-1) and log det(I
    + G / shift), where they are known. `condition` is the worst column's, `lifted` the same with that eigenvalue."""

    block: Block
    x: FloatArray
    fitted: FloatArray
    shrunk: FloatArray
    level: FloatArray
    condition: float = 1.0
    lifted: float = 1.0
    freedom: FloatArray | None = None
    log_det: FloatArray | None = None


class RidgeScores:
    """Scores from the solutions of all blocks, in the scaled targets' units but for the evidence. Arrays are (J,): one
    for each of the problem's `directions`, or J = 1. Squares that are left are never taken to be less than rounding
    leaves, unit (targets' squares + |x|^2 times G's largest eigenvalue): without digits, no 0."""

    def __init__(self, problem: Problem, solved: Sequence[BlockSolution]) -> None:
        self._problem, self._totals, self._solved = problem, problem.totals, solved
        self.squared = all(one.block.squared for one in solved)
        self._levels = self._summed([one.level for one in solved])
        floor = problem.unit * (self._totals.squares + self.squared * self._levels) + _TINY
        kept = self._totals.energy - self._summed([one.fitted for one in solved])
        self.rss: FloatArray = np.maximum(kept - self._summed([one.shrunk for one in solved]), floor)
        self._penalised = np.maximum(kept, floor)
        self._left = np.maximum(self._totals.entries - self._totals.spent, 0.0)  # entries that the intercept leaves

    def _summed(self, values: Sequence[FloatArray]) -> FloatArray:
        """(J,): each column's value added where it belongs."""
        out = np.zeros(len(self._totals.energy))
        for one, value in zip(self._solved, values, strict=True):
            if self._problem.directions is None:
                out += value.sum()
            else:
                out[one.block.columns] += value
        return out

    @property
    def digits(self) -> float:
        """`digits_left` of all targets together, as they were summed: about y0, features not yet centred."""
        condition = max([1.0, *(one.lifted for one in self._solved)])
        size = float(np.sqrt(self._levels.sum() / max(self._totals.squares.sum(), _TINY)))
        return digits_left(condition, self._problem.unit, squared=self.squared, size=size)

    @property
    def variance(self) -> FloatArray:
        """Noise variances of the most evidence: (RSS + l ridge |h|^2) / (N - intercept's degrees); 0 for no entry."""
        return np.where(self._left > 0, self._penalised / np.maximum(self._left, 1.0), 0.0)

    @cached_property
    def freedom(self) -> FloatArray:
        """Degrees of freedom, with the intercept's."""
        return self._totals.spent + self._summed([one.freedom for one in self._solved if one.freedom is not None])

    @property
    def gcv(self) -> float:
        """(RSS / N) / (1 - df / N)^2 with N entries observed (Golub, Heath & Wahba 1979), inf where df >= N. The
        intercept's degrees count too. Rows' weights count by their ratios alone: RSS / N is the weighted mean."""
        totals = self._totals
        left = 1.0 - self.freedom.sum() / totals.entries.sum()
        return float(self.rss.sum() / totals.weight.sum() / left**2) if left > 0 else np.inf

    @property
    def gcv_each(self) -> FloatArray:
        """The GCV score of each direction alone."""
        entries, weight = np.maximum(self._totals.entries, 1.0), np.maximum(self._totals.weight, _TINY)
        left = 1.0 - self.freedom / entries
        return np.where(left > 0, self.rss / weight / np.where(left > 0, left, 1.0) ** 2, np.inf)

    @property
    def evidence_each(self) -> FloatArray:
        """log p(scaled targets | ridge), the coefficients and a flat intercept integrated out, at its greatest over
        the noise variance (the restricted likelihood of Patterson & Thompson 1971, with log det n of the intercept's
        system, for a flat prior on it, in the targets' units). Of directions that add to the `log_evidence`. -inf at
        ridge 0. With row weights a constant of the data, half the entries' sum of log w, is left out."""
        log_det = self._summed([one.log_det for one in self._solved if one.log_det is not None])
        noise = np.log(2.0 * np.pi * np.where(self._left > 0, self.variance, 1.0)) + 1.0
        return np.asarray(-0.5 * (self._left * noise + self._totals.log_free + log_det))

    @property
    def log_evidence(self) -> float:
        """log p(targets | ridge) in the targets' own units: as `evidence_each`, of all."""
        return float(self.evidence_each.sum() - self._problem.log_units)


#: How a solve may end; `fit.quality.warnings_of_status` has a warning for each but the first.
Status = Literal["ok", "ill_conditioned", "not_converged"]


@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients h (m, r) for one ridge, and how they were found. `condition` is the (estimated) condition number of
    the worst system solved, `rung` the method that solved it, `digits` what `digits_left` says of the two. `variance`
    is the noise variance of the scaled targets, (p,) with one for each of the problem's `directions`, or (1,), `rss`
    the squares that are left, alike, and `freedom` the degrees of freedom, the intercept's among them, where they were
    counted. `gcv` is the generalised cross-validation score and `log_evidence` the log marginal likelihood
    (`RidgeScores`), where they were asked for or came for nothing; `gcv_error` and `error` are the standard errors of
    estimates, else 0. `ridges`
    (p,) where each direction has its own; `ridge` is their geometric mean. Not `converged`: out of steps."""

    h: FloatArray
    ridge: float
    condition: float
    rung: str
    gcv: float | None = None
    log_evidence: float | None = None
    ridges: FloatArray | None = None
    variance: FloatArray | None = None
    digits: float = 15.0
    rss: FloatArray | None = None
    freedom: FloatArray | None = None
    converged: bool = True
    error: float = 0.0
    gcv_error: float = 0.0

    @property
    def ill_conditioned(self) -> bool:
        """Whether fewer than three digits are left."""
        return not self.digits >= 3.0

    @property
    def status(self) -> Status:
        """How the solution ended."""
        if self.ill_conditioned:
            return "ill_conditioned"
        return "ok" if self.converged else "not_converged"

    @classmethod
    def of(cls, problem: Problem, ridge: Ridge, solved: Sequence[BlockSolution], rung: str, *, scores: bool) -> Self:
        """Of all blocks' solutions, with GCV score and evidence if `scores`; ridges (p,) go with their directions."""
        judged = RidgeScores(problem, solved)
        gcv, log_evidence = (judged.gcv, judged.log_evidence) if scores else (None, None)
        ridges = None if np.ndim(ridge) == 0 else np.asarray(ridge, dtype=np.float64)
        h, worst = problem.coefficients([one.x for one in solved]), max([1.0, *(one.condition for one in solved)])
        freedom = judged.freedom if all(one.freedom is not None for one in solved) else None
        mean, left = float(ridge) if ridges is None else geometric_mean(ridges), (judged.digits, judged.rss)
        return cls(h, mean, worst, rung, gcv, log_evidence, ridges, judged.variance, *left, freedom)


def geometric_mean(ridges: FloatArray) -> float:
    """The geometric mean, 0 if one is 0."""
    return float(np.exp(np.mean(np.log(ridges)))) if np.all(ridges > 0) else 0.0


class BlockFactor(ABC):
    """The matrices G a_j + shift_j of a block's columns j at one ridge, factored once; asked for their inverses."""

    @abstractmethod
    def solve(self, *, scores: bool = False) -> BlockSolution:
        """The block's solution; where `scores` are asked for it has the degrees of freedom. Gives up the factor."""

    @abstractmethod
    def inverses(self) -> tuple[FloatArray, FloatArray]:
        """Basis (k, k'), spread (k', c), inverses basis diag(spread_j) basis^T. Gives up the factor."""

    @abstractmethod
    def with_inverse(self) -> tuple[BlockSolution, FloatArray]:
        """Of one column: the solution with its freedom, the inverse's lower triangle (k, k). Gives up the factor."""


class DirectSolver(ABC):
    """A linear solver of one problem, that factors each block's matrix; `rung` in reports. See `direct.SOLVERS`."""

    rung: str

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @classmethod
    def suits(cls, problem: Problem, ridges: Sequence[Ridge]) -> bool:
        """Whether it can solve this, and is worth its time."""
        return True

    @abstractmethod
    def factor(self, block: Block, ridge: Ridge) -> BlockFactor | None:
        """None where it cannot factor this block. InputError for ridges of outputs that do not fall apart."""

    def solve(self, ridge: Ridge, *, scores: bool = False) -> Solution | None:
        """The solution of all blocks, with GCV score and evidence if `scores`; None where it fails."""
        solved = list[BlockSolution]()
        for block in self.problem.blocks:
            if (factor := self.factor(block, ridge)) is None:
                return None
            solved.append(factor.solve(scores=scores))
        return Solution.of(self.problem, ridge, solved, self.rung, scores=scores)


class FitScore(NamedTuple):
    """A criterion's score of one fit to all rows, of which the best has least: `value` of the solution, None where it
    has none, and `each` (J,) of every direction alone. `noise` says that it needs `Setting.judged`; `error` is the
    value's standard error where it is an estimate."""

    value: Callable[[Solution], float | None]
    each: Callable[[RidgeScores], FloatArray]
    noise: bool = False
    error: Callable[[Solution], float] = lambda _solution: 0.0


@dataclass(frozen=True)
class Criterion:
    """What the best of several fits is found by: its `title`, and what `shown` makes of a value for people to see,
    called `axis` there, in the targets' units if `in_units`. Those of `HELD_OUT` alone have no `of_fit`."""

    title: str
    axis: str
    shown: Callable[[float], float]
    in_units: bool = False
    of_fit: FitScore | None = None

    @property
    def noise(self) -> bool:
        """Whether it needs `Setting.judged`."""
        return self.of_fit is not None and self.of_fit.noise


def criterion_of(name: str) -> Criterion:
    """The criterion of a word; InputError where no installed package has it."""
    if (entry := CRITERIA.get(name)) is None:
        raise InputError(f"criterion {name!r} is not known; use one of: {', '.join(CRITERIA.names)}")
    criterion = entry.build()
    if not isinstance(criterion, Criterion) or (criterion.of_fit is None and name not in HELD_OUT):
        raise InputError(f"dorff.criteria {name}: builds no Criterion with `of_fit`; correct its package")
    return criterion


def root(value: float) -> float:
    """The root of a mean square; NaN of what is none."""
    return math.sqrt(value) if value >= 0 else math.nan


_GCV = FitScore(attrgetter("gcv"), attrgetter("gcv_each"), error=attrgetter("gcv_error"))
_EVIDENCE = FitScore(
    lambda solution: None if solution.log_evidence is None else -solution.log_evidence,
    lambda scores: -scores.evidence_each,
    noise=True,
    error=attrgetter("error"),
)
_OF_GCV = Criterion("GCV", "root of the GCV score", root, in_units=True, of_fit=_GCV)
_OF_EVIDENCE = Criterion("evidence", "log evidence", lambda value: -value, of_fit=_EVIDENCE)
_OF_ROWS = Criterion("held-out R2", "root of 1 - R2 on held-out rows", root)
_OF_EACH_ROW = Criterion("leave-one-out R2", "root of 1 - R2 on rows left out one at a time", root)

CRITERIA.add(
    Entry("gcv", lambda: _OF_GCV, source="Golub, Heath & Wahba 1979"),
    Entry("evidence", lambda: _OF_EVIDENCE, source="MacKay 1992"),
    Entry("kfold", lambda: _OF_ROWS),
    Entry("loo", lambda: _OF_EACH_ROW, source="Allen 1974"),
)
