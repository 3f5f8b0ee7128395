"""Fold errors along a path of ridges where the systems are large: folds and ridges as neighbours of their sum.

Of many rows, the training moments of a fold over their weight differ little from those of all rows, and a ridge little
from one a few times larger. So the Cholesky factor of all rows' system at one ridge preconditions the systems of every
fold at every ridge near it: their conjugate gradients (Hestenes & Stiefel 1952) run side by side, as columns. G is
formed for all rows alone; a fold's is applied as psi (S (psi^T h)) (DESIGN 1, consequence 4).

All sums are divided by the rows' summed weight here, so that l ridge is ridge, and targets by their scale."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Final, NamedTuple, Self

import numpy as np
from scipy.linalg import lapack

from dorff.moments import BoolArray, FloatArray, IntArray, Moments, pooled
from dorff.solvers.cg import ConjugateGradients
from dorff.solvers.problem import check_width
from dorff.solvers.scores import digits_left
from dorff.solvers.select import FoldErrors, about_mean, rounding_level
from dorff.solvers.setting import Setting

WIDEST: Final = 32.0  # the largest of the shifts that one factor serves, over the least
MOST_STEPS: Final = 60  # of conjugate gradients; more are not neighbours
TOLERANCE: Final = 1e-10  # of f's error, of the training error: both root mean squares
FLOOR: Final = 1e-8  # of the targets' energy: a training error below it counts as it, for the tolerance
MOST_COLUMNS: Final = 256  # side by side


class UnpackedMoments:
    """The moments (w, w) of some rows that have all targets, about the frozen y0, unpacked."""

    def __init__(self, moments: Moments) -> None:
        self.full, self.m, self.y0, self.unit = moments.full, moments.m, moments.y0, moments.unit

    def centred(self, *, intercept: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
        """S (m, m), R (m, q) and E (q, q) over the rows' weight: about the means, or else as if y0 were 0."""
        m, full = self.m, self.full
        n = full[m, m]
        mean = full[m] / n
        shift = -mean[m + 1 :] if intercept else self.y0
        S, R, E = full[:m, :m] / n, full[:m, m + 1 :] / n, full[m + 1 :, m + 1 :] / n
        if intercept:
            S -= np.outer(mean[:m], mean[:m])
            E = E - np.outer(shift, shift)
        else:
            E = E + np.outer(mean[m + 1 :], shift) + np.outer(shift, mean[m + 1 :] + shift)
        return S, R + np.outer(mean[:m], shift), E

    def squared_errors(self, W: FloatArray, bias: FloatArray) -> FloatArray:
        """Summed squared errors (c, q) of F W + y0 + bias, no less than their rounding; W (m, c, q), bias (c, q)."""
        k, (m, c, q) = self.m + 1, W.shape
        weights = np.concatenate([W.reshape(m, c * q), bias.reshape(1, c * q)])
        squares = np.einsum("ac,ac->c", weights, weights).reshape(c, q)
        cross = (self.full[:k, :k] @ weights).reshape(k, c, q) - 2.0 * self.full[:k, None, k:]
        errors = np.einsum("acq,acq->cq", weights.reshape(k, c, q), cross) + np.diag(self.full)[k:]
        return np.asarray(np.maximum(errors, self.unit * rounding_level(self.full, k, squares)))

    def sizes(self, W: FloatArray, bias: FloatArray) -> FloatArray:
        """The summed squares (c,) of F W + y0 + bias about 1 / q, as in `FoldErrors`."""
        k, (m, c, q) = self.m + 1, W.shape
        weights = np.concatenate([W.reshape(m, c * q), (bias + self.y0 - 1.0 / q).reshape(1, c * q)])
        return np.asarray(np.einsum("ac,ac->c", weights, self.full[:k, :k] @ weights).reshape(c, q).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Columns:
    """Systems (G + shift) x = rhs, a column each: whose S (c,), shift (c,), rhs (k, c), the targets' energy (c,)."""

    whose: IntArray
    shift: FloatArray
    rhs: FloatArray
    energy: FloatArray

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        columns = [(part.whose, part.shift, part.energy) for part in parts]
        whose, shift, energy = (np.concatenate(values) for values in zip(*columns, strict=True))
        return cls(whose, shift, np.asfortranarray(np.concatenate([part.rhs for part in parts], axis=1)), energy)

    def __getitem__(self, at: Any) -> Self:
        return replace(self, whose=self.whose[at], shift=self.shift[at], rhs=self.rhs[:, at], energy=self.energy[at])


class Family(NamedTuple):
    """G = [S_ab psi_a psi_b^T] of several S (m, m), with the same psi (r, p, m); rows of a system go (i, a)."""

    matrices: Sequence[FloatArray]
    psi: FloatArray

    def apply(self, whose: int, V: FloatArray) -> FloatArray:
        """G V, (r m, c), of one of them."""
        r, p, m = self.psi.shape
        V = V.reshape(r, m, -1)
        seen = np.concatenate([reduce(add, (self.psi[i, j][:, None] * V[i] for i in range(r))) for j in range(p)], 1)
        summed = np.split(self.matrices[whose] @ seen, p, axis=1)
        return np.concatenate([reduce(add, (self.psi[i, j][:, None] * summed[j] for j in range(p))) for i in range(r)])

    def factor(self, whose: int, shift: float) -> tuple[FloatArray, float] | None:
        """The lower Cholesky factor of one G + shift, and a number that G's least eigenvalue is no less than, by
        LAPACK's estimate of the inverse; None where it is not numerically positive definite. InputError for a system
        wider than LAPACK can count, before it is formed."""
        r, _, m = self.psi.shape
        check_width(r * m)
        G, S = np.empty((r * m, r * m), order="F"), self.matrices[whose]
        for i in range(r):
            for j in range(i + 1):
                # S is symmetric: its transpose, and that of the product, lie in memory as G does
                np.multiply(S.T, (self.psi[j].T @ self.psi[i]).T, out=G[i * m : (i + 1) * m, j * m : (j + 1) * m])
        G[np.diag_indices(r * m)] += shift
        factor, failed = lapack.dpotrf(G, lower=1, overwrite_a=1, clean=0)
        if failed:
            return None
        reciprocal, _ = lapack.dpocon(factor, 1.0, uplo="L")  # one over the inverse's norm
        return factor, max(0.0, float(reciprocal) - shift)

    def descend(self, factor: FloatArray, columns: Columns) -> tuple[FloatArray, BoolArray]:
        """x (k, c), and which of them have converged: conjugate gradients on each column at once. A column ends where
        its error's norm is `TOLERANCE` of the training error's root: energy x does not explain."""
        now, whole = columns, np.zeros(len(columns.shift), bool)

        def precondition(r: FloatArray, _: IntArray) -> FloatArray:
            return np.asarray(lapack.dpotrs(factor, r, lower=1)[0])

        solved = ConjugateGradients(lambda p, _: self._product(now, p), precondition, columns.rhs)
        for _ in range(MOST_STEPS):
            left = now.energy - np.einsum("kc,kc->c", solved.x, now.rhs + solved.r + now.shift * solved.x)
            done = solved.rho <= TOLERANCE**2 * np.maximum(left, FLOOR * now.energy)
            if done.any():
                whole[solved.at[done]] = True
                solved.finish(done)
                now = now[~done]
            if not len(solved.at) or not solved.step():
                break
        return solved.solved, whole

    def _product(self, columns: Columns, P: FloatArray) -> FloatArray:
        AP = columns.shift * P
        for whose in np.unique(columns.whose):
            at = columns.whose == whose
            AP[:, at] += self.apply(int(whose), P[:, at])
        return AP


class Training(NamedTuple):
    """What the rows outside of one fold say: S (m, m), the weights' psi (r, p, m), the sums of the column of ones
    (w,), the targets' scale (q,), and systems for ridge 1: `a` (c,), rhs (k, c), energy (c,). `top` bounds G's values.
    `load` (c, q) are the outputs that a separable kernel's columns add to; psi is then the gain, (1, 1, m)."""

    S: FloatArray
    psi: FloatArray
    a: FloatArray
    rhs: FloatArray
    energy: FloatArray
    load: FloatArray | None
    sums: FloatArray
    scale: FloatArray
    top: float

    @classmethod
    def of(cls, moments: Moments, setting: Setting) -> Self:
        scale, weights = setting.scaling([moments]), setting.weights(setting.fixed([moments]))
        rows = UnpackedMoments(moments)
        S, R, E = rows.centred(intercept=setting.intercept)
        R, E, sums = R / scale, E / np.outer(scale, scale), rows.full[rows.m].copy()
        sizes = np.diag(rows.full)[: rows.m] / rows.full[rows.m, rows.m]
        if weights.separable:
            psi, gain, root = weights.gain[None, None], weights.gain, weights.root[0]
            top = float(gain**2 @ sizes)
            values, vectors = np.linalg.eigh(root @ root.T)
            kept = values > 1e-14 * values[-1]
            a, load = values[kept], vectors[:, kept].T @ root
            energy = np.einsum("cq,qs,cs->c", load, E, load) / a**2
            return cls(S, psi, a, gain[:, None] * (R @ load.T) / a, energy, load, sums, scale, top)
        psi = np.ascontiguousarray(weights.psi.transpose(1, 2, 0))
        rhs = np.einsum("rpm,mp->rm", psi, R).reshape(-1, 1)
        top = float(np.einsum("rpm,rpm,m->", psi, psi, sizes))
        return cls(S, psi, np.ones(1), rhs, np.trace(E)[None], None, sums, scale, top)

    def columns(self, whose: int, ridges: FloatArray) -> Columns:
        """Of every ridge, and of a ridge every system."""
        shift, count = np.divide.outer(ridges, self.a).ravel(), len(ridges)
        return Columns(np.full(len(shift), whose), shift, np.tile(self.rhs, count), np.tile(self.energy, count))

    def digits(self, X: FloatArray, least: FloatArray, ridges: FloatArray, unit: float) -> FloatArray:
        """`digits_left` (ridges,) of each's worst system, for solutions X (k, c), eigenvalues from `least` (c,) on."""
        columns = self.columns(0, ridges)
        conditions = (self.top + columns.shift) / (least + columns.shift)
        sizes = np.sqrt(self.top * np.einsum("kc,kc->c", X, X) / np.maximum(columns.energy, np.finfo(np.float64).tiny))
        each = [digits_left(one, unit, size=size) for one, size in zip(conditions, sizes, strict=True)]
        return np.asarray(np.min(np.reshape(each, (len(ridges), -1)), axis=1))

    def functions(self, X: FloatArray, *, intercept: bool, y0: FloatArray) -> tuple[FloatArray, FloatArray]:
        """W (m, ridges, q) and the intercepts (ridges, q) less y0, in the targets' units, of solutions (k, c)."""
        r, _, m = self.psi.shape
        if self.load is None:
            W = np.einsum("rpm,rmc->mcp", self.psi, X.reshape(r, m, -1)) * self.scale
        else:
            W = (self.psi[0, 0][:, None, None] * X.reshape(m, -1, len(self.load))) @ self.load * self.scale
        if not intercept:
            return W, np.tile(-y0, (W.shape[1], 1))
        return W, (self.sums[m + 1 :] - np.tensordot(self.sums[:m], W, 1)) / self.sums[m]


def path_errors(folds: Sequence[Moments], setting: Setting, ridges: Sequence[float]) -> FoldErrors | None:
    """On each fold the errors of what the others give, added up; for each ridge how its systems were solved:
    "neighbours", or "factored" where a fold needed factors of its own; and the digits by the neighbours' condition.
    None where neither converges, or a kernel is not the same for all folds. Rows have all targets, and these are
    values of f; ridges are positive."""
    rest = ([[other] for number, other in enumerate(folds) if number != held] for held in range(len(folds)))
    trainings = [Training.of(pooled(others)[0], setting) for others in rest]
    total = Training.of(pooled([[fold] for fold in folds])[0], setting)
    if any(not np.allclose(one.psi, total.psi, rtol=1e-12, atol=0.0) for one in trainings):
        return None
    family = Family([*(one.S for one in trainings), total.S], total.psi)
    each = [one.columns(whose, np.array(ridges)) for whose, one in enumerate(trainings)]
    if (solved := _solutions(family, Columns.together(each))) is None:
        return None
    errors, size = FoldErrors.none(["neighbours"] * len(ridges), folds[0].q), np.zeros(len(ridges))
    ends, unit = np.cumsum([len(one.shift) for one in each]), max(fold.unit for fold in folds)
    for fold, training, end in zip(folds, trainings, ends, strict=True):
        mine = slice(end - len(ridges) * len(training.a), end)
        digits = training.digits(solved.X[:, mine], solved.least[mine], np.array(ridges), unit)
        W, bias = training.functions(solved.X[:, mine], intercept=setting.intercept, y0=fold.y0)
        rows = UnpackedMoments(fold)
        if setting.free_scale:
            W, bias = about_mean(W, bias + fold.y0)
            bias = bias - fold.y0
            size = rows.sizes(W, bias)
        errors.add(slice(None), rows.squared_errors(W, bias), digits, size)
        for ridge in np.flatnonzero(solved.alone[mine].reshape(len(ridges), -1).any(axis=1)):
            errors.rungs[ridge] = "factored"
    return errors


def path_bytes(m: int, q: int, *, unknowns: int, folds: int, ridges: int) -> int:
    """The most memory of `path_errors`, the folds' own packed moments among it; `unknowns` are m r, or m where the
    output matrix falls apart, which then makes up to q columns of them at each ridge."""
    width, columns = m + 1 + q, folds * ridges * (q if unknowns == m else 1)
    square, sides = 8 * width**2, 4 * columns + 8 * min(columns, MOST_COLUMNS)
    building = max(8 * unknowns**2 + square, 3 * square)
    return 4 * width * (width + 1) * (folds + 2) + square * (folds + 1) + building + 8 * unknowns * sides


class _Solved(NamedTuple):
    """X (k, c), which of them (c,) needed a factor of their own fold's, and what the least eigenvalue of the system
    that was factored for them is no less than (c,). Written as they are found."""

    X: FloatArray
    alone: BoolArray
    least: FloatArray


def _solutions(family: Family, columns: Columns) -> _Solved | None:
    """Of all columns; the last of the family's S is the sum's."""
    c, strange = len(columns.shift), set[int]()
    solutions = _Solved(np.zeros(columns.rhs.shape, order="F"), np.zeros(c, bool), np.zeros(c))
    for group in near_shifts(columns.shift):
        pole = float(np.sqrt(columns.shift[group].min() * columns.shift[group].max()))
        far = np.isin(columns.whose[group], list(strange))
        if (left := _near(family, columns, len(family.matrices) - 1, group[~far], pole, solutions)) is None:
            return None
        left = np.concatenate([group[far], left])
        for whose in np.unique(columns.whose[left]):
            mine = left[columns.whose[left] == whose]
            rest = _near(family, columns, int(whose), mine, pole, solutions)
            if rest is None or len(rest):
                return None
            solutions.alone[mine] = True
            strange.add(int(whose))
    return solutions


def _near(family: Family, columns: Columns, whose: int, at: IntArray, pole: float, into: _Solved) -> IntArray | None:
    """Solve the columns `at` by the factor of `whose` at the pole; those left over, None where there is no factor."""
    if not len(at):
        return at
    if (factored := family.factor(whose, pole)) is None:
        return None
    factor, into.least[at] = factored
    left = []
    for chunk in np.array_split(at, -(-len(at) // MOST_COLUMNS)):
        into.X[:, chunk], whole = family.descend(factor, columns[chunk])
        left.append(chunk[~whole])
    return np.concatenate(left)


def near_shifts(shifts: FloatArray) -> list[IntArray]:
    """The columns by their shifts, the largest first, in groups that one factor serves."""
    groups, order = list[IntArray](), np.argsort(-shifts, kind="stable")
    while len(order):
        near = shifts[order] * WIDEST >= shifts[order[0]]
        groups.append(order[near])
        order = order[~near]
    return groups
