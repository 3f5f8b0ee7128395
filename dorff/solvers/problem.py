"""From moments and operator weights to linear systems, the same for every kernel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

import dorff.solvers.system as system
from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray, Solvable
from dorff.solvers.outputs import Pattern, SplitProblem
from dorff.solvers.system import Penalty, PenaltyTerm


class Units(NamedTuple):
    """What targets are divided by: a `scale` (q,), and the roots of relative variances `noise` (q,)."""

    scale: FloatArray
    noise: FloatArray


Parts = Sequence[Solvable]  # the moments of some rows, one for each pattern of targets


@dataclass(frozen=True, eq=False)
class Problem:
    """min over h of 1/l sum |y - C f|^2 + ridge |h|^2, f = sum_a phi_a psi_a^T h_a + b; b free and without ridge.

    Weights that are one matrix for every feature give G = S and a the eigenvalues of psi C*C psi^T: the Stein equation
    of Brault (2016) 5.1, with N ridge for the paper's lambda. Others give the block system G[(a,i),(b,j)] = S_ab psi_a
    C*C psi_b^T (Minh 2016, eq. 74), a = [1], of those rows of psi that are not zero. The intercept is eliminated,
    exactly. Rows that miss targets have moments of their own, one for each pattern of what they have: the systems of
    the patterns add, and fall apart by targets where these do not touch each other (a diagonal output matrix, C = I).

    Where weights are one matrix and C = I, `directions` (p, p) has orthonormal columns V: the problem is one of the
    scaled targets V_j . y alone for each j, in a column of a block where V_j . f is not a constant. V = I where each
    row of the matrix belongs to one target; None elsewhere. `unit` is the relative rounding error of the system: that
    of the rows' sums, or that of the penalties' in the worst block.

    Penalties add weight <f, M f> for each (`Penalty`). They are as rows more, with targets of 0 for f, of which there
    are the `penalty_borders`; but they count for no rows, so that l and the entries observed stay the labelled rows'.
    What they make of the least objective is in the noise variance: f has the prior of both, ridge and penalties.

    `noise` (q,) are variances that the scaled targets' noise has relative to one another, all 1 if None: each target,
    and its row of C, is divided by the root of its own. f, b and h keep their units. No `directions` then."""

    blocks: tuple[system.Block, ...]
    weights: OperatorWeights
    rows: tuple[system.Rows, ...]
    scale: FloatArray
    observe: FloatArray | None
    intercept: bool
    directions: FloatArray | None = None
    unit: float = system.EPS
    penalty_borders: tuple[system.BorderedSums, ...] = ()
    noise: FloatArray | None = None

    @classmethod
    def of(
        cls, parts: Solvable | Parts, weights: OperatorWeights, *, intercept: bool = True,
        scale: FloatArray | Units | None = None, observe: FloatArray | None = None, penalties: Sequence[Penalty] = (),
    ) -> "Problem":  # fmt: skip
        """Of the moments of some rows, one for each pattern of targets. `scale` (q,) divides the targets, and so does
        what `Units` add to it, without penalties; `observe` is C (q, p), the identity if None. InputError for a system
        wider than LAPACK can count, or penalties of another size."""
        scale, noise = (scale.scale, scale.noise) if isinstance(scale, Units) else (scale, None)
        parts = [parts] if isinstance(parts, Solvable) else list(parts)
        back = kept_shift(parts[0].y0, observe, patterns=len(parts), intercept=intercept)
        scale = np.ones(parts[0].q) if scale is None else scale
        penalties = [penalty for penalty in penalties if penalty.weight > 0]
        for penalty in penalties:
            penalty.check(weights)
        whole = len(parts) == 1 and bool(parts[0].mask.all())
        split = SplitProblem.of(weights, observe, [penalty.outputs for penalty in penalties], whole=whole, noise=noise)
        rows = np.broadcast_to(np.any(weights.root != 0, axis=2), weights.shape[:2])
        check_width(len(weights.gain) if split else int(np.count_nonzero(rows)))
        directions = None if split is None else split.directions
        problem = cls((), weights, (), scale, observe, intercept, directions, noise=noise)
        sums = [_unpacked(part, problem.units, back) for part in parts]
        problem = replace(problem, rows=tuple(rows for rows, _, _ in sums))
        terms = [penalty.term(weights, penalty.weight * problem.l, problem.constant) for penalty in penalties]
        problem = replace(problem, penalty_borders=tuple(term.sums().border for term in terms))
        if split is None:
            blocks: tuple[system.Block, ...] = (_coupled(problem, sums, terms),)
        else:
            blocks = split.blocks(weights, sums, terms, intercept=intercept)
        unit = max(*(part.unit for part in parts), *(block.unit for block in blocks))
        return replace(problem, blocks=blocks, unit=unit)

    @property
    def C(self) -> FloatArray:
        """The observation operator (q, p), its rows divided as the targets are."""
        C = np.eye(len(self.scale)) if self.observe is None else self.observe
        return C if self.noise is None else C / np.sqrt(self.noise)[:, None]

    @property
    def units(self) -> FloatArray:
        """What the targets are divided by, (q,)."""
        return self.scale if self.noise is None else self.scale * np.sqrt(self.noise)

    @cached_property
    def l(self) -> float:  # noqa: E743 - Minh's and DESIGN's symbol
        """The rows' summed weight."""
        return sum(rows.n for rows in self.rows)

    @property
    def constant(self) -> FloatArray:
        """(p,): what the intercept has of y0 before it is solved for, in the scaled targets' units."""
        return self._first / self.outputs if self.intercept else np.zeros(self.weights.shape[2])

    @property
    def _first(self) -> FloatArray:
        """The same in the targets' units."""
        y0 = self.rows[0].y0
        return y0 if self.observe is None else np.asarray(np.linalg.pinv(self.observe) @ y0)

    @property
    def outputs(self) -> FloatArray:
        """The outputs' scale (p,)."""
        return self.scale if self.observe is None else np.full(self.weights.shape[2], self.scale[0])

    def centres(self, feature: system.IntArray, psi: FloatArray) -> FloatArray:
        """(k, p): what the intercept takes of features that go with rows psi (k, p); zeros without one."""
        centre = np.zeros_like(psi)
        if self.intercept:
            for one in self.borders:
                centre += one.s[feature, None] * ((psi @ one.C.T) @ one.C)
            centre = centre @ self.free[0]
        return centre

    @cached_property
    def free(self) -> tuple[FloatArray, FloatArray]:
        """Of the intercept's own system: the inverse of sum n C*C (p, p), and sum C* y (p,), with the penalties'."""
        inverse, y = system.free_system(self.borders)
        return inverse, y[:, 0]

    @cached_property
    def borders(self) -> list[system.BorderedSums]:
        """The borders of the rows, and of the penalties."""
        C, none = self.C, np.empty((0, 0))
        seen = [system.BorderedSums(none, one.s, one.n, C[one.mask], none, one.y[one.mask, None]) for one in self.rows]
        return [*seen, *self.penalty_borders]

    @cached_property
    def totals(self) -> system.Totals:
        """What there is to explain: of each direction, or of all together."""
        inverse, y = self.free
        free = self._along(y, inverse @ y) * self.intercept
        of_penalties = sum((one.C.T @ one.y[:, 0] for one in self.penalty_borders), np.zeros(len(y)))
        held = -self._along(self.constant, of_penalties)
        if self.directions is not None:
            return _totals_apart(self, self.directions, held, free)
        squares = float(sum(np.trace(rows.squares) for rows in self.rows)) + held
        entries = sum(rows.count * np.count_nonzero(rows.mask) for rows in self.rows)
        weight = sum(rows.n * np.count_nonzero(rows.mask) for rows in self.rows)
        values = np.linalg.eigvalsh(sum(rows.n * self.C[rows.mask].T @ self.C[rows.mask] for rows in self.rows))
        values = values[values > system.OPEN * values[-1]] if self.intercept else values[:0]
        numbers = (squares - free, squares, entries, weight, len(values), np.log(values).sum())
        return system.Totals(*(np.array([number], dtype=np.float64).ravel() for number in numbers))

    def _along(self, u: FloatArray, v: FloatArray) -> FloatArray:
        """u . v of vectors (p,) of all outputs, in each direction (J,); J = 1 where there are none."""
        if (V := self.directions) is None:
            return np.array([u @ v])
        return np.asarray(np.sum((u.reshape(-1, len(V)) @ V) * (v.reshape(-1, len(V)) @ V), axis=0))

    @cached_property
    def log_units(self) -> float:
        """By how much the log density of the targets falls when scaled ones are written in their own units."""
        noise = 0.0 if self.noise is None else float(0.5 * np.log(self.noise) @ self.entries)
        if self.observe is not None:
            return noise + float(np.log(self.scale[0]) * np.sum(self.totals.entries - self.totals.spent))
        return noise + float(np.log(self.scale) @ (self.entries - (self.entries > 0) * self.intercept))

    @property
    def entries(self) -> FloatArray:
        """How many rows have each target, (q,)."""
        return np.asarray(np.sum([rows.count * rows.mask for rows in self.rows], axis=0), dtype=np.float64)

    def outputs_apart(self) -> FloatArray:
        """`directions` (p, p), or the InputError that says why outputs cannot have ridges of their own."""
        if self.directions is None:
            kernel = "a kernel that is one scalar kernel times a matrix (a diagonal one where rows miss targets)"
            remedy = "give one ridge for all outputs"
            raise InputError(f"ridge_per_output: needs {kernel} and targets that are the outputs; {remedy}")
        return self.directions

    def shifts(self, block: system.Block, ridge: float | FloatArray) -> FloatArray:
        """l ridge (c,) of a block's columns; `ridge` is one number, or (p,) with one for each direction. InputError
        where outputs do not fall apart."""
        if np.ndim(ridge) == 0:
            return np.full(len(block.a), self.l * ridge)
        self.outputs_apart()
        return np.asarray(self.l * np.asarray(ridge)[block.columns])

    def coefficients(self, solved: Sequence[FloatArray]) -> FloatArray:
        """h (m, r) from the blocks' solutions."""
        h = np.zeros(self.weights.shape[:2])
        for block, x in zip(self.blocks, solved, strict=True):
            if block.rotation is None:
                h[block.at] = x[:, 0]
            else:
                h[:, block.at] += x @ block.rotation.T  # a block may have some of the columns only
        return h

    def bias(self, W: FloatArray) -> FloatArray:
        """The intercept (p,), in the targets' units, that goes with weights W (m, p) in the scaled targets'. Where C
        leaves it open it is the smallest. A `scale` of several numbers goes with C = I."""
        if not self.intercept:
            return np.zeros(W.shape[1])
        inverse, y = self.free
        b = inverse @ (y - sum(one.C.T @ (one.C @ (one.s @ W)) for one in self.borders))
        return np.asarray(self._first + self.outputs * b)


def kept_shift(y0: FloatArray, observe: FloatArray | None, *, patterns: int, intercept: bool) -> FloatArray:
    """The part (q,) of y0 that no intercept makes up for. InputError where rows have several patterns of targets, the
    rows of `observe` depend on each other, and there is a y0."""
    independent = observe is None or np.linalg.matrix_rank(observe) == len(observe)
    if patterns > 1 and not independent and np.any(y0):
        raise InputError("observe: where rows miss targets its rows must be linearly independent; drop such rows")
    if independent or not intercept or observe is None:
        return np.zeros(len(y0)) if intercept else y0
    return np.asarray(y0 - observe @ (np.linalg.pinv(observe) @ y0))


def _unpacked(moments: Solvable, scale: FloatArray, back: FloatArray) -> Pattern:
    """The sums of one pattern, of the targets less y0, as they are in the moments, with `back` (q,) added again."""
    m, mask, y0, full = moments.m, moments.mask, moments.y0, moments.full
    n, s, y = float(full[m, m]), full[:m, m].copy(), full[m, m + 1 :].copy()
    R, squares = full[:m, m + 1 :], full[m + 1 :, m + 1 :]
    if np.any(back):
        R = R + np.outer(s, back)
        squares = squares + np.outer(back, y) + np.outer(y, back) + n * np.outer(back, back)
        y += n * back
    squares = np.where(np.outer(mask, mask), squares / np.outer(scale, scale), 0.0)
    rows = system.Rows(s, np.where(mask, y / scale, 0.0), squares, n, moments.n, y0, mask)
    return rows, full[:m, :m], np.where(mask, R / scale, 0.0)


def check_width(k: int) -> None:
    """InputError for a dense system of k unknowns where LAPACK could not count its entries."""
    if k > system.LARGEST_DIRECT:
        problem = f"features.count: the system has {k} unknowns, LAPACK's 32-bit numbers reach {system.LARGEST_DIRECT}"
        raise InputError(f"{problem}; lower the count, or set solve.route: cg, which does not form it")


def _coupled(problem: Problem, sums: Sequence[Pattern], terms: Sequence[PenaltyTerm]) -> system.Block:
    """One system for everything."""
    weights, C = problem.weights, problem.C
    feature, row = np.nonzero(np.broadcast_to(np.any(weights.root != 0, axis=2), weights.shape[:2]))
    bordered = [
        system.BorderedSums(S, one.s, one.n, C[one.mask], R[:, one.mask, None], one.y[one.mask, None])
        for one, S, R in sums
    ]
    bordered += [term.sums() for term in terms]
    psi = weights.psi[feature, row]
    G, rhs, removed, unit = system.assembled(psi, feature, bordered, intercept=problem.intercept, row=row)
    return system.Block(G, np.ones(1), rhs, (feature, row), removed=removed, unit=unit)


def _totals_apart(problem: Problem, V: FloatArray, held: FloatArray, free: FloatArray) -> system.Totals:
    """A direction each; where some rows miss targets V = I."""
    squares = np.sum([np.einsum("ij,ij->j", V, rows.squares @ V) for rows in problem.rows], axis=0) + held
    weight = np.sum([rows.n * rows.mask for rows in problem.rows], axis=0)
    spent = np.where(weight > 0, 1.0, 0.0) * problem.intercept
    # One direction of the intercept, that C takes to V_j: of a length that every row of C has.
    some = np.where(spent > 0, weight * np.sum(problem.C[0] ** 2), 1.0)
    summed = (np.sqrt(np.sum([np.diag(rows.squares) for rows in problem.rows], axis=0)) @ np.abs(V)) ** 2
    return system.Totals(squares - free, summed + held, problem.entries, weight, spent, np.log(some))


def target_covariance(parts: Solvable | Parts) -> FloatArray:
    """Covariance (q, q) of the targets about their means, in their own units. Where rows miss targets each entry is of
    the rows that have both, and what is then not positive is left out."""
    parts = [parts] if isinstance(parts, Solvable) else parts
    q = parts[0].q
    n, y, squares = np.zeros((q, q)), np.zeros((q, q)), np.zeros((q, q))
    for part in parts:
        corner, both = part.corner, np.outer(part.mask, part.mask)
        n += corner[0, 0] * both
        y += corner[0, 1:, None] * both  # of the first of the two, over the rows that have both
        squares += corner[1:, 1:] * both
    least = np.maximum(n, np.finfo(np.float64).tiny)
    covariance = squares / least - (y / least) * (y / least).T
    if len(parts) == 1:
        return covariance
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
