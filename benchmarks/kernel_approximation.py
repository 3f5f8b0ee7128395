"""How well each feature map approximates its kernel: Figure 1 of Munkhoeva et al. (2018).

    python benchmarks/kernel_approximation.py --data DIR [--datasets LETTER USPS ...] [--workers 2]
                                              [--out benchmarks/results] [--quick]

DIR is described in datasets.py, with the scaling of every data set. The error is |K - K^|_F / |K|_F over 550 random
rows (72 of LEUKEMIA), the same ones in every run: what is random is the draw of the map. Every map has at most
m = n (2 (d + 1) + 1) columns; B has 2 n (d + 1), n whole rules, since the n columns left are those of the centre. For
the Gaussian kernel a frequency takes two columns; the authors' program counts frequencies, so that their n is half of
ours there.

G is IID, Gort Orthogonal, B Quadrature with butterflies; its signed centre counts in K^. The paper says Halton for
QMC; the authors' program permutes Halton's digits at random, and so does `QMC Halton` here. The plain sequence is
useless from tens of dimensions on. Left out for d > 784, as in the paper: QMC and GQ. There IID and Haar rotations
are drawn as what they do to the span of the rows, which has the same law (Q U is uniform over d x r orthonormal
columns): a QR at d = 7129 would take a minute. `B haar`, `B drop`, `B redraw`, `SR(1,3)` and the other scaling are
run at the largest n alone, as evidence: `bias` and `noise` split the error there, bias^2 = |mean K^ - K|^2 less what
the noise adds to it.

Found (n = 5, main scaling): B has the least error of the paper's methods in all panels but one, or shares it
(Gaussian on USPS and LEUKEMIA). Not by the paper's columns alone: an arc-cosine rule here takes one column a point,
not two, and so has twice the points at equal m. `B pairs` is the paper's form, at 1.4 times B's error in order 0 on
Powerplant, LETTER, USPS and MNIST, and is ahead of the other maps of the paper but for the exceptions below.
Departures, and their causes:
Arc-cosine 0, Powerplant: QMC is ahead of B by a tenth (of `B pairs` by a third, as in the paper). B's weights d / ((d
    + 1) rho^2) have relative variance 2 / (d - 2): 1 at d = 4, 0.14 at 16, 0.008 at 256. Order 0 feels no radius, so
    there they can only be noise: SR(1,3), the same points with equal weights, has the least error of all, 0.6 of B's.
    Haar rotations change nothing, so it is not the butterflies.
Gaussian where gamma |x - z|^2 is not small: exactness for cubic polynomials is worth nothing there, and the weights
    are noise. On standardised Powerplant and LETTER (the other scaling) SR(1,3) and Gort have 0.8 and 0.9 of B's
    error; on USPS, where rho hardly varies, B, Gort, ROM and SR(1,3) are within 1% of one another.
LEUKEMIA at raw scale: the Gaussian K is the identity and no method can be better than the rest; likewise CIFAR-10,
    standardised, nearly. `other` scalings show the paper's order there too.
`B drop` shows that K^ needs the centre in the Gaussian kernel (noise, no bias: its mean is zero), and order 1 does
not (phi(0) = 0); `B redraw` trades that noise for bias.

With --quick nothing is written unless --out is given. Biases by dimension: sampler_bias.py.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import matplotlib
import numpy as np
from tables import compute, interval, read, write

from dorff import frequencies as fr
from dorff import kernels
from dorff.features import Projected, Recipe, ScalarMap
from dorff.kernels.scalar import FloatArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

POINTS, SIZES, LARGE = 550, (1, 2, 3, 4, 5), 784
KERNELS = {
    "gaussian": kernels.Gaussian(1.0),
    "arc_cosine_0": kernels.ArcCosine(0),
    "arc_cosine_1": kernels.ArcCosine(1),
}
# Where the paper says that B is not ahead.
EXCEPTIONS = {("Powerplant", "arc_cosine_0"), ("USPS", "gaussian")}


@dataclass(frozen=True)
class Method:
    """`whole` rules only; `pairs`: n rules as the paper writes them; `prefix`: the first frequencies of a draw are one
    of fewer, and serve all n."""

    sampler: fr.Sampler
    in_paper: bool = False
    variant: bool = False
    prefix: bool = False
    whole: bool = False
    pairs: bool = False
    large: bool = True
    runs: int | None = None


METHODS = {
    "G": Method(fr.IID(), in_paper=True, prefix=True),
    "Gort": Method(fr.Orthogonal(), in_paper=True, prefix=True),
    "ROM": Method(fr.ROM(), in_paper=True),
    "QMC Halton": Method(fr.QMC("halton"), in_paper=True, prefix=True, large=False),
    "GQ": Method(fr.GaussQuadrature(), in_paper=True, prefix=True, large=False),
    "B": Method(fr.Quadrature(), in_paper=True, whole=True),
    "QMC Halton plain": Method(fr.QMC("halton", scramble=False), prefix=True, large=False, runs=1),
    "QMC Sobol": Method(fr.QMC(), prefix=True, large=False),
    "SORF": Method(fr.SORF()),
    "Fastfood": Method(fr.Fastfood()),
    "B pairs": Method(fr.Quadrature(), variant=True, whole=True, pairs=True),
    "B haar": Method(fr.Quadrature(mixing="haar"), variant=True, whole=True, large=False),
    "B drop": Method(fr.Quadrature(centre="drop"), variant=True, whole=True),
    "B redraw": Method(fr.Quadrature(centre="redraw"), variant=True, whole=True),
    "SR(1,3)": Method(fr.Quadrature(degree=(1, 3)), variant=True),
}


@dataclass(frozen=True, eq=False)
class Cell:
    """One kernel on one scaling of a data set. X (N, d) is divided by the kernel's lengthscale; `span` (N, r) are
    the rows' coordinates in their span where r is far below d, else X."""

    dataset: str
    scaling: str
    main: bool
    kernel: str
    X: FloatArray
    span: FloatArray
    K: FloatArray


@dataclass(frozen=True)
class Row:
    """One line of the CSV; bias and noise (of one run) as shares of |K|, at the largest n only."""

    dataset: str
    d: int
    points: int
    scaling: str
    main: bool
    kernel: str
    method: str
    n: int
    m: int
    mean: float
    half_width: float
    runs: int
    bias: float | None
    noise: float | None


def cells_of(name: str, folder: Path, points: int) -> list[Cell]:
    """The three kernels on the main scaling, and those that feel it on the other."""
    data = datasets.load(name, folder)
    chosen = np.sort(np.random.default_rng(0).permutation(len(data.X))[:points])
    X, other = data.X[chosen], data.other[chosen]
    found = [_cell(name, data.scaling, True, kernel, X) for kernel in KERNELS]
    multiple = np.allclose(X / np.abs(X).max(), other / np.abs(other).max())
    felt = ["gaussian"] if multiple else list(KERNELS)
    return found + [_cell(name, data.other_scaling, False, kernel, other) for kernel in felt]


def _cell(name: str, scaling: str, main: bool, kernel: str, X: FloatArray) -> Cell:
    d = X.shape[1]
    if kernel == "gaussian":
        X = X / math.sqrt(d / 2)  # gamma = 1 / d
    elif kernel == "arc_cosine_1":
        X = X / np.abs(X).max()  # the relative error feels no scale; this keeps the numbers small
    span = np.linalg.qr(X.T)[1].T if d > LARGE else X
    return Cell(name, scaling, main, kernel, X, span, KERNELS[kernel].gram(X, X))


def columns(n: int, d: int, whole: bool) -> int:
    return n * 2 * (d + 1) if whole else n * (2 * (d + 1) + 1)


def gram(phi: ScalarMap, X: FloatArray) -> FloatArray:
    """`phi.gram(X, X)` at half its cost."""
    F = phi.transform(X)
    K: FloatArray = F @ F.T
    return K + phi.centre if isinstance(phi, Projected) and not phi.centre_column else K


class Draws:
    """The maps of one method in one run, for all kernels and n."""

    def __init__(self, method: Method, d: int, span: int, most: int, seed: int) -> None:
        self._method, self._d, self._seed = method, d, seed
        self._omega: FloatArray | None = None
        if method.prefix and span < d:
            self._omega = in_span(method.sampler, d, span, most, np.random.default_rng(seed))
        elif method.prefix:
            recipe = Recipe.of(KERNELS["arc_cosine_0"], method.sampler, d=d, n_features=most)
            self._omega = recipe.draw(seed).phi.omega  # type: ignore[attr-defined]

    def estimate(self, cell: Cell, n: int) -> tuple[FloatArray, int]:
        """K^ and the columns used."""
        m, kernel = columns(n, self._d, self._method.whole), KERNELS[cell.kernel]
        if self._omega is None:
            if self._method.pairs and cell.kernel != "gaussian":  # as many points, in half the columns
                m = m // 2 + (self._d if cell.kernel == "arc_cosine_1" else 0)
            recipe = Recipe.of(kernel, self._method.sampler, d=self._d, n_features=m, intercept=True)
            return gram(recipe.draw(self._seed).phi, cell.X), recipe.m
        scalar = kernel if isinstance(kernel, kernels.ArcCosine) else None
        D = m if scalar else m // 2
        found = fr.Frequencies(fr.Dense(self._omega[:D]), np.full(D, 1 / math.sqrt(D)))
        phi = Projected.of(found, scalar, centre_column=False)
        return gram(phi, cell.span), phi.m


def in_span(sampler: fr.Sampler, d: int, r: int, D: int, rng: np.random.Generator) -> FloatArray:
    """omega U (D, r) for orthonormal columns U (d, r), normal or in Haar blocks with chi(d) radii."""
    if isinstance(sampler, fr.IID):
        return rng.standard_normal((D, r))
    blocks = []
    for start in range(0, D, d):
        Q, R = np.linalg.qr(rng.standard_normal((d, r)))
        blocks.append((Q * np.sign(np.diag(R)))[: D - start])
    return np.concatenate(blocks) * np.sqrt(rng.chisquare(d, size=(D, 1)))


@dataclass(frozen=True, eq=False)
class Task:
    """All runs of one method on one data set."""

    method: str
    cells: Sequence[Cell]
    runs: int
    sizes: Sequence[int]

    def work(self) -> list[Row]:
        method, (N, d) = METHODS[self.method], self.cells[0].X.shape
        runs, last = min(self.runs, method.runs or self.runs), max(self.sizes)
        sums = [Sum(cell, n, keep=n == last) for cell in self.cells for n in self._sizes(cell, method)]
        for run in range(runs):
            draws = Draws(method, d, self.cells[0].span.shape[1], columns(last, d, method.whole), run)
            for total in sums:
                total.add(*draws.estimate(total.cell, total.n))
        return [total.row(self.method, N, d) for total in sums]

    def _sizes(self, cell: Cell, method: Method) -> Sequence[int]:
        return self.sizes if cell.main and not method.variant else self.sizes[-1:]


class Sum:
    """What is kept of the runs of one cell and n."""

    def __init__(self, cell: Cell, n: int, *, keep: bool) -> None:
        self.cell, self.n, self.m = cell, n, 0
        self._norm, self._errors = float(np.linalg.norm(cell.K)), list[float]()
        self._off = np.zeros_like(cell.K) if keep else None

    def add(self, K: FloatArray, m: int) -> None:
        K -= self.cell.K
        self.m = m
        self._errors.append(float(np.linalg.norm(K)) / self._norm)
        if self._off is not None:
            self._off += K

    def row(self, method: str, N: int, d: int) -> Row:
        cell, R = self.cell, len(self._errors)
        mean, half = interval(self._errors)
        bias, noise = self._split()
        return Row(cell.dataset, d, N, cell.scaling, cell.main, cell.kernel, method, self.n, self.m, mean, half, R,
                   bias, noise)  # fmt: skip

    def _split(self) -> tuple[float | None, float | None]:
        R = len(self._errors)
        if self._off is None:
            return None, None
        squares, mean = float(np.mean(np.square(self._errors))), float(np.sum(self._off**2)) / (R * self._norm) ** 2
        variance = (squares - mean) * R / (R - 1) if R > 1 else 0.0
        return math.sqrt(max(mean - variance / R, 0.0)), math.sqrt(max(variance, 0.0))


def ordering(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each panel the methods at the largest n, best first, and how B stands."""
    panels: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.dataset, row.scaling, row.kernel), []).append(row)
    found: list[dict[str, Any]] = []
    for (name, scaling, kernel), members in panels.items():
        last = max(row.n for row in members)
        ranked = sorted((row for row in members if row.n == last), key=lambda row: row.mean)
        compared = [row for row in ranked if not METHODS[row.method].variant]
        papers = [row for row in compared if METHODS[row.method].in_paper]
        B = next((row for row in papers if row.method == "B"), None)
        if B is None:
            continue
        least, of_papers = compared[0], papers[0]
        found.append({
            "dataset": name, "scaling": scaling, "main": members[0].main, "kernel": kernel, "n": last,
            "order": [row.method for row in compared], "order_of_papers": [row.method for row in papers],
            "b_best": least is B, "b_best_of_papers": of_papers is B,
            "b_within_best_of_papers": B.mean - B.half_width <= of_papers.mean + of_papers.half_width,
            "b_over_best": B.mean / least.mean, "b_over_best_of_papers": B.mean / of_papers.mean,
            "exception_in_paper": (name, kernel) in EXCEPTIONS,
            "errors": {row.method: {"mean": row.mean, "half_width": row.half_width, "bias": row.bias,
                                    "noise": row.noise, "runs": row.runs, "m": row.m} for row in ranked},
        })  # fmt: skip
    return found


def figure(path: Path, rows: Sequence[Row]) -> None:
    """As the paper's Figure 1: a column a data set, a row a kernel."""
    names = [name for name in datasets.NAMES if any(row.dataset == name for row in rows)]
    fig, axes = plt.subplots(3, len(names), figsize=(3.4 * len(names), 9), squeeze=False, layout="constrained")
    for (i, j), axis in np.ndenumerate(axes):
        kernel, name = list(KERNELS)[i], names[j]
        panel = [row for row in rows if row.main and row.dataset == name and row.kernel == kernel]
        _panel(axis, panel)
        if i == 0:
            axis.set_title(f"{name} (d = {panel[0].d}, {panel[0].points} rows)\n{panel[0].scaling}", fontsize=10)
        if j == 0:
            axis.set_ylabel(f"{kernel.replace('_', ' ')}: |K - K^| / |K|")
        if i == 2:
            axis.set_xlabel("n = m / (2 (d + 1) + 1)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * len(names)), fontsize=10)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def _panel(axis: Axes, panel: Sequence[Row]) -> None:
    shown = [name for name, method in METHODS.items() if not method.variant]
    for number, method in enumerate(shown):
        line = sorted((row for row in panel if row.method == method), key=lambda row: row.n)
        if line:
            x, y, half = np.array([(row.n, row.mean, row.half_width) for row in line]).T
            color, width = ("black", 2.2) if method == "B" else (f"C{number}", 1.0)
            axis.errorbar(x, y, half, label=method, marker="os^vDPX*hd"[number], color=color, linewidth=width,
                          markersize=5, linestyle="-" if METHODS[method].in_paper else "--")  # fmt: skip
    # Plain Halton in many dimensions is off every scale.
    held = [row for row in panel if row.method in shown and row.method != "QMC Halton plain"]
    axis.set(yscale="log", ylim=(0.7 * min(row.mean for row in held), 1.5 * max(row.mean for row in held)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:.2g}" if f"{value:e}"[0] in "25" else ""))
    axis.tick_params(axis="y", which="both", labelsize=8)
    axis.set_xticks(SIZES)
    axis.grid(alpha=0.3, which="both")


def run(task: Task) -> tuple[str, list[Row], float]:
    began = time.perf_counter()
    rows = task.work()
    return f"{task.cells[0].dataset}, {task.method}", rows, time.perf_counter() - began


def tasks_of(names: Sequence[str], folder: Path, quick: bool) -> Iterator[Task]:
    """The largest first, so that both processes end together."""
    for name in sorted(names, key=datasets.NAMES.index, reverse=True):
        cells = cells_of(name, folder, 200 if quick else POINTS)
        large = cells[0].X.shape[1] > LARGE
        for label, method in METHODS.items():
            if method.large or not large:
                runs = 3 if quick else 10 if large else 100 if cells[0].X.shape[1] < 300 else 50
                yield Task(label, cells, runs, (1, 2) if quick else SIZES)


def report(panels: Sequence[dict[str, Any]]) -> None:
    for panel in panels:
        line = "  ".join(f"{name} {found['mean']:.4f}" for name, found in panel["errors"].items())
        state = "best" if panel["b_best"] else f"{panel['b_over_best']:.2f} of the best"
        if not panel["b_best_of_papers"]:
            state += f", {panel['b_over_best_of_papers']:.2f} of the best of the paper's"
        print(f"{panel['dataset']} ({panel['scaling']}), {panel['kernel']}, n = {panel['n']}: B {state}\n    {line}")
    for kernel in dict.fromkeys(panel["kernel"] for panel in panels):
        mine = sorted((panel for panel in panels if panel["kernel"] == kernel), key=lambda panel: panel["b_over_best"])
        ends = (f"{panel['b_over_best']:.2f} ({panel['dataset']}, {panel['scaling']})" for panel in (mine[0], mine[-1]))
        print(f"{kernel}: B's error over the least of all maps, at best and at worst: {', '.join(ends)}")


def main() -> None:
    """Compute, print and write; data sets that are not asked for keep their rows of an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+", choices=datasets.NAMES, default=datasets.NAMES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few runs and points; Powerplant, LETTER and USPS at most")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = [name for name in given.datasets if not given.quick or name in ("Powerplant", "LETTER", "USPS")]
    began, rows = time.perf_counter(), list[Row]()
    for name, found, seconds in compute(run, tasks_of(names, given.data, given.quick), given.workers):
        print(f"{name}: {seconds:.1f} s", flush=True)
        rows += found
    report(ordering(rows))
    out = given.out or (None if given.quick else Path(__file__).parent / "results")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        save(out, rows, seconds=time.perf_counter() - began)


def save(out: Path, rows: list[Row], *, seconds: float) -> None:
    """Merge with the files of an earlier run."""
    anew = {row.dataset for row in rows}
    rows += [row for row in read(out / "kernel_approximation.csv", Row) if row.dataset not in anew]
    ranks = (list(datasets.NAMES), list(KERNELS), list(METHODS))
    rows.sort(key=lambda row: (ranks[0].index(row.dataset), not row.main, ranks[1].index(row.kernel),
                               ranks[2].index(row.method), row.n))  # fmt: skip
    write(out / "kernel_approximation.csv", rows)
    summary = {"points": POINTS, "gamma": "1 / d", "seconds_of_last_run": seconds, "panels": ordering(rows)}
    (out / "kernel_approximation.json").write_text(json.dumps(summary, indent=1) + "\n")
    figure(out / "kernel_approximation.png", rows)


if __name__ == "__main__":
    main()
