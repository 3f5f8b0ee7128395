"""How many digits each way of solving keeps as the condition number grows, and how many dorff says it kept.

One problem: trig features of a Gaussian kernel in two dimensions, and two targets: a smooth field with 1% of noise,
and noise alone (the worst case: nothing of it lies where the features are strong). The condition number of
G + l ridge I goes from 1e4 to 1e18, by a falling ridge at two length-scales (at the longer one nearly all of the
features' squares are their means, which centring takes out), and by a growing length-scale at one ridge. The truth is
a Householder QR in long double (64-bit mantissa) of the same features, done twice with the rows in another order: how
far the two differ is its own error. Fitted values and values at new points are compared, worst target, relative to the
target's deviation. No silent loss: the digits stated are right, or the status says ill-conditioned.

    python benchmarks/conditioning.py [--small] [-o benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import tables

from dorff import frequencies, kernels
from dorff.features import FeatureMap, Projected
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import OperatorWeights
from dorff.moments import Accumulator, Moments, Triangle, TriangleAccumulator
from dorff.moments.blas import pinned
from dorff.solvers import Problem, Solution, solve
from dorff.solvers.cg import conjugate_gradients
from dorff.solvers.direct import CholeskySolver, SpectralSolver, problem_of
from dorff.solvers.matrixfree import make_system, of_moments

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CONDITIONS = tuple(10.0**power for power in range(4, 19))
LENGTHSCALES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
BLOCKS, RIDGE = 8, 1e-15
SWEPT = (0.5, 5.0)  # length-scales of the falling ridge
Long = np.longdouble


@dataclass(frozen=True)
class Row:
    """One method at one condition number. Errors are of the worst target, relative to it; `reference` is the truth's
    own. `stated` are the digits that dorff says the fitted values have, `ill` its status."""

    sweep: str
    lengthscale: float
    ridge: float
    method: str
    rung: str
    condition: float
    fitted: float
    test: float
    reference: float
    stated: float
    ill: bool

    @property
    def right(self) -> float:
        return float(-np.log10(max(self.fitted, 1e-17)))

    @property
    def silent(self) -> bool:
        """More digits stated than are right, and the status does not say so."""
        return self.stated > self.right and not self.ill


@dataclass(frozen=True, eq=False)
class Data:
    """Features F (n, m), targets Y (n, 2), and features at new points."""

    F: FloatArray
    Y: FloatArray
    new: FloatArray

    @classmethod
    def of(cls, lengthscale: float, n: int, m: int) -> Data:
        kernel = kernels.Decomposable(kernels.Gaussian(lengthscale)).fix(2, 1)
        omega = frequencies.Orthogonal().draw(kernel, d=2, p=1, count=m // 2, seed=0).omega
        phi = Projected(frequencies.Dense(omega), np.full(m // 2, (m // 2) ** -0.5))
        features = FeatureMap(phi, np.zeros(2), np.ones(2))
        rng = np.random.default_rng(1)
        X, new = rng.uniform(-1, 1, (n, 2)), rng.uniform(-1, 1, (500, 2))
        smooth = np.sin(2.0 * X[:, 0]) * np.cos(3.0 * X[:, 1]) + X[:, 1]
        Y = np.column_stack([smooth + 0.01 * rng.standard_normal(n), rng.standard_normal(n)])
        return cls(features.transform(X), Y, features.transform(new))

    def sums(self) -> tuple[Moments, Triangle, Moments]:
        """Gram moments, triangle and mixed moments, of blocks."""
        m, y0 = self.F.shape[1], self.Y.mean(axis=0)
        Z = np.column_stack([self.F, np.ones(len(self.F)), self.Y - y0])
        gram, triangle, mixed = Accumulator(m, 2, y0), TriangleAccumulator(m, 2, y0), Accumulator(m, 2, y0)
        single = np.empty((m + 3, m + 3), np.float32, order="F")
        for block in np.array_split(Z, BLOCKS):
            gram.add(block)
            triangle.add(block)
            mixed.add_rounded(block.astype(np.float32), single)
        return gram.moments(), triangle.moments(), mixed.moments()


class Truth:
    """Ridge solutions in long double."""

    def __init__(self, data: Data, order: np.ndarray) -> None:
        F, Y = data.F[order].astype(Long), data.Y[order].astype(Long)
        self.means = F.mean(axis=0), Y.mean(axis=0)
        self.n, self.m = F.shape
        self.R = _householder(np.hstack([F - self.means[0], Y - self.means[1]]), self.m)[: self.m]

    def fitted(self, features: FloatArray, ridge: float) -> np.ndarray:
        root = np.sqrt(Long(self.n) * Long(ridge))
        below = np.hstack([root * np.eye(self.m, dtype=Long), np.zeros((self.m, 2), dtype=Long)])
        R = _householder(np.vstack([self.R, below]), self.m)
        W = R[: self.m, self.m :].copy()
        for i in reversed(range(self.m)):
            W[i] = (W[i] - R[i, i + 1 : self.m] @ W[i + 1 :]) / R[i, i]
        return np.asarray((features.astype(Long) - self.means[0]) @ W + self.means[1])


def _householder(A: np.ndarray, columns: int) -> np.ndarray:
    """R of a QR of the first columns, and Q^T times the others (Golub & Van Loan 2013, algorithm 5.2.1)."""
    A = A.copy()
    for j in range(columns):
        v = A[j:, j].copy()
        size = np.sqrt(v @ v)
        if size == 0:
            continue
        v[0] += size if v[0] >= 0 else -size
        A[j:, j:] -= np.outer(v, (v @ A[j:, j:]) * (2 / (v @ v)))
    return A


Solver = Callable[[Problem, float], Solution | None]


def _eigh(problem: Problem, ridge: float) -> Solution:
    return SpectralSolver(problem).solve(ridge)


def compare(sweep: str, lengthscale: float, data: Data, wanted: Callable[[float, int], Sequence[float]]) -> list[Row]:
    """Every method at the ridges that `wanted` makes of G's largest eigenvalue and the number of rows."""
    gram, triangle, mixed = data.sums()
    weights = OperatorWeights(np.ones(gram.m), np.eye(2)[None])
    plain, sharp, rounded = (problem_of([sums], weights) for sums in (gram, triangle, mixed))
    orders = np.arange(len(data.F)), np.random.default_rng(2).permutation(len(data.F))
    truth, again = (Truth(data, order) for order in orders)
    system = make_system(*of_moments([gram]), weights)
    methods: dict[str, tuple[Problem, Solver]] = {
        "cholesky": (plain, lambda problem, ridge: CholeskySolver(problem).solve(ridge)),
        "eigh": (plain, _eigh), "qr": (sharp, _eigh), "mixed": (rounded, _eigh),
        "cg": (plain, lambda _, ridge: conjugate_gradients(system, ridge)),
        "ladder": (plain, lambda problem, ridge: _ladder(problem, ridge, sharp)),
    }  # fmt: skip
    rows = []
    for ridge in wanted(float(sharp.blocks[0].spectrum[0].max()), gram.n):
        right, right_new = truth.fitted(data.F, ridge), truth.fitted(data.new, ridge)
        reference = _error(again.fitted(data.F, ridge), right, data.Y)
        for name, (problem, method) in methods.items():
            solution = method(problem, ridge)
            if solution is None:
                lost = (np.inf, np.inf, np.inf, reference, 0.0, True)
                rows.append(Row(sweep, lengthscale, ridge, name, "failed", *lost))
                continue
            W = weights.combined(solution.h)
            bias = problem.bias(W)
            rows.append(
                Row(
                    sweep, lengthscale, ridge, name, solution.rung, solution.condition,
                    _error(data.F @ W + bias, right, data.Y), _error(data.new @ W + bias, right_new, data.Y),
                    reference, solution.digits, solution.ill_conditioned,
                )
            )  # fmt: skip
    return rows


def _ladder(problem: Problem, ridge: float, sharp: Problem) -> Solution:
    """What a fit does: Cholesky, `eigh` where that fails, and the features' QR where few digits are left."""
    (solution,) = solve(problem, [ridge])
    return solve(sharp, [ridge])[0] if solution.ill_conditioned else solution


def speeds(widths: Sequence[int], repeats: int) -> list[dict[str, float]]:
    """CPU seconds of a block of 2048 rows reflected into a triangle, and rounded and summed in float32, over those of
    a double `syrk`: medians of ratios taken in turn."""
    found = []
    for width in widths:
        Z = np.random.default_rng(0).standard_normal((2048, width))
        single, square = np.empty((2048, width), np.float32), np.empty((width, width), np.float32, order="F")
        gram, triangle = Accumulator(width - 1, 0, np.zeros(0)), TriangleAccumulator(width - 1, 0, np.zeros(0))
        ratios = []
        for _ in range(repeats + 1):
            moments = [time.thread_time()]
            gram.add(Z)
            moments.append(time.thread_time())
            triangle.add(Z)
            moments.append(time.thread_time())
            single[:] = Z
            gram.add_rounded(single, square)
            moments.append(time.thread_time())
            plain, reflected, mixed = np.diff(moments)
            ratios.append((reflected / plain, mixed / plain))
        middle = np.median(ratios[1:], axis=0)  # the first warms up
        found.append({"width": width, "triangle_over_syrk": float(middle[0]), "mixed_over_syrk": float(middle[1])})
    return found


def _error(found: np.ndarray, right: np.ndarray, Y: FloatArray) -> float:
    """Of the worst target, relative to its deviation."""
    return float(np.max(np.sqrt(np.mean((found - right) ** 2, axis=0)) / Y.std(axis=0)))


def run(n: int, m: int, conditions: Sequence[float], lengthscales: Sequence[float]) -> list[Row]:
    rows = []
    for lengthscale in SWEPT:
        data = Data.of(lengthscale, n, m)
        rows += compare("ridge", lengthscale, data, lambda top, n: [top / (n * condition) for condition in conditions])
    for lengthscale in lengthscales:
        rows += compare("lengthscale", lengthscale, Data.of(lengthscale, n, m), lambda top, n: [RIDGE])
    return rows


STYLES = {
    "cholesky": {"color": "tab:blue", "marker": "v"}, "eigh": {"color": "tab:orange", "marker": "s"},
    "cg": {"color": "tab:purple", "marker": "x"}, "qr": {"color": "tab:green", "marker": "^"},
    "mixed": {"color": "tab:red", "marker": "d"},
    "ladder": {"color": "black", "marker": "o", "markerfacecolor": "none", "linestyle": ":", "markersize": 9},
}  # fmt: skip


def draw(rows: Sequence[Row], path: Path) -> None:
    """Errors of the fitted values along each sweep, and digits stated against digits right."""
    figure, axes = plt.subplots(2, 2, figsize=(12, 9), layout="constrained")
    for axis, lengthscale in zip(axes[0], SWEPT, strict=True):
        some = [row for row in rows if row.sweep == "ridge" and row.lengthscale == lengthscale]
        top = {row.ridge: row.condition for row in some if row.method == "qr"}
        _curves(axis, some, lambda row, top=top: top[row.ridge])
        axis.loglog(
            list(top.values()), [1e-16 * value for value in top.values()], "k-", lw=0.5, label="1e-16 condition"
        )
        axis.set(xlabel="condition number", title=f"falling ridge, length-scale {lengthscale:g}")
    _curves(axes[1, 0], [row for row in rows if row.sweep == "lengthscale"], lambda row: row.lengthscale)
    axes[1, 0].set(xlabel="length-scale (inputs in [-1, 1])", title=f"growing length-scale, ridge {RIDGE:g}")
    for axis in axes.flat[:3]:
        axis.set(ylabel="error of fitted values / target's deviation", ylim=(1e-16, 1e3))
    axes[0, 0].legend(fontsize=8)
    axis = axes[1, 1]
    for name in dict.fromkeys(row.method for row in rows):
        ours = [row for row in rows if row.method == name and np.isfinite(row.fitted)]
        style = {**STYLES[name], "linestyle": "none", "label": name}
        axis.plot([row.stated for row in ours], [max(row.right, -2.0) for row in ours], **style)
    axis.plot([0, 16], [0, 16], "k-", lw=0.7)
    axis.axvspan(0, 3, color="0.9")
    axis.text(0.1, 15, "ill-conditioned", fontsize=9)
    axis.set(
        xlabel="digits stated", ylabel="digits right", title="a point below the line, outside the grey: a silent loss"
    )
    axis.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curves(axis: Any, rows: Sequence[Row], across: Callable[[Row], float]) -> None:
    for name in dict.fromkeys(row.method for row in rows):
        ours = [row for row in rows if row.method == name and np.isfinite(row.fitted)]
        axis.loglog([across(row) for row in ours], [row.fitted for row in ours], **{"label": name, **STYLES[name]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few seconds, for a look")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    with pinned():
        if arguments.small:
            rows, speed = run(600, 64, CONDITIONS[::4], LENGTHSCALES[::3]), speeds((257,), 2)
        else:
            rows, speed = run(2000, 192, CONDITIONS, LENGTHSCALES), speeds((515, 1027, 2051, 4099), 5)
    silent = [row for row in rows if row.silent]
    worst = {
        name: max(row.fitted for row in rows if row.method == name and np.isfinite(row.fitted))
        for name in dict.fromkeys(row.method for row in rows)
    }
    result = {
        "silent_losses": len(silent), "rows": len(rows), "worst_reference": max(row.reference for row in rows),
        "worst_error": worst, "speeds": speed,
        "ladder": [
            asdict(row) | {"right": row.right} for row in rows if row.method == "ladder"
        ],
    }  # fmt: skip
    arguments.output.mkdir(parents=True, exist_ok=True)
    tables.write(arguments.output / "conditioning.csv", rows)
    (arguments.output / "conditioning.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(rows, arguments.output / "conditioning.png")
    for line in speed:
        print(line)
    for row in rows:
        said = "ill-conditioned" if row.ill else "SILENT" if row.silent else ""
        print(
            f"{row.sweep:11} {row.lengthscale:5g} {row.ridge:8.1e} {row.method:8} {row.rung:8} {row.condition:8.1e} "
            f"fitted {row.fitted:8.1e} new {row.test:8.1e} digits {row.stated:5.1f} right {row.right:5.1f} {said}"
        )


if __name__ == "__main__":
    main()
