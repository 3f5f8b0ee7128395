"""Lower bounds of an objective whose loss has kinks, and points that raise them: a bundle method.

Each pass returns, at functions f_i, the mean loss R_c of every column c of values and its slopes. These bound R_c from
below everywhere (cutting planes):

    R_c(h, b) >= max over i of a_ci + <g_ci, (h, b)>,      and R_c >= 0, as every loss is

The minimum of these bounds plus ridge |h|^2 is a lower bound of the least objective, and its minimiser is a good point
for the next pass (Teo, Vishwanathan, Smola & Le 2010, Alg. 1; Joachims 2006). One plane for each column, in place of
one for their sum, is the disaggregated form (Birge & Louveaux 1988). The dual problem is

    max over x >= 0 of a x - |g x|^2 / (4 ridge),    the x of each column summing to 1 at most, and gb x = 0,

so that every feasible x gives a bound, however roughly the maximum was found. Slopes of the smooth loss of a width
bound the loss as well (Nesterov 2005, section 4): the points of L-BFGS give planes too. Planes do not depend on the
ridge, so that they serve the next ridge of a path."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import scipy.linalg

from dorff.moments import FloatArray
from dorff.solvers.objective import LossProblem, State
from dorff.solvers.system import IntArray

MOST_PLANES: Final = 400  # that are kept, besides one for each column
MOST_OF_SEVERAL: Final = 250  # where several trials have planes of their own
MOST_COLUMNS: Final = 50  # of values: a pass adds POINTS planes for each
POINTS: Final = 3  # that a pass evaluates of a trial: that of L-BFGS, and two of the bundle
SQUARES: Final = 8  # matrices of planes by planes, at a time
LEAST_WEIGHT: Final = 1e-8  # of a plane that is kept
YOUNG: Final = 2  # passes whose planes are kept, whatever they weigh
ITERATIONS: Final = 40  # of the interior-point method
BACK: Final = 0.995  # of a step to the boundary
JITTER: Final = 1e-12  # of a system with a diagonal of ones
UNBALANCED: Final = 1e-8  # of gb x, over the largest gb: a bound with more is none


class Bound(NamedTuple):
    """A lower bound of the objective, and the minimiser of the planes' objective."""

    lower: float
    h: FloatArray
    b: FloatArray


@dataclass(eq=False)
class Bundle:
    """Cutting planes of one trial's rows, for any ridge above 0.

    `slopes` (k, m) are those by W, of features about their mean; `levels` (k,) those by the constant; `values` (k,)
    the planes at zero; `columns` (k,) the column of values that a plane bounds; `ages` (k,) counts passes."""

    problem: LossProblem
    slopes: FloatArray = field(init=False)
    levels: FloatArray = field(init=False)
    values: FloatArray = field(init=False)
    columns: IntArray = field(init=False)
    ages: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self.slopes = np.zeros((0, len(self.problem.mean)))
        self.levels, self.values = np.zeros(0), np.zeros(0)
        self.columns, self.ages = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        weights, C = self.problem.weights, self.problem.C
        self._load = weights.root[0] @ C.T if weights.separable else np.einsum("arp,cp->car", weights.psi, C)

    @staticmethod
    def serves(problem: LossProblem, ridge: float) -> bool:
        """Return whether bounds are made: for a loss with kinks, few columns, no manifold terms, a ridge above 0."""
        return problem.loss.kinked and len(problem.C) <= MOST_COLUMNS and not problem.terms and ridge > 0

    def add(self, states: Sequence[State]) -> None:
        """Add the planes of a pass's states."""
        mean, self.ages = self.problem.mean, self.ages + 1
        for state in states:
            values, slopes = state.planes
            c = len(values)
            self.slopes = np.vstack([self.slopes, slopes[:-1].T - np.outer(slopes[-1], mean)])
            self.levels, self.values = np.append(self.levels, slopes[-1]), np.append(self.values, values)
            self.columns = np.append(self.columns, np.arange(c))
            self.ages = np.append(self.ages, np.zeros(c, dtype=np.int64))

    def bound(self, ridge: float, close: float, most: int = MOST_PLANES) -> Bound:
        """Return the bound at a ridge above 0, within about `close` of the best one that the planes give.

        Planes without weight in it are dropped; those beyond `most` are aggregated."""
        problem, columns = self.problem, self.columns
        c, k = len(problem.C), len(columns)
        K = np.empty((k, k))
        for one in range(c):
            of_one = np.flatnonzero(columns == one)
            for other in range(one + 1):
                of_other = np.flatnonzero(columns == other)
                part = (self.slopes[of_one] * self._weights(one, other)) @ self.slopes[of_other].T
                K[np.ix_(of_one, of_other)], K[np.ix_(of_other, of_one)] = part, part.T
        K /= 2.0 * ridge
        balance = np.zeros((0, k))
        if problem.intercept:
            by_output = np.array([problem.free(row) for row in self.levels[:, None] * problem.C[columns]])
            balance = by_output.T
        x, multipliers = solve_dual(K, self.values, columns, balance, c, close)
        total = np.zeros((len(problem.mean), c))
        for one in range(c):
            some = columns == one
            total[:, one] = x[some] @ self.slopes[some]
        h = -problem.pulled(total @ problem.C) / (2.0 * ridge)
        b = np.zeros(problem.weights.shape[2])
        if problem.intercept:
            b = problem.free(-multipliers - problem.mean @ problem.weights.combined(h))
        off = np.abs(balance @ x)
        lower = float(self.values @ x - 0.5 * x @ K @ x - off @ (1.0 + np.abs(multipliers)))
        if off.max(initial=0.0) > UNBALANCED * np.abs(balance).max(initial=0.0):
            lower = 0.0
        self._forget(x, most)
        return Bound(max(lower, 0.0), h, b)

    def _weights(self, one: int, other: int) -> FloatArray:
        """Return the weights (m,) of features in the inner product, by h, of slopes of two columns."""
        if self.problem.weights.separable:
            return np.asarray(float(self._load[:, one] @ self._load[:, other]) * self.problem.weights.gain**2)
        return np.asarray(np.einsum("ar,ar->a", self._load[one], self._load[other]))

    def _forget(self, x: FloatArray, most: int) -> None:
        """Keep the planes of positive weight x and the newest ones; aggregate the lightest beyond `most`.

        The aggregate of a column is their mean by weight, which keeps the bound (Kiwiel 1990)."""
        heavy = np.where(self.ages < YOUNG, np.inf, x)
        counted = np.flatnonzero(heavy > LEAST_WEIGHT)
        order = counted[np.argsort(-heavy[counted], kind="stable")]
        kept, light = np.sort(order[:most]), np.sort(order[most:])
        old, share = (self.slopes, self.levels, self.values), np.zeros((0, len(x)))
        for column in np.unique(self.columns[light]):
            some = light[self.columns[light] == column]
            row = np.zeros(len(x))
            row[some] = x[some] / x[some].sum()
            share = np.vstack([share, row])
        self.slopes, self.levels, self.values = (np.concatenate([part[kept], share @ part]) for part in old)
        self.columns = np.concatenate([self.columns[kept], np.unique(self.columns[light])])
        self.ages = np.concatenate([self.ages[kept], np.full(len(share), YOUNG)])


def plane_bytes(m: int, columns: int, fits: int) -> int:
    """Return the memory of the planes of so many trials, each of m features and so many columns, in bytes."""
    held = MOST_PLANES + columns * (1 + YOUNG * POINTS)
    return 8 * (held * (2 * m * fits + 2 * m) + SQUARES * held**2)


def solve_dual(
    K: FloatArray, a: FloatArray, groups: IntArray, balance: FloatArray, count: int, close: float
) -> tuple[FloatArray, FloatArray]:
    """Maximise a x - x K x / 2 over x (k,) >= 0 with sums of 1 at most in each group and `balance` x = 0.

    An interior-point method (Mehrotra 1992), stopped within about `close` of the maximum. Returns x and the multipliers
    of the balance. The inequalities hold whatever happens; the balance holds to rounding if the method converges."""
    k, level = len(a), max(float(np.abs(a).max()), 1e-300)
    largest = float(np.abs(balance).max(initial=0.0))
    S = np.zeros((count, k))
    S[groups, np.arange(k)] = 1.0
    x = (0.5 / np.maximum(S.sum(axis=1), 1.0))[groups]
    at = _Interior(x, 1.0 - S @ x, np.full(k, level), np.full(count, level), np.zeros(len(balance)))
    for _ in range(ITERATIONS):
        off = float(np.abs(balance @ at.x).max(initial=0.0))
        if at.gap <= close and off <= 0.01 * UNBALANCED * largest:
            break
        try:
            at = at.step(K, a, S, balance)
        except scipy.linalg.LinAlgError:
            break
    x = at.x / max(1.0, float((S @ at.x).max()))
    return x, at.multipliers


class _Interior(NamedTuple):
    """An iterate of the interior-point method: x, the slacks s of the sums, and the multipliers of all constraints."""

    x: FloatArray
    s: FloatArray
    z: FloatArray
    y: FloatArray
    multipliers: FloatArray

    @property
    def gap(self) -> float:
        return float(self.x @ self.z + self.s @ self.y)

    def step(self, K: FloatArray, a: FloatArray, S: FloatArray, balance: FloatArray) -> "_Interior":
        """Return the next iterate. LinAlgError if rounding makes its system singular."""
        x, s, z, y, multipliers = self
        k, mu = len(x), self.gap / (len(x) + len(s))
        dual = K @ x - a - z + S.T @ y + balance.T @ multipliers
        primal, unbalanced = S @ x + s - 1.0, balance @ x
        H = K + (S.T * (y / s)) @ S
        H[np.diag_indices(k)] += z / x
        root = 1.0 / np.sqrt(np.diag(H))
        H *= np.outer(root, root)
        H[np.diag_indices(k)] += JITTER
        factor = scipy.linalg.cho_factor(H, lower=True, overwrite_a=True, check_finite=True)

        def solved(right: FloatArray) -> FloatArray:
            return np.asarray(root * scipy.linalg.cho_solve(factor, (root * right).T, check_finite=False).T)

        of_balance = solved(balance) if len(balance) else np.zeros((0, k))
        schur = of_balance @ balance.T

        def direction(xz: FloatArray, sy: FloatArray) -> "_Interior":
            right = -dual - xz / x + S.T @ ((sy - y * primal) / s)
            free = solved(right)
            more = multipliers
            if len(balance):
                more = np.asarray(np.linalg.lstsq(schur, balance @ free + unbalanced, rcond=1e-12)[0], dtype=np.float64)
            dx = free - more @ of_balance
            ds = -primal - S @ dx
            return _Interior(dx, ds, -(xz + z * dx) / x, -(sy + y * ds) / s, more)

        first = direction(x * z, s * y)
        primal_share, dual_share = self._reach(first)
        tried = float((x + primal_share * first.x) @ (z + dual_share * first.z))
        tried += float((s + primal_share * first.s) @ (y + dual_share * first.y))
        centre = mu * (tried / self.gap) ** 3
        found = direction(x * z - centre + first.x * first.z, s * y - centre + first.s * first.y)
        primal_share, dual_share = (BACK * share for share in self._reach(found))
        return _Interior(
            x + primal_share * found.x,
            s + primal_share * found.s,
            z + dual_share * found.z,
            y + dual_share * found.y,
            multipliers + dual_share * found.multipliers,
        )

    def _reach(self, by: "_Interior") -> tuple[float, float]:
        """Return the longest feasible shares of a step, 1 at most, for the primal and the dual variables."""
        return min(_share(self.x, by.x), _share(self.s, by.s)), min(_share(self.z, by.z), _share(self.y, by.y))


def _share(at: FloatArray, by: FloatArray) -> float:
    down = by < 0
    return min(1.0, float((-at[down] / by[down]).min(initial=1.0)))
