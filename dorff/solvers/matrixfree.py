"""Linear systems that are known by what they do to vectors: the sums M act, G is never formed."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dorff.model.weights import OperatorWeights
from dorff.moments import UNIT, FloatArray, Moments, Solvable
from dorff.solvers.outputs import SplitProblem
from dorff.solvers.problem import Problem, Units, kept_shift
from dorff.solvers.system import Block, IntArray, Rows, Size

#: V (w, c) -> M V (w, c) for each pattern of targets: a product with moments, or a pass over the data.
Operator = Callable[[FloatArray], Sequence[FloatArray]]


class Border(NamedTuple):
    """The last 1 + q columns of the sums M (w, w) of one pattern of targets: `columns` (w, 1 + q); n rows, about `y0`;
    `unit` is the sums' relative rounding error. They are all that right-hand sides, the intercept, scales and a
    covariance of the targets need."""

    m: int
    n: int
    y0: FloatArray
    columns: FloatArray
    observed: str = ""
    unit: float = UNIT

    @property
    def corner(self) -> Moments:
        """The sums over the column of ones and the shifted targets alone, as moments of no features."""
        q = len(self.y0)
        packed = np.concatenate([self.columns[self.m : self.m + j + 1, j] for j in range(1 + q)])
        return Moments(m=0, q=q, n=self.n, y0=self.y0, values=packed, observed=self.observed)

    def rows(self, scale: FloatArray, back: FloatArray) -> tuple[Rows, FloatArray]:
        """The sums of `Rows`, and R (m, q), of the scaled targets less y0, with `back` (q,) added again."""
        m, mask, columns = self.m, self.corner.mask, self.columns.copy()
        columns[m + 1 :, 1:] += np.outer(back, columns[m, 1:]) + np.outer(columns[m, 1:], back)
        columns[m + 1 :, 1:] += columns[m, 0] * np.outer(back, back)
        columns[: m + 1, 1:] += np.outer(columns[: m + 1, 0], back)
        columns[:, 1:] = np.where(mask, columns[:, 1:] / scale, 0.0)
        squares = np.where(mask[:, None], columns[m + 1 :, 1:] / scale[:, None], 0.0)
        rows = Rows(columns[:m, 0], columns[m, 1:], squares, float(columns[m, 0]), self.n, self.y0, mask)
        return rows, columns[:m, 1:]


def of_moments(parts: Sequence[Solvable]) -> tuple[list[Border], Operator]:
    """The borders of moments, and the product with them; those that are written out are unpacked once, 8 w^2 bytes."""
    operators = [part.operator() for part in parts]
    pairs = zip(parts, operators, strict=True)
    borders = [Border(one.m, one.n, one.y0, columns, one.observed, one.unit) for one, (columns, _) in pairs]
    return borders, lambda V: [product(V) for _, product in operators]


class System(ABC):
    """(G diag(a) + l ridge I) x = rhs for x and rhs (k, c), a (c,): c systems that share G. f = F W + b at
    coefficients x, seen as t targets: W (m, t, L) = out(x) for L vectors x. The free intercept b is eliminated
    exactly. G = out* A* M A out, A from W to the rows [W | b] of V, is positive whatever the rounding."""

    def __init__(
        self, problem: Problem, operator: Operator, R: Sequence[FloatArray], basis: FloatArray, block: Block
    ) -> None:
        """`basis` (q, T): what the systems see of the targets; R (m, q) of each pattern; a block without matrix."""
        self._operator, rows = operator, problem.rows
        # A combination is summed over the rows that have all its targets.
        self._member = np.array([~np.any(basis[~one.mask] != 0, axis=0) for one in rows], dtype=np.float64)
        self._s = np.column_stack([one.s for one in rows]) @ self._member
        self._y = np.asarray(sum(one.y @ basis * has for one, has in zip(rows, self._member, strict=True)))
        self._R = np.asarray(sum(one @ basis * has for one, has in zip(R, self._member, strict=True)))
        self.gain = problem.weights.gain
        self.centre = np.zeros(len(self._s))
        if problem.intercept:
            self.centre = np.asarray(sum(one.s for one in rows)) / problem.l
        self.problem, self.a = replace(problem, blocks=(block,)), block.a
        # Whether columns are systems of their own: a row of features is then one row of the design.
        self.apart = block.rotation is not None
        self.size = len(self.gain) if self.apart else len(block.at[0])  # k

    @property
    def rhs(self) -> FloatArray:
        """(k, c)."""
        columns = np.arange(len(self.a))
        return self.back(self._centred(self._pick(self._R, columns), self._pick(self._y, columns), columns))

    def apply(self, x: FloatArray, columns: IntArray, noise: FloatArray | None = None) -> FloatArray:
        """G x (k, L) for vectors x (k, L) of the systems `columns` (L,), each target times its `noise` (t,) if any."""
        U = self._summed(self._lifted(x, columns), columns)
        if noise is not None:
            U *= noise[:, None]
        return self.back(self._centred(U[:-1], U[-1], columns))

    def shares(self, u: FloatArray, x: FloatArray, columns: IntArray) -> FloatArray:
        """u* G_t x (t, L) of each target's part of G, for vectors u, x (k, L)."""
        U = self._summed(self._lifted(x, columns), columns)
        return np.asarray(np.einsum("atl,atl->tl", self._lifted(u, columns)[: len(U)], U))

    def _lifted(self, x: FloatArray, columns: IntArray) -> FloatArray:
        """V (w, t, L): what the sums are multiplied by for vectors x (k, L), the intercept's part among it."""
        W, s, m = self.out(x), self._pick(self._s, columns), len(self._s)
        V = np.zeros((m + 1 + len(self.problem.scale), *W.shape[1:]))
        V[:m] = W
        if self.problem.intercept:
            V[m] = -self._free(np.einsum("mtl,mtl->tl", np.broadcast_to(s, W.shape), W), columns)
        return V

    def _summed(self, V: FloatArray, columns: IntArray) -> FloatArray:
        """The sums times V, (m + 1, t, L), over the rows that have the targets."""
        U = np.zeros((len(self._s) + 1, *V.shape[1:]))
        for has, product in zip(self._member, self._operator(V.reshape(len(V), -1)), strict=True):
            U += product[: len(U)].reshape(U.shape) * self._pick(has, columns)
        return U

    def alike(self) -> list[IntArray]:
        """Columns (c',) whose systems have the same matrix, for each matrix that rows tell of."""
        groups = defaultdict[bytes, list[int]](list)
        for column, a in enumerate(self.a):
            there = self._member if self.apart else np.ones((1, 1))
            if there[:, column if self.apart else 0].any():
                groups[there[:, column if self.apart else 0].tobytes() + a.tobytes()].append(column)
        return [np.array(group) for group in groups.values()]

    @staticmethod
    def column_bytes(size: Size) -> int:
        """The most memory of `apply` for one vector, its answer among it."""
        columns = size.q if size.coupled else 1
        return 8 * ((4 + size.patterns) * size.width * columns + 2 * size.k)

    def _centred(self, U: FloatArray, total: FloatArray, columns: IntArray) -> FloatArray:
        """The adjoint of going from W to [W | b], for U (m, t, L) and what the column of ones gives, (t, L)."""
        if not self.problem.intercept:
            return U
        return np.asarray(U - self._pick(self._s, columns) * self._free(total, columns))

    def design(self, F: FloatArray, x: FloatArray) -> FloatArray:
        """(b t, L): what features F (b, m) of some rows, about the mean over all, give at x (k, L)."""
        W = self.out(x)
        return np.asarray(F @ W.reshape(len(W), -1)).reshape(-1, x.shape[1])

    def adjoint(self, F: FloatArray, u: FloatArray) -> FloatArray:
        """(k, L): the adjoint of `design` at u (b t, L)."""
        U = F.T @ u.reshape(len(F), -1)
        return self.back(U.reshape(len(U), -1, u.shape[1]))

    @abstractmethod
    def gram(self, F: FloatArray, other: FloatArray) -> FloatArray:
        """(b t, b' t): `design` of features F (b, m) times `adjoint` of other ones (b', m)."""

    @abstractmethod
    def out(self, x: FloatArray) -> FloatArray:
        """W (m, t, L) of x (k, L)."""

    @abstractmethod
    def back(self, U: FloatArray) -> FloatArray:
        """The adjoint of `out`: (k, L) of U (m, t, L)."""

    @abstractmethod
    def _pick(self, values: FloatArray, columns: IntArray) -> FloatArray:
        """(..., t, L), or 1 for L, of values (..., T)."""

    @abstractmethod
    def _free(self, values: FloatArray, columns: IntArray) -> FloatArray:
        """What the intercept takes of summed values (t, L): the mean, where C = I and rows miss nothing."""


class Separable(System):
    """psi is one matrix for all features: the systems are those of its eigenvectors, or of targets apart."""

    def __init__(self, problem: Problem, operator: Operator, R: Sequence[FloatArray], split: SplitProblem) -> None:
        problem, none = replace(problem, directions=split.directions), np.zeros((0, 0))
        basis = (problem.weights.root[0] @ problem.C.T).T @ split.rotation
        there = np.array([one.n * ~np.any(basis[~one.mask] != 0, axis=0) for one in problem.rows])
        self._n = np.maximum(there.sum(axis=0), np.finfo(np.float64).tiny)
        block = Block(none, split.a, none, np.arange(len(split.a)), split.rotation, split.columns, split.load)
        super().__init__(problem, operator, R, basis, block)

    def out(self, x: FloatArray) -> FloatArray:
        return np.asarray((self.gain[:, None] * x)[:, None, :])

    def back(self, U: FloatArray) -> FloatArray:
        return np.asarray(self.gain[:, None] * U[:, 0])

    def gram(self, F: FloatArray, other: FloatArray) -> FloatArray:
        return np.asarray((F * self.gain**2) @ other.T)

    def _pick(self, values: FloatArray, columns: IntArray) -> FloatArray:
        return values[..., None, columns]

    def _free(self, values: FloatArray, columns: IntArray) -> FloatArray:
        return np.asarray(values / self._n[columns])


class Coupled(System):
    """One system for h as a whole, without those of its entries whose psi is zero: G[(a,i),(b,j)] of Minh eq. 74."""

    def __init__(self, problem: Problem, operator: Operator, R: Sequence[FloatArray]) -> None:
        self._psi = np.asarray(np.broadcast_to(problem.weights.psi, problem.weights.shape) @ problem.C.T)
        self._at = np.nonzero(np.any(problem.weights.psi != 0, axis=2))
        self._H = problem.C @ problem.free[0] @ problem.C.T
        none = np.zeros((0, 0))
        super().__init__(problem, operator, R, np.eye(len(problem.scale)), Block(none, np.ones(1), none, self._at))

    def out(self, x: FloatArray) -> FloatArray:
        h = np.zeros((*self._psi.shape[:2], x.shape[1]))
        h[self._at] = x
        return np.asarray(np.einsum("arq,arl->aql", self._psi, h))

    def back(self, U: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("arq,aql->arl", self._psi, U)[self._at])

    def gram(self, F: FloatArray, other: FloatArray) -> FloatArray:
        q = self._psi.shape[2]
        products = np.empty((len(F), q, len(other), q))
        for t in range(q):
            for u in range(q):
                products[:, t, :, u] = (F * np.sum(self._psi[:, :, t] * self._psi[:, :, u], axis=1)) @ other.T
        return products.reshape(len(F) * q, -1)

    def _pick(self, values: FloatArray, columns: IntArray) -> FloatArray:
        return values[..., None]

    def _free(self, values: FloatArray, columns: IntArray) -> FloatArray:
        return np.asarray(self._H @ values)


def make_system(
    borders: Sequence[Border], operator: Operator, weights: OperatorWeights, *, intercept: bool = True,
    scale: FloatArray | Units | None = None, observe: FloatArray | None = None,
) -> System:  # fmt: skip
    """The systems of `Problem.of`, of the borders of the sums and what the sums do. Arguments as there."""
    scale, noise = (scale.scale, scale.noise) if isinstance(scale, Units) else (scale, None)
    scale = np.ones(len(borders[0].y0)) if scale is None else scale
    back = kept_shift(borders[0].y0, observe, patterns=len(borders), intercept=intercept)
    unit = max(border.unit for border in borders)
    problem = Problem((), weights, (), scale, observe, intercept, unit=unit, noise=noise)
    seen = [border.rows(problem.units, back) for border in borders]
    problem, R = replace(problem, rows=tuple(rows for rows, _ in seen)), [one for _, one in seen]
    whole = len(borders) == 1 and bool(borders[0].corner.mask.all())
    split = SplitProblem.of(weights, observe, [], whole=whole, noise=noise) if weights.separable else None
    return Coupled(problem, operator, R) if split is None else Separable(problem, operator, R, split)
