"""Lower bounds of an objective whose loss has kinks, and points that raise them: a bundle method.

Each pass over the rows returns, at functions f_i, the mean loss R_c of every column c of the
values and its slopes g_ci. They bound R_c from below everywhere (cutting planes):

    R_c(h, b) >= max over i of a_ci + <g_ci, (h, b)>,      and R_c >= 0, as every loss is

The minimum of these bounds plus ridge |h|^2 is a lower bound of the least objective, and its
minimizer is a good point for the next pass (Teo, Vishwanathan, Smola & Le 2010, Alg. 1; Joachims
2006). The planes bound each column rather than the sum of all columns: this is the disaggregated
form (Birge & Louveaux 1988). The dual problem is

    max over x >= 0 of a x - |g x|^2 / (4 ridge),
    subject to: the x of each column sum to 1 at most, and gb x = 0 for the slopes gb by b

Every feasible x gives a bound, however roughly the maximum was found. Slopes of a smoothed loss
bound the loss as well (Nesterov 2005, section 4), so that the points of L-BFGS give planes too.
Planes do not depend on the ridge: those of one ridge serve the next ridge of a path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import scipy.linalg

from dorff.moments import FloatArray
from dorff.solvers.objective import LossProblem, State
from dorff.solvers.system import IntArray

MOST_PLANES: Final = 400  # planes of a single trial that are kept, besides one for each column
MOST_PLANES_OF_SEVERAL: Final = 250  # the same, if several trials have planes of their own
MOST_COLUMNS: Final = 50  # columns of values: a pass adds POINTS planes for each of them
POINTS: Final = 3  # points of a trial in a pass: one of L-BFGS, two of the bundle
SQUARE_MATRICES: Final = 8  # matrices of planes by planes that are in memory at a time
LEAST_WEIGHT: Final = 1e-8  # weight x of a plane above which the plane is kept
YOUNG_PASSES: Final = 2  # passes for which a plane is kept whatever its weight
MOST_ITERATIONS: Final = 40  # iterations of the interior-point method
BOUNDARY_SHARE: Final = 0.995  # share of the longest feasible step that is taken
JITTER: Final = 1e-12  # added to the diagonal of a system that is scaled to a diagonal of ones
BALANCE_TOLERANCE: Final = 1e-8  # largest gb x of a usable bound, relative to the largest gb


@dataclass(frozen=True, kw_only=True, eq=False)
class LowerBound:
    """A lower bound of the objective, and where the objective of the planes is least.

    Attributes
    ----------
    value : float
        The bound; at least 0.
    h : ndarray of shape (m, r)
        Coefficients of the minimizer.
    b : ndarray of shape (P,)
        Constants of the minimizer.
    """

    value: float
    h: FloatArray
    b: FloatArray


@dataclass(eq=False)
class Bundle:
    """Cutting planes of one trial; they bound its objective at any ridge above 0.

    A column of values is F w + beta for coefficients w (m,) and a constant beta. Its level is its
    value at the features' mean, beta + mean . w. Plane i bounds the mean loss R of column
    `columns[i]`:

        R >= offsets[i] + slopes[i] . w + constant_slopes[i] (beta + mean . w)

    Parameters
    ----------
    problem : LossProblem
        The loss, the weights of the features, and the features' mean (m,).

    Attributes
    ----------
    slopes : ndarray of shape (k, m)
        Slopes by w, of features about their mean.
    constant_slopes : ndarray of shape (k,)
        Slopes by the level.
    offsets : ndarray of shape (k,)
        Values of the planes at w = 0 and beta = 0.
    columns : ndarray of int of shape (k,)
        The column of values that a plane bounds.
    ages : ndarray of int of shape (k,)
        Number of passes since the plane was added.
    """

    problem: LossProblem
    slopes: FloatArray = field(init=False)
    constant_slopes: FloatArray = field(init=False)
    offsets: FloatArray = field(init=False)
    columns: IntArray = field(init=False)
    ages: IntArray = field(init=False)
    _loads: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.slopes = np.zeros((0, len(self.problem.mean)))
        self.constant_slopes = np.zeros(0)
        self.offsets = np.zeros(0)
        self.columns = np.zeros(0, dtype=np.int64)
        self.ages = np.zeros(0, dtype=np.int64)

        # psi C^T without the gain of the features: (r, c), or (c, m, r) of each feature.
        weights, C = self.problem.weights, self.problem.C
        if weights.separable:
            self._loads = weights.root[0] @ C.T
        else:
            self._loads = np.einsum("arp,cp->car", weights.psi, C)

    @staticmethod
    def supports(problem: LossProblem, ridge: float) -> bool:
        """Return whether a problem has bounds at a ridge.

        The loss has kinks, there are no manifold terms, there are at most `MOST_COLUMNS` columns
        of values, and the ridge is above 0.
        """
        if not problem.loss.kinked or problem.terms:
            return False
        return len(problem.C) <= MOST_COLUMNS and ridge > 0

    def add(self, states: Sequence[State]) -> None:
        """Add the planes of the states that a pass evaluated for the trial."""
        self.ages = self.ages + 1
        for state in states:
            offsets, slopes = state.planes
            constant_slopes = slopes[-1]
            centred_slopes = slopes[:-1].T - np.outer(constant_slopes, self.problem.mean)
            column_count = len(offsets)

            self.slopes = np.vstack([self.slopes, centred_slopes])
            self.constant_slopes = np.append(self.constant_slopes, constant_slopes)
            self.offsets = np.append(self.offsets, offsets)
            self.columns = np.append(self.columns, np.arange(column_count))
            self.ages = np.append(self.ages, np.zeros(column_count, dtype=np.int64))

    def bound(
        self,
        ridge: float,
        tolerance: float,
        most_planes: int = MOST_PLANES,
    ) -> LowerBound:
        """Return the lower bound at a ridge, and discard planes that contribute nothing to it.

        Parameters
        ----------
        ridge : float
            Above 0.
        tolerance : float
            How far the bound may be from the best bound that the planes give, about.
        most_planes : int
            Planes beyond these are aggregated, the ones of least weight first.
        """
        K = self._gram(ridge)
        balance = self._balance()
        solution = solve_dual(
            K=K,
            a=self.offsets,
            columns=self.columns,
            balance=balance,
            column_count=len(self.problem.C),
            tolerance=tolerance,
        )
        value = self._dual_objective(solution, K, balance)
        h = self._minimizing_coefficients(solution, ridge)
        b = self._minimizing_constants(solution, h)
        self._prune(solution.x, most_planes)
        return LowerBound(value=value, h=h, b=b)

    def _gram(self, ridge: float) -> FloatArray:
        """Return K (k, k), the inner products by h of all slopes, over 2 ridge."""
        K = np.empty((len(self.columns), len(self.columns)))
        for column in range(len(self.problem.C)):
            rows = np.flatnonzero(self.columns == column)
            for other_column in range(column + 1):
                other_rows = np.flatnonzero(self.columns == other_column)
                weighted = self.slopes[rows] * self._feature_weights(column, other_column)
                products = weighted @ self.slopes[other_rows].T
                K[np.ix_(rows, other_rows)] = products
                K[np.ix_(other_rows, rows)] = products.T
        K /= 2.0 * ridge
        return K

    def _feature_weights(self, column: int, other_column: int) -> FloatArray:
        """Return the features' weights (m,) or () in the inner product of two columns' slopes."""
        weights, loads = self.problem.weights, self._loads
        if weights.separable:
            product = float(loads[:, column] @ loads[:, other_column])
            return np.asarray(product * weights.gain**2)
        return np.asarray(np.einsum("ar,ar->a", loads[column], loads[other_column]))

    def _balance(self) -> FloatArray:
        """Return gb^T (P, k), the planes' slopes by the constants that may move.

        There are no rows without an intercept.
        """
        problem = self.problem
        if not problem.intercept:
            return np.zeros((0, len(self.columns)))
        plane_slopes = self.constant_slopes[:, None] * problem.C[self.columns]
        return np.array([problem.free(slopes) for slopes in plane_slopes]).T

    def _dual_objective(
        self,
        solution: "DualSolution",
        K: FloatArray,
        balance: FloatArray,
    ) -> float:
        """Return the bound of an x whose balance holds to rounding; 0 for another x."""
        x, multipliers = solution.x, solution.multipliers
        imbalance = np.abs(balance @ x)
        largest_slope = np.abs(balance).max(initial=0.0)
        if imbalance.max(initial=0.0) > BALANCE_TOLERANCE * largest_slope:
            return 0.0

        # The planes' objective changes by the imbalance times b, whose size is estimated.
        rounding = imbalance @ (1.0 + np.abs(multipliers))
        return max(float(self.offsets @ x - 0.5 * x @ K @ x - rounding), 0.0)

    def _minimizing_coefficients(self, solution: "DualSolution", ridge: float) -> FloatArray:
        """Return h (m, r) where the objective of the planes is least."""
        problem = self.problem
        column_slopes = np.zeros((len(problem.mean), len(problem.C)))
        for column in range(len(problem.C)):
            is_in_column = self.columns == column
            column_slopes[:, column] = solution.x[is_in_column] @ self.slopes[is_in_column]
        return np.asarray(-problem.pulled(column_slopes @ problem.C) / (2.0 * ridge))

    def _minimizing_constants(self, solution: "DualSolution", h: FloatArray) -> FloatArray:
        """Return b (P,) where the objective of the planes is least; zeros without an intercept."""
        problem = self.problem
        if not problem.intercept:
            return np.zeros(problem.weights.shape[2])
        return problem.free(-solution.multipliers - problem.mean @ problem.weights.combined(h))

    def _prune(self, x: FloatArray, most_planes: int) -> None:
        """Discard planes of no weight x that are not young, and aggregate those beyond a number.

        The aggregate of a column is the mean of its planes by weight: the bound does not change
        (Kiwiel 1990).
        """
        importance = np.where(self.ages < YOUNG_PASSES, np.inf, x)
        active = np.flatnonzero(importance > LEAST_WEIGHT)
        order = active[np.argsort(-importance[active], kind="stable")]
        most_planes = max(most_planes, int(np.sum(self.ages < YOUNG_PASSES)))
        kept = np.sort(order[:most_planes])
        merged = np.sort(order[most_planes:])

        merged_columns = np.unique(self.columns[merged])
        shares = np.zeros((len(merged_columns), len(x)))
        for number, column in enumerate(merged_columns):
            members = merged[self.columns[merged] == column]
            shares[number, members] = x[members] / x[members].sum()

        def merge(values: FloatArray) -> FloatArray:
            return np.concatenate([values[kept], shares @ values])

        self.slopes = merge(self.slopes)
        self.constant_slopes = merge(self.constant_slopes)
        self.offsets = merge(self.offsets)
        self.columns = np.concatenate([self.columns[kept], merged_columns])
        merged_ages = np.full(len(merged_columns), YOUNG_PASSES)
        self.ages = np.concatenate([self.ages[kept], merged_ages])


def plane_bytes(m: int, columns: int, fits: int) -> int:
    """Return the peak memory of bundles, in bytes.

    Parameters
    ----------
    m : int
        Features.
    columns : int
        Columns of values of each trial.
    fits : int
        Trials, each with planes of its own.
    """
    young_planes = columns * YOUNG_PASSES * POINTS
    planes = max(MOST_PLANES, young_planes) + columns + young_planes
    slope_numbers = planes * (2 * m * fits + 2 * m)
    return 8 * (slope_numbers + SQUARE_MATRICES * planes**2)


class DualSolution(NamedTuple):
    """Weights x (k,) of the planes, and the multipliers (P,) of the balance."""

    x: FloatArray
    multipliers: FloatArray


def solve_dual(
    K: FloatArray,
    a: FloatArray,
    columns: IntArray,
    balance: FloatArray,
    column_count: int,
    tolerance: float,
) -> DualSolution:
    """Maximize a x - x K x / 2 over x (k,) >= 0 by an interior-point method (Mehrotra 1992).

    The inequalities hold for every x that is returned. The balance holds to rounding if the
    method converges; it is stopped after `MOST_ITERATIONS`, or if its system is singular.

    Parameters
    ----------
    K : ndarray of shape (k, k)
        Symmetric, positive semidefinite.
    a : ndarray of shape (k,)
    columns : ndarray of int of shape (k,)
        The x of each column sum to 1 at most.
    balance : ndarray of shape (P, k)
        Constraints `balance` x = 0.
    column_count : int
    tolerance : float
        Distance from the maximum at which the method stops, about.
    """
    k = len(a)
    S = np.zeros((column_count, k))
    S[columns, np.arange(k)] = 1.0
    problem = _DualProblem(K=K, a=a, S=S, balance=balance)

    largest_slope = float(np.abs(balance).max(initial=0.0))
    iterate = problem.start(columns)
    for _ in range(MOST_ITERATIONS):
        imbalance = float(np.abs(balance @ iterate.x).max(initial=0.0))
        is_balanced = imbalance <= 0.01 * BALANCE_TOLERANCE * largest_slope
        if iterate.gap <= tolerance and is_balanced:
            break
        try:
            iterate = problem.next_iterate(iterate)
        except scipy.linalg.LinAlgError:
            break

    largest_sum = float((S @ iterate.x).max())
    return DualSolution(x=iterate.x / max(1.0, largest_sum), multipliers=iterate.multipliers)


class _Iterate(NamedTuple):
    """An iterate of the interior-point method, or a direction between two.

    Attributes
    ----------
    x : ndarray of shape (k,)
    s : ndarray of shape (c,)
        Slacks of the columns' sums, 1 - S x.
    z : ndarray of shape (k,)
        Multipliers of x >= 0.
    y : ndarray of shape (c,)
        Multipliers of s >= 0.
    multipliers : ndarray of shape (P,)
        Multipliers of the balance.
    """

    x: FloatArray
    s: FloatArray
    z: FloatArray
    y: FloatArray
    multipliers: FloatArray

    @property
    def gap(self) -> float:
        """Distance from the maximum, of an iterate that satisfies the constraints."""
        return float(self.x @ self.z + self.s @ self.y)

    def advance(
        self,
        direction: "_Iterate",
        primal_share: float,
        dual_share: float,
    ) -> "_Iterate":
        """Return the iterate at shares of a step, for primal and for dual variables."""
        return _Iterate(
            x=self.x + primal_share * direction.x,
            s=self.s + primal_share * direction.s,
            z=self.z + dual_share * direction.z,
            y=self.y + dual_share * direction.y,
            multipliers=self.multipliers + dual_share * direction.multipliers,
        )

    def primal_share(self, direction: "_Iterate") -> float:
        """Return the longest share of a step, 1 at most, with x and s not negative."""
        return min(_feasible_share(self.x, direction.x), _feasible_share(self.s, direction.s))

    def dual_share(self, direction: "_Iterate") -> float:
        """Return the longest share of a step, 1 at most, with z and y not negative."""
        return min(_feasible_share(self.z, direction.z), _feasible_share(self.y, direction.y))


def _feasible_share(values: FloatArray, step: FloatArray) -> float:
    """Return the longest share of a step, 1 at most, at which no value is negative."""
    is_decreasing = step < 0
    shares = -values[is_decreasing] / step[is_decreasing]
    return min(1.0, float(shares.min(initial=1.0)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _DualProblem:
    """Maximize a x - x K x / 2 over x >= 0 with S x <= 1 and balance x = 0.

    Attributes
    ----------
    K : ndarray of shape (k, k)
    a : ndarray of shape (k,)
    S : ndarray of shape (c, k)
    balance : ndarray of shape (P, k)
    """

    K: FloatArray
    a: FloatArray
    S: FloatArray
    balance: FloatArray

    def start(self, columns: IntArray) -> _Iterate:
        """Return the first iterate, in which the x of each column sum to one half."""
        x = (0.5 / np.maximum(self.S.sum(axis=1), 1.0))[columns]
        level = max(float(np.abs(self.a).max()), 1e-300)
        return _Iterate(
            x=x,
            s=1.0 - self.S @ x,
            z=np.full(len(x), level),
            y=np.full(len(self.S), level),
            multipliers=np.zeros(len(self.balance)),
        )

    def next_iterate(self, iterate: _Iterate) -> _Iterate:
        """Return the iterate after a predictor step and a corrector step (Mehrotra 1992).

        Raises
        ------
        LinAlgError
            If rounding makes the system of the step singular.
        """
        x, s, z, y, _ = iterate
        system = _NewtonSystem(self, iterate)

        predictor = system.solve(x * z, s * y)
        primal_share = iterate.primal_share(predictor)
        dual_share = iterate.dual_share(predictor)
        predicted = iterate.advance(predictor, primal_share, dual_share)

        mean_product = iterate.gap / (len(x) + len(s))
        centre = mean_product * (predicted.gap / iterate.gap) ** 3
        corrector = system.solve(
            x * z - centre + predictor.x * predictor.z,
            s * y - centre + predictor.s * predictor.y,
        )
        return iterate.advance(
            corrector,
            BOUNDARY_SHARE * iterate.primal_share(corrector),
            BOUNDARY_SHARE * iterate.dual_share(corrector),
        )


class _NewtonSystem:
    """The linear system of an interior-point step, factorized for several right-hand sides."""

    def __init__(self, problem: _DualProblem, iterate: _Iterate) -> None:
        K, a, S, balance = problem.K, problem.a, problem.S, problem.balance
        x, s, z, y, multipliers = iterate
        self._problem, self._iterate = problem, iterate
        self._dual_residual = K @ x - a - z + S.T @ y + balance.T @ multipliers
        self._sum_residual = S @ x + s - 1.0
        self._balance_residual = balance @ x

        H = K + (S.T * (y / s)) @ S
        H[np.diag_indices(len(x))] += z / x
        self._scale = 1.0 / np.sqrt(np.diag(H))
        H *= np.outer(self._scale, self._scale)
        H[np.diag_indices(len(x))] += JITTER
        self._factor = scipy.linalg.cho_factor(H, lower=True, overwrite_a=True, check_finite=True)

        self._solved_balance = np.zeros((0, len(x)))
        if len(balance):
            self._solved_balance = self._solve_rows(balance)
        self._schur = self._solved_balance @ balance.T

    def _solve_rows(self, rows: FloatArray) -> FloatArray:
        """Return H^-1 times each row of an array (..., k)."""
        scaled = (self._scale * rows).T
        solved = scipy.linalg.cho_solve(self._factor, scaled, check_finite=False)
        return np.asarray(self._scale * solved.T)

    def solve(self, xz: FloatArray, sy: FloatArray) -> _Iterate:
        """Return the direction that takes the products x z and s y down by `xz` and `sy`."""
        problem, iterate = self._problem, self._iterate
        x, s, z, y, _ = iterate
        sum_part = problem.S.T @ ((sy - y * self._sum_residual) / s)
        unbalanced = self._solve_rows(-self._dual_residual - xz / x + sum_part)

        multiplier_step = np.zeros(0)
        if len(problem.balance):
            right = problem.balance @ unbalanced + self._balance_residual
            # The balance of losses whose constants are tied together is singular.
            solved = np.linalg.lstsq(self._schur, right, rcond=1e-12)[0]
            multiplier_step = np.asarray(solved, dtype=np.float64)

        dx = unbalanced - multiplier_step @ self._solved_balance
        ds = -self._sum_residual - problem.S @ dx
        return _Iterate(
            x=dx,
            s=ds,
            z=-(xz + z * dx) / x,
            y=-(sy + y * ds) / s,
            multipliers=multiplier_step,
        )
