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
from dorff.moments import BoolArray, FloatArray, Moments
from dorff.weights import OperatorWeights


@final
@dataclass(frozen=True, eq=False)
class Block:
    """(G (x) diag(a) + l ridge I) x = rhs with G (k, k), a (c,), rhs (k, c): a system that touches no other one.

    `at` says where x goes in h (m, r): the indices of the rows of a general system (c = 1), or the columns that
    x rotation^T fills.
    """

    G: FloatArray
    a: FloatArray
    rhs: FloatArray
    at: Any
    rotation: FloatArray | None = None
    known: tuple[FloatArray, FloatArray] | None = None

    @cached_property
    def spectrum(self) -> tuple[FloatArray, FloatArray]:
        """Eigenvalues (k,) and vectors (k, k) of G, or `known`; those that rounding made negative count as zero."""
        if self.known is not None:
            return self.known
        values, vectors = scipy.linalg.eigh(self.G, driver="evd")
        return np.maximum(values, 0.0), vectors

    def place(self, h: FloatArray, x: FloatArray) -> None:
        """Write x (k, c) to where it belongs in h (m, r)."""
        if self.rotation is None:
            h[self.at] = x[:, 0]
        else:
            h[:, self.at] = x @ self.rotation.T


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Sums over the rows that have the same targets: features s (m,), scaled targets y (q,) and their squares, about
    `y0`; the rows' summed weight n and their number; which targets they have."""

    s: FloatArray
    y: FloatArray
    squares: float
    n: float
    count: int
    y0: FloatArray
    mask: BoolArray


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
    """

    blocks: tuple[Block, ...]
    weights: OperatorWeights
    rows: tuple[Rows, ...]
    scale: FloatArray
    observe: FloatArray | None
    intercept: bool

    @classmethod
    def of(
        cls, parts: Moments | Sequence[Moments], weights: OperatorWeights, *, intercept: bool = True,
        scale: FloatArray | None = None, observe: FloatArray | None = None,
    ) -> Problem:  # fmt: skip
        """Of the moments of some rows, one for each pattern of targets.

        `scale` (q,) divides the targets; `observe` is C (q, p), the identity if None.
        """
        parts = [parts] if isinstance(parts, Moments) else list(parts)
        if observe is not None and len(parts) > 1 and np.linalg.matrix_rank(observe) < len(observe):
            raise InputError("observe: where rows miss targets its rows must be linearly independent; drop such rows")
        scale = np.ones(parts[0].q) if scale is None else scale
        sums = [_unpacked(part, scale, intercept) for part in parts]
        empty = cls((), weights, tuple(rows for rows, _, _ in sums), scale, observe, intercept)
        separate = weights.separable and (len(parts) == 1 or untouched(weights.root[0], observe))
        return replace(empty, blocks=_separate(empty, sums) if separate else (_coupled(empty, sums),))

    @property
    def C(self) -> FloatArray:
        """The observation operator (q, p)."""
        return np.eye(len(self.scale)) if self.observe is None else self.observe

    @cached_property
    def l(self) -> float:  # noqa: E743 - Minh's and DESIGN's symbol
        """The rows' summed weight."""
        return sum(rows.n for rows in self.rows)

    @cached_property
    def _free(self) -> tuple[FloatArray, FloatArray]:
        """Of the intercept's own system: the inverse of sum n C*C (p, p), and sum C* y (p,)."""
        square = sum(rows.n * self.C[rows.mask].T @ self.C[rows.mask] for rows in self.rows)
        y = sum(self.C[rows.mask].T @ rows.y[rows.mask] for rows in self.rows)
        return np.asarray(np.linalg.pinv(square, hermitian=True)), np.asarray(y)

    @cached_property
    def energy(self) -> float:
        """The scaled targets' squares about what the intercept alone takes."""
        total = sum(rows.squares for rows in self.rows)
        return float(total - self._free[1] @ self._free[0] @ self._free[1]) if self.intercept else total

    def gcv(self, explained: float, freedom: float) -> float:
        """(RSS / N) / (1 - df / N)^2 with N entries observed (Golub, Heath & Wahba 1979), inf where df >= N.

        RSS is what `explained` leaves of the energy; the intercept's degrees are added to `freedom`. Rows' weights
        count by their ratios alone: RSS / N is the weighted mean.
        """
        entries = sum(rows.count * np.count_nonzero(rows.mask) for rows in self.rows)
        weight = sum(rows.n * np.count_nonzero(rows.mask) for rows in self.rows)
        spent = np.linalg.matrix_rank(self._free[0], hermitian=True) if self.intercept else 0
        left = 1.0 - (freedom + float(spent)) / entries
        return float(max(self.energy - explained, 0.0) / weight / left**2) if left > 0 else np.inf

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
        inverse, y = self._free
        seen = sum(self.C[rows.mask].T @ (self.C[rows.mask] @ (rows.s @ W)) for rows in self.rows)
        b = inverse @ (y - seen)
        y0 = self.rows[0].y0
        if self.observe is None:
            return np.asarray(y0 + self.scale * b)
        return np.asarray(np.linalg.pinv(self.observe) @ y0 + self.scale[0] * b)


_Sums = tuple[Rows, FloatArray, FloatArray]  # and S (m, m), R (m, q) of the scaled targets


def _unpacked(moments: Moments, scale: FloatArray, shifted: bool) -> _Sums:
    """The sums of one pattern. `shifted` leaves targets as they are in the moments, less y0; else that is undone."""
    m, mask, y0, full = moments.m, moments.mask, moments.y0, moments.full
    n, s, y = float(full[m, m]), full[:m, m].copy(), full[m, m + 1 :].copy()
    R, squares = full[:m, m + 1 :], np.diag(full[m + 1 :, m + 1 :])
    if not shifted:
        R = R + np.outer(s, y0)
        squares = squares + 2 * y0 * y + n * y0**2
        y += n * y0
    within = float(np.sum((squares / scale**2)[mask]))
    rows = Rows(s, np.where(mask, y / scale, 0.0), within, n, moments.n, y0, mask)
    return rows, full[:m, :m], np.where(mask, R / scale, 0.0)


def untouched(root: FloatArray, observe: FloatArray | None) -> bool:
    """Whether each row of the root belongs to one target alone."""
    return observe is None and bool(np.all(np.count_nonzero(root, axis=1) == 1))


def _separate(problem: Problem, sums: Sequence[_Sums]) -> tuple[Block, ...]:
    """A block for all targets, or one for all those that the same rows have."""
    gain, root = problem.weights.gain, problem.weights.root[0]
    seen = root @ problem.C.T
    if len(sums) == 1:
        a, rotation = np.linalg.eigh(seen @ seen.T)
        groups: dict[tuple[int, ...], tuple[Any, FloatArray, FloatArray]] = {
            (0,): (np.arange(len(root)), np.maximum(a, 0.0), rotation)
        }
    else:
        patterns: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row, target in enumerate(np.argmax(np.abs(root), axis=1)):
            patterns[tuple(i for i, (rows, _, _) in enumerate(sums) if rows.mask[target])].append(row)
        groups = {key: (np.array(at), np.sum(root[at] ** 2, axis=1), np.eye(len(at))) for key, at in patterns.items()}
    blocks = []
    for chosen, (at, a, rotation) in groups.items():
        if not chosen:  # targets that none of these rows have
            blocks.append(Block(np.zeros((len(gain),) * 2), a, np.zeros((len(gain), len(a))), at, rotation))
            continue
        S, R = reduce(add, [sums[i][1] for i in chosen]), reduce(add, [sums[i][2] for i in chosen])
        if problem.intercept:
            n, s, y = (sum(getattr(sums[i][0], name) for i in chosen) for name in ("n", "s", "y"))
            S, R = S - np.outer(s, s / n), R - np.outer(s, y / n)
        blocks.append(Block(S * np.outer(gain, gain), a, (gain[:, None] * R) @ (seen[at].T @ rotation), at, rotation))
    return tuple(blocks)


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
        inverse, y = problem._free
        G -= across @ inverse @ across.T
        rhs -= across @ (inverse @ y)
    return Block(G, np.ones(1), rhs[:, None], at)


def target_covariance(parts: Moments | Sequence[Moments]) -> FloatArray:
    """Covariance (q, q) of the targets about their means, in their own units.

    Where rows miss targets each entry is of the rows that have both, and what is then not positive is left out.
    """
    parts = [parts] if isinstance(parts, Moments) else list(parts)
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


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients h (m, r) for one ridge, and how they were found.

    `condition` is the (estimated) condition number of the worst system solved, `rung` the method that solved it,
    `gcv` the generalised cross-validation score where the method gives it. `ill_conditioned` says that the
    condition number leaves fewer than three digits.
    """

    h: FloatArray
    ridge: float
    condition: float
    rung: str
    gcv: float | None = None

    @property
    def ill_conditioned(self) -> bool:
        return not self.condition < 1e13
