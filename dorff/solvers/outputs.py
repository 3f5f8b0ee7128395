"""Output matrices. Systems fall apart where outputs share one matrix over the features, each a column of its own.

The output matrix of a decomposable kernel is learned from the moments alone: the least, over weights W (m, p) of
f(x) = F(x) W and positive semi-definite A (p, p), of

    1/l (tr C W'S W C' - 2 tr R'W C') + ridge tr(W A^+ W')        with tr A = p, or with |A|_F^2 = p

C (q, p) is the observation operator, mostly I. The trace gives A of low rank (Argyriou, Evgeniou & Pontil 2008,
Convex multi-task feature learning, where A is D); the Frobenius norm is that of Dinuzzo, Ong, Gehler & Pillonetto
(2011, Learning output kernels with block coordinate descent), who add a penalty of A to the loss in place of the
constraint. For each weight of their penalty there is a ridge with which the constraint gives the same W, and A up to
a factor. With the constraint the ridge means what it means for A = I, and A does not depend on the targets' unit.
(It does depend on the units of the targets relative to one another: standardize targets of different kinds.)

Closed forms alternate. Given A = B B', W = U B' where U solves S U M + l ridge U = R C B, M = B'C'C B: a division
in the eigenvectors of S and of M. Given W, stationarity of tr(W A^-1 W') says that A^-1 W'W A^-1 is a multiple of I
(trace) or of A (Frobenius): A is proportional to (W'W)^(1/2) or to (W'W)^(1/3).

The penalty taken is ridge tr(A^-1 (W'W + e I)): the problem is then jointly convex with A regular, so that
alternating reaches its minimum from A = I (Argyriou et al., section 4). A direction of outputs that A has lost can
only turn back at the speed that e leaves it, so e starts large and falls by stages, each when an iteration has
stopped lowering the objective; that never rises, for it falls with e too."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import scipy.linalg

from dorff.errors import InputError
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray
from dorff.solvers.system import EPS, Block, BorderedSums, IntArray, PenaltyTerm, Rows, assembled

_DECIMALS: Final = 12  # of its penalties' shares that a column has in common with those of its block
Pattern = tuple[Rows, FloatArray, FloatArray]  # with S (m, m), and R (m, q) of the scaled targets
NORMS = {"trace": 1, "frobenius": 2}  # k in: the eigenvalues' k-th powers add up to p
# e = (floor times the largest singular value of the first W)^2; the floors of the stages.
FLOORS = tuple(10.0**-stage for stage in range(1, 11))
TOLERANCE = 1e-9  # of what W explains: an iteration that lowers the objective by no more ends its stage
KEPT = 1e-8  # of W's largest singular value: a direction of outputs below it is left out of A
MOST_ITERATIONS = 1000


class SplitProblem(NamedTuple):
    """How the problem of one root (r, p) falls apart: in column j of x = h `rotation`, `rotation` (r, c), it is (a_j
    G_j + l ridge) x_j = rhs_j, where G_j is of the features and their views alone. The targets see the views by the
    factors `views` (V,), and column j adds to them along `load` (q, c), of squared length `a` (c,). That is sqrt(a_j)
    times a column, `columns` (c,), of `directions` (q, q), where C takes each output to a target of its own; None
    elsewhere. Of penalty k column j has the `shares` (c, K)."""

    views: FloatArray
    a: FloatArray
    rotation: FloatArray
    columns: IntArray
    load: FloatArray
    shares: FloatArray
    directions: FloatArray | None = None

    @classmethod
    def of(
        cls, weights: OperatorWeights, observe: FloatArray | None, outputs: Sequence[FloatArray | None], *,
        whole: bool, noise: FloatArray | None = None,
    ) -> "SplitProblem | None":  # fmt: skip
        """None where it does not, or it is not known how: without one root, and where an output matrix, that of a
        penalty (`outputs`, None for the identity), or the missing of targets tie together what the others do not.
        `whole` says that all rows have all targets; `noise` is as in `Problem`, and then `directions` are None."""
        if len(weights.root) > 1:
            return None
        root, views, units = weights.root[0], _views_seen(weights, observe), 1.0 if noise is None else np.sqrt(noise)
        if views is None:  # known where targets are combinations of the outputs of one view, and there is no penalty
            if observe is None or weights.count > 1 or not whole or outputs:
                return None
            C = observe / np.reshape(units, (-1, 1))
            a, U, _ = turned(root @ C.T)
            return cls(np.ones(1), a, U, np.arange(len(root)), C @ root.T @ U, np.zeros((len(a), 0)))
        root = root / units
        coupling = [matrix for matrix in outputs if matrix is not None]
        if untouched(root) and all(_is_diagonal(matrix) for matrix in coupling):
            a, U, V = np.sum(root**2, axis=1), np.eye(len(root)), np.eye(root.shape[1])
            columns = np.argmax(np.abs(root), axis=1)
        elif not whole:
            return None
        else:
            turn = _common(root, coupling) if coupling else turned(root)
            if turn is None:
                return None
            (a, U, V), columns = turn, np.arange(turn[1].shape[1])
        shares = [np.ones(len(a)) if Q is None else np.einsum("pj,pq,qj->j", *[V, Q, V])[columns] for Q in outputs]
        return cls(views, a, U, columns, root.T @ U, np.reshape(shares, (-1, len(a))).T, V if noise is None else None)

    def blocks(
        self, weights: OperatorWeights, sums: Sequence[Pattern], terms: Sequence[PenaltyTerm], *, intercept: bool
    ) -> tuple[Block, ...]:
        """One for all columns with the same patterns of rows and the same shares of the penalties."""
        m = len(weights.gain)
        psi, place = np.zeros((m, weights.count)), np.arange(len(self.rotation))
        psi[np.arange(m), 0 if weights.views is None else weights.views] = weights.gain
        groups = defaultdict[tuple[tuple[int, ...], bytes], list[int]](list)  # by patterns and shares, the columns
        largest = np.maximum(self.shares.max(axis=0, initial=0.0), np.finfo(np.float64).tiny)
        for j, share in enumerate(np.round(self.shares / largest, _DECIMALS) + 0.0):
            there = tuple(i for i, (rows, _, _) in enumerate(sums) if rows.mask.all() or rows.mask[self.columns[j]])
            groups[there, share.tobytes()].append(j)
        blocks = []
        for (there, _), at in groups.items():
            load, rotation, columns = self.load[:, at], self.rotation[:, at], self.columns[at]
            some, shares = [sums[i] for i in there], zip(terms, self.shares[at[0]], strict=True)
            bordered = [
                BorderedSums(S, one.s, one.n, self.views[None], (R @ load)[:, None], (one.y @ load)[None])
                for one, S, R in some
            ]
            bordered += [term.along(float(share), load) for term, share in shares if share > 0]
            if bordered:
                G, rhs, removed, unit = assembled(psi, np.arange(m), bordered, intercept=intercept)
            else:  # targets that no row has
                G, rhs, removed, unit = np.zeros((m, m)), np.zeros((m, len(at))), 0.0, 0.0
            blocks.append(Block(G, self.a[at], rhs, place, rotation, columns, load, removed=removed, unit=unit))
        return tuple(blocks)


def untouched(root: FloatArray) -> bool:
    """Whether each row of the root belongs to one output alone, and to each output at most one row."""
    entries = root != 0
    return bool(np.all(entries.sum(axis=1) == 1) and np.all(entries.sum(axis=0) <= 1))


def targets_apart(weights: OperatorWeights, observe: FloatArray | None) -> bool:
    """Whether each target has a problem of its own: a diagonal output matrix, targets the outputs, or views' means."""
    return len(weights.root) == 1 and _views_seen(weights, observe) is not None and untouched(weights.root[0])


def output_directions(root: FloatArray) -> FloatArray:
    """V (p, p), the `directions` of a problem of C = I whose weights are one matrix with this root (r, p)."""
    return np.eye(root.shape[1]) if untouched(root) else turned(root)[2]


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


def _common(root: FloatArray, coupling: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """As `turned`, V being eigenvectors of the penalties' matrices too, or None; without columns that add nothing."""
    together = [matrix / max(float(np.abs(matrix).max()), 1e-300) for matrix in (root.T @ root, *coupling)]
    # Matrices that commute have the eigenvectors of their sum, if its factors make no two sums of eigenvalues equal.
    V = np.linalg.eigh(sum(np.cos(number) * matrix for number, matrix in enumerate(together)))[1]
    if not all(_is_diagonal(V.T @ matrix @ V, 16 * len(V) * EPS) for matrix in together):
        return None
    V = V[:, np.argsort(-np.sum((root @ V) ** 2, axis=0), kind="stable")]
    a = np.sum((root @ V) ** 2, axis=0)
    some = a > len(V) * EPS * a[0]
    return a[some], root @ V[:, some] / np.sqrt(a[some]), V


def _is_diagonal(matrix: FloatArray, tolerance: float = 0.0) -> bool:
    return bool(np.all(np.abs(matrix - np.diag(np.diag(matrix))) <= tolerance))


def _views_seen(weights: OperatorWeights, observe: FloatArray | None) -> FloatArray | None:
    """c (V,) where C = c^T (x) I; None elsewhere."""
    if observe is None:
        return np.ones(1) if weights.count == 1 else None
    p = weights.root.shape[2]
    factors = observe[0, ::p]
    same = observe.shape == (p, p * weights.count) and np.array_equal(observe, np.kron(factors, np.eye(p)))
    return factors if same and weights.views is not None else None


class LearnedOutput(NamedTuple):
    """A = B B^T with `factor` B (p, r) of independent columns, and how it was found. `history` is the objective with
    e, first that of A = I, then after each update of A and W, without tr E / l, which is constant: it never rises, but
    for rounding. `converged` is False where the iterations ran out."""

    factor: FloatArray
    history: tuple[float, ...]
    converged: bool


def learn_output(
    spectrum: FloatArray,
    rotated: FloatArray,
    l: float,  # noqa: E741 - Minh's and DESIGN's symbol
    ridge: float,
    *,
    penalty: str = "trace",
    observe: FloatArray | None = None,
) -> LearnedOutput:
    """A (p, p) from the centred moments S = V diag(s) V' and R: `spectrum` s (m,), `rotated` V'R (m, q), and l.
    `penalty` is "trace" or "frobenius"; `observe` C (q, p) is I where it is None. One `eigh` of S serves every ridge
    and penalty; an iteration costs about 6 m p^2 + 30 p^3 flops, and there are some tens to some hundreds. The end is
    within about 1e-6 of the least objective, relative to what W explains. At ridge 0 A is the limit from above, that
    of the least-norm W. InputError where the features explain nothing of the targets."""
    k = NORMS[penalty]
    C = np.eye(rotated.shape[1]) if observe is None else observe
    s, RC, p = np.maximum(spectrum, 0.0), rotated @ C, C.shape[1]
    a = np.ones(p)
    explained, sizes, vectors = _least(np.eye(p), s, RC, C, l, l * ridge)
    if sizes[0] == 0:
        raise InputError("output 'learned': the features explain nothing of the targets, or these do not vary")
    perturbations = [(floor * float(sizes[0])) ** 2 for floor in FLOORS]
    history = [ridge * perturbations[0] * p - explained]
    for e in perturbations:
        while len(history) < MOST_ITERATIONS:
            a = _eigenvalues(sizes**2 + e, k, p)
            explained, sizes, vectors = _least(vectors * np.sqrt(a), s, RC, C, l, l * ridge)
            history.append(ridge * e * float(np.sum(1.0 / a)) - explained)
            if history[-2] - history[-1] <= TOLERANCE * explained:
                break
    kept = sizes > KEPT * sizes[0]
    a = _eigenvalues(sizes[kept] ** 2, k, p)
    return LearnedOutput(vectors[:, kept] * np.sqrt(a), tuple(history), len(history) < MOST_ITERATIONS)


def _least(
    B: FloatArray, s: FloatArray, RC: FloatArray, C: FloatArray, rows: float, shift: float
) -> tuple[float, FloatArray, FloatArray]:
    """For A = B B': by how much the best W lowers the objective, its singular values and right vectors. In the
    eigenvectors of S: s (m,), V'R C (m, p), C (q, p), `rows` l, `shift` l ridge."""
    values, Q = _right(C @ B)
    rhs = RC @ B @ Q
    grid = np.multiply.outer(s, values**2)
    floor = np.finfo(np.float64).eps * len(grid) * float(grid.max())
    # At ridge 0 what is at rounding level is left out (the least-norm solution).
    X = rhs / (grid + shift if shift > 0 else np.where(grid > floor, grid, np.inf))
    return float(np.sum(rhs * X)) / rows, *_right(np.linalg.qr(X, mode="r") @ (B @ Q).T)


def _right(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The singular values (p,), with zeros where there are fewer, and right singular vectors (p, p) as columns."""
    _, singular, vectors = np.linalg.svd(matrix)
    return np.append(singular, np.zeros(len(vectors) - len(singular))), vectors.T


def _eigenvalues(c: FloatArray, k: int, p: int) -> FloatArray:
    """A's eigenvalues a from those of W'W: the least sum of c / a where the k-th powers of a add up to p."""
    a: FloatArray = c ** (1.0 / (k + 1))
    return a * (p / np.sum(a**k)) ** (1.0 / k)
