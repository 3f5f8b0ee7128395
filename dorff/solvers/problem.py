"""From moments and operator weights to linear systems, the same for every kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any, final

import numpy as np
import scipy.linalg

from dorff.errors import InputError
from dorff.moments import FloatArray, Solvable
from dorff.solvers.system import EPS, LARGEST_DIRECT, Block, IntArray, Rows, Totals
from dorff.weights import OperatorWeights

Parts = Sequence[Solvable]  # the moments of some rows, one for each pattern of targets


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """min over h of 1/l sum |y - C f|^2 + ridge |h|^2, f = sum_a phi_a psi_a^T h_a + b; b free and without ridge.

    Weights that are one matrix for every feature give G = S and a the eigenvalues of psi C*C psi^T: the Stein
    equation of Brault (2016) 5.1, with N ridge for the paper's lambda. Others give the block system
    G[(a,i),(b,j)] = S_ab psi_a C*C psi_b^T (Minh 2016, eq. 74), a = [1], of those rows of psi that are not zero.
    The intercept is eliminated, exactly. Rows that miss targets have moments of their own, one for each pattern of
    what they have: the systems of the patterns add, and fall apart by targets where these do not touch each other (a
    diagonal output matrix, C = I).

    Where weights are one matrix and C = I, `directions` (p, p) has orthonormal columns V: the problem is one of the
    scaled targets V_j . y alone for each j, in a column of a block where V_j . f is not a constant. V = I where each
    row of the matrix belongs to one target; None elsewhere. `unit` is the relative rounding error of the sums.
    """

    blocks: tuple[Block, ...]
    weights: OperatorWeights
    rows: tuple[Rows, ...]
    scale: FloatArray
    observe: FloatArray | None
    intercept: bool
    directions: FloatArray | None = None
    unit: float = EPS

    @classmethod
    def of(
        cls, parts: Solvable | Parts, weights: OperatorWeights, *, intercept: bool = True,
        scale: FloatArray | None = None, observe: FloatArray | None = None,
    ) -> Problem:  # fmt: skip
        """Of the moments of some rows, one for each pattern of targets.

        `scale` (q,) divides the targets; `observe` is C (q, p), the identity if None. InputError for a system wider
        than LAPACK can count, before it is formed.
        """
        parts = [parts] if isinstance(parts, Solvable) else list(parts)
        if observe is not None and len(parts) > 1 and np.linalg.matrix_rank(observe) < len(observe):
            raise InputError("observe: where rows miss targets its rows must be linearly independent; drop such rows")
        scale = np.ones(parts[0].q) if scale is None else scale
        whole = len(parts) == 1 and bool(parts[0].mask.all())
        separate = weights.separable and (whole or untouched(weights.root[0], observe))
        check_width(len(weights.gain) if separate else _width(weights))
        back = kept_shift(parts[0].y0, observe) if intercept else parts[0].y0
        sums = [_unpacked(part, scale, back) for part in parts]
        rows, unit = tuple(rows for rows, _, _ in sums), max(part.unit for part in parts)
        empty = cls((), weights, rows, scale, observe, intercept, unit=unit)
        return _separate(empty, sums) if separate else replace(empty, blocks=(_coupled(empty, sums),))

    @property
    def C(self) -> FloatArray:
        """The observation operator (q, p)."""
        return np.eye(len(self.scale)) if self.observe is None else self.observe

    @cached_property
    def l(self) -> float:  # noqa: E743 - Minh's and DESIGN's symbol
        """The rows' summed weight."""
        return sum(rows.n for rows in self.rows)

    @cached_property
    def free(self) -> tuple[FloatArray, FloatArray]:
        """Of the intercept's own system: the inverse of sum n C*C (p, p), and sum C* y (p,)."""
        square = sum(rows.n * self.C[rows.mask].T @ self.C[rows.mask] for rows in self.rows)
        y = sum(self.C[rows.mask].T @ rows.y[rows.mask] for rows in self.rows)
        return np.asarray(np.linalg.pinv(square, hermitian=True)), np.asarray(y)

    @cached_property
    def energy(self) -> float:
        """The scaled targets' squares about what the intercept alone takes."""
        return float(self.totals.energy.sum())

    @cached_property
    def totals(self) -> Totals:
        """What there is to explain: of each direction, or of all together."""
        if self.directions is not None:
            return _totals_apart(self, self.directions)
        squares = float(sum(np.trace(rows.squares) for rows in self.rows))
        entries = sum(rows.count * np.count_nonzero(rows.mask) for rows in self.rows)
        weight = sum(rows.n * np.count_nonzero(rows.mask) for rows in self.rows)
        inverse, y = self.free
        values = np.linalg.eigvalsh(inverse)
        values = values[values > 1e-12 * values[-1]] if self.intercept else values[:0]
        free = float(y @ inverse @ y) if self.intercept else 0.0
        numbers = (squares - free, squares, entries, weight, len(values), -np.log(values).sum())
        return Totals(*(np.array([number], dtype=np.float64) for number in numbers))

    @cached_property
    def log_units(self) -> float:
        """By how much the log density of the targets falls when scaled ones are written in their own units."""
        if self.observe is not None:
            return float(np.log(self.scale[0]) * np.sum(self.totals.entries - self.totals.spent))
        entries = np.sum([rows.count * rows.mask for rows in self.rows], axis=0)
        return float(np.log(self.scale) @ (entries - (entries > 0) * self.intercept))

    def outputs_apart(self) -> FloatArray:
        """`directions` (p, p), or the InputError that says why outputs cannot have ridges of their own."""
        if self.directions is None:
            raise InputError(
                "ridge_per_output: needs a kernel that is one scalar kernel times a matrix (a diagonal one where rows "
                "miss targets) and targets that are the outputs; give one ridge for all outputs"
            )
        return self.directions

    def shifts(self, block: Block, ridge: float | FloatArray) -> FloatArray:
        """l ridge (c,) of a block's columns; `ridge` is one number, or (p,) with one for each direction.

        InputError where outputs do not fall apart.
        """
        if np.ndim(ridge) == 0:
            return np.full(len(block.a), self.l * ridge)
        if np.shape(ridge) != (p := len(self.outputs_apart()),):
            raise InputError(f"ridge: wanted one number, or one for each of {p} outputs; got shape {np.shape(ridge)}")
        return np.asarray(self.l * np.asarray(ridge)[block.columns])

    def coefficients(self, solved: Sequence[FloatArray]) -> FloatArray:
        """h (m, r) from the blocks' solutions."""
        h = np.zeros(self.weights.shape[:2])
        for block, x in zip(self.blocks, solved, strict=True):
            block.place(h, x)
        return h

    def bias(self, W: FloatArray) -> FloatArray:
        """The intercept (p,), in the targets' units, that goes with weights W (m, p) in the scaled targets'.

        Where C leaves it open it is the smallest. A `scale` of several numbers goes with C = I.
        """
        if not self.intercept:
            return np.zeros(W.shape[1])
        inverse, y = self.free
        seen = sum(self.C[rows.mask].T @ (self.C[rows.mask] @ (rows.s @ W)) for rows in self.rows)
        b = inverse @ (y - seen)
        y0 = self.rows[0].y0
        if self.observe is None:
            return np.asarray(y0 + self.scale * b)
        return np.asarray(np.linalg.pinv(self.observe) @ y0 + self.scale[0] * b)


_Sums = tuple[Rows, FloatArray, FloatArray]  # and S (m, m), R (m, q) of the scaled targets


def kept_shift(y0: FloatArray, observe: FloatArray | None) -> FloatArray:
    """The part (q,) of y0 that no intercept makes up for."""
    if observe is None or np.linalg.matrix_rank(observe) == len(observe):
        return np.zeros(len(y0))
    return np.asarray(y0 - observe @ (np.linalg.pinv(observe) @ y0))


def _unpacked(moments: Solvable, scale: FloatArray, back: FloatArray) -> _Sums:
    """The sums of one pattern, of the targets less y0, as they are in the moments, with `back` (q,) added again."""
    m, mask, y0, full = moments.m, moments.mask, moments.y0, moments.full
    n, s, y = float(full[m, m]), full[:m, m].copy(), full[m, m + 1 :].copy()
    R, squares = full[:m, m + 1 :], full[m + 1 :, m + 1 :]
    if np.any(back):
        R = R + np.outer(s, back)
        squares = squares + np.outer(back, y) + np.outer(y, back) + n * np.outer(back, back)
        y += n * back
    squares = np.where(np.outer(mask, mask), squares / np.outer(scale, scale), 0.0)
    rows = Rows(s, np.where(mask, y / scale, 0.0), squares, n, moments.n, y0, mask)
    return rows, full[:m, :m], np.where(mask, R / scale, 0.0)


def untouched(root: FloatArray, observe: FloatArray | None) -> bool:
    """Whether each row of the root belongs to one target alone, and to each target at most one row."""
    entries = root != 0
    return observe is None and bool(np.all(entries.sum(axis=1) == 1) and np.all(entries.sum(axis=0) <= 1))


def _width(weights: OperatorWeights) -> int:
    """Unknowns of a system for everything."""
    some = np.any(weights.root != 0, axis=2)
    return int(np.count_nonzero(np.broadcast_to(some, weights.shape[:2])))


def check_width(k: int) -> None:
    """InputError for a dense system of k unknowns where LAPACK could not count its entries."""
    if k > LARGEST_DIRECT:
        raise InputError(
            f"features.count: the system has {k} unknowns, LAPACK's 32-bit numbers reach {LARGEST_DIRECT}; lower the "
            "count, or set solve.route: cg, which does not form it"
        )


def _separate(problem: Problem, sums: Sequence[_Sums]) -> Problem:
    """A block for all targets, or one for all those that the same rows have."""
    root = problem.weights.root[0]
    seen = root @ problem.C.T
    groups: dict[tuple[int, ...], Any] = {}
    if untouched(root, problem.observe):
        directions: FloatArray | None = np.eye(root.shape[1])
        patterns: dict[tuple[int, ...], list[int]] = defaultdict(list)
        targets = np.argmax(np.abs(root), axis=1)
        for row, target in enumerate(targets):
            patterns[tuple(i for i, (rows, _, _) in enumerate(sums) if rows.mask[target])].append(row)
        for key, at in patterns.items():
            groups[key] = np.array(at), np.sum(root[at] ** 2, axis=1), np.eye(len(at)), targets[at]
    else:
        a, rotation, basis = turned(seen)
        groups[(0,)] = np.arange(len(root)), a, rotation, np.arange(len(root))
        directions = basis if problem.observe is None else None
    blocks = [_separate_block(problem, [sums[i] for i in chosen], seen, *group) for chosen, group in groups.items()]
    return replace(problem, blocks=tuple(blocks), directions=directions)


def output_directions(root: FloatArray) -> FloatArray:
    """V (p, p), the `directions` of a problem of C = I whose weights are one matrix with this root (r, p)."""
    return np.eye(root.shape[1]) if untouched(root, None) else turned(root)[2]


def turned(seen: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """a (r,) and U (r, r) with seen seen^T = U diag(a) U^T, and V (q, q) whose columns are those of seen^T U, made
    unit vectors, and what completes them. U = I where the rows of `seen` (r, q) are orthogonal already."""
    square = seen @ seen.T
    sizes = np.diag(square)
    if np.all(sizes > 0) and np.abs(square - np.diag(sizes)).max() <= len(seen) * EPS * sizes.max():
        lines = seen / np.sqrt(sizes)[:, None]
        return sizes, np.eye(len(seen)), np.column_stack([lines.T, scipy.linalg.null_space(lines)])
    U, s, Vt = np.linalg.svd(seen)
    return np.append(s**2, np.zeros(len(seen) - len(s))), U, Vt.T


def _separate_block(
    problem: Problem, sums: Sequence[_Sums], seen: FloatArray, at: IntArray, a: FloatArray, rotation: FloatArray,
    columns: IntArray,
) -> Block:  # fmt: skip
    """The block of the rows `at` of the root, from the patterns that have their targets."""
    gain = problem.weights.gain
    if not sums:  # targets that none of these rows have
        return Block(np.zeros((len(gain),) * 2), a, np.zeros((len(gain), len(a))), at, rotation, columns)
    S, R = reduce(add, [one[1] for one in sums]), reduce(add, [one[2] for one in sums])
    removed = 0.0
    if problem.intercept:
        n, s, y = (sum(getattr(one[0], name) for one in sums) for name in ("n", "s", "y"))
        S, R = S - np.outer(s, s / n), R - np.outer(s, y / n)
        removed = float(np.sum((gain * s) ** 2) / n)
    rhs = (gain[:, None] * R) @ (seen[at].T @ rotation)
    return Block(S * np.outer(gain, gain), a, rhs, at, rotation, columns, removed=removed)


def _totals_apart(problem: Problem, V: FloatArray) -> Totals:
    """A direction each; where some rows miss targets V = I."""
    squares = np.sum([np.einsum("ij,ij->j", V, rows.squares @ V) for rows in problem.rows], axis=0)
    y = np.sum([rows.y @ V for rows in problem.rows], axis=0)
    weight = np.sum([rows.n * rows.mask for rows in problem.rows], axis=0)
    entries = np.sum([rows.count * rows.mask for rows in problem.rows], axis=0)
    spent = np.where(weight > 0, 1.0, 0.0) * problem.intercept
    some = np.where(spent > 0, weight, 1.0)
    summed = (np.sqrt(np.sum([np.diag(rows.squares) for rows in problem.rows], axis=0)) @ np.abs(V)) ** 2
    return Totals(squares - spent * y**2 / some, summed, entries, weight, spent, np.log(some))


def _coupled(problem: Problem, sums: Sequence[_Sums]) -> Block:
    """One system for everything."""
    gain, root, C = problem.weights.gain, problem.weights.root, problem.C
    written = np.broadcast_to(root, problem.weights.shape)
    at = np.nonzero(np.any(written != 0, axis=2))
    psi = gain[at[0], None] * written[at]
    G, rhs, across = np.zeros((len(psi), len(psi))), np.zeros(len(psi)), np.zeros((len(psi), psi.shape[1]))
    for rows, S, R in sums:
        seen = psi @ C[rows.mask].T
        part = seen @ seen.T
        part *= S[np.ix_(at[0], at[0])]
        G += part
        rhs += np.sum(seen * R[at[0]][:, rows.mask], axis=1)
        across += rows.s[at[0], None] * (seen @ C[rows.mask])
    if problem.intercept:
        inverse, y = problem.free
        G -= across @ inverse @ across.T
        rhs -= across @ (inverse @ y)
    removed = float(np.sum((across.T @ across) * problem.free[0])) if problem.intercept else 0.0
    return Block(G, np.ones(1), rhs[:, None], at, removed=removed)


def target_covariance(parts: Solvable | Parts) -> FloatArray:
    """Covariance (q, q) of the targets about their means, in their own units.

    Where rows miss targets each entry is of the rows that have both, and what is then not positive is left out.
    """
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


def digits_left(condition: float, unit: float = EPS, *, squared: bool = True, size: float = np.inf) -> float:
    """Decimal digits of the fitted values, relative to the targets y, that rounding leaves at least; none below 0.

    The sums of products, and so the system, are wrong by about unit g, g the largest eigenvalue, and their right side
    by unit sqrt(g) |y|: to first order that moves fitted values by sqrt(condition) unit (1 + size) |y|,
    size = sqrt(g) |x| / |y|, which is never more than sqrt(condition) / 2. Where nothing was squared they move by
    sqrt(condition) unit |y|. A factor of 10 is kept for what "about" hides.
    """
    if squared and 10.0 * unit * condition >= 1.0:
        return 0.0
    lost = np.sqrt(condition) * (1.0 + min(size, np.sqrt(condition) / 2) if squared else 1.0)
    return max(0.0, -float(np.log10(10.0 * unit * max(lost, 1.0))))


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients h (m, r) for one ridge, and how they were found.

    `condition` is the (estimated) condition number of the worst system solved, `rung` the method that solved it,
    `digits` what `digits_left` says of the two. `variance` is the noise variance of the scaled targets, (p,) with one
    for each of the problem's `directions`, or (1,). `gcv` is the generalised cross-validation score and
    `log_evidence` the log marginal likelihood (`Scores`), where they were asked for or came for nothing. `ridges`
    (p,) where each direction has its own; `ridge` is then their geometric mean.
    """

    h: FloatArray
    ridge: float
    condition: float
    rung: str
    gcv: float | None = None
    log_evidence: float | None = None
    ridges: FloatArray | None = None
    variance: FloatArray | None = None
    digits: float = 15.0

    @property
    def ill_conditioned(self) -> bool:
        """Whether fewer than three digits are left."""
        return not self.digits >= 3.0
