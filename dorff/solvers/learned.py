"""The output matrix of a decomposable kernel, learned from the moments alone.

The least, over weights W (m, p) of f(x) = F(x) W and positive semi-definite A (p, p), of

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

from typing import NamedTuple

import numpy as np

from dorff.errors import InputError
from dorff.moments import FloatArray

NORMS = {"trace": 1, "frobenius": 2}  # k in: the eigenvalues' k-th powers add up to p
# e = (floor times the largest singular value of the first W)^2; the floors of the stages.
FLOORS = tuple(10.0**-stage for stage in range(1, 11))
TOLERANCE = 1e-9  # of what W explains: an iteration that lowers the objective by no more ends its stage
KEPT = 1e-8  # of W's largest singular value: a direction of outputs below it is left out of A
MOST_ITERATIONS = 1000


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
