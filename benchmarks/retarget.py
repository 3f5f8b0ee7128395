"""Frequencies drawn for one length-scale, weighed for another: how far that goes.

    python benchmarks/retarget.py [--workers 2] [--out benchmarks/results] [--quick]

psi is for the length-scale c s, from frequencies drawn for s (`one`), or for a mixture of 2/3 s and 5/3 s (`two`); s
is 1 here. c < 1 asks for a wider spectrum than was drawn, c > 1 for a narrower one. The error is |K - K^|_F / |K|_F
over 100 points, drawn anew in every run, in a box of 8 (and, `width` 4, of 4) of the target's length-scales, m = 1024;
it is compared with that of as many frequencies drawn for c s itself, by the same sampler and over the same points. A
kernel is accepted where its effective sample size (mean over the runs) is half or more of that of frequencies of its
own: D for a trace measure, less for the unbounded one. `seen` is the effective sample size that the drawn frequencies
say themselves, without the target's (see weights.covered); `formula` is (2 c^2 - 1)^(k/2) / c^(2k) for the Gaussian,
k = d, or d + 2 for the trace measure of a field. `unnormalised` is the error without self-normalisation.

`fits` is a whole job: a smooth field plus noise, one pass with features.drawn_for, then a model for each length-scale
from the same moments (`leaves_computed`: none after the first) against a fit of its own, ridge by GCV, m = 400: root
mean squared errors on 4000 other points; None is refused.

Found. Of 831 cases accepted none has more than 1.5 times the fresh error: 1.42 +- 0.03 at most with the default
sampler in the wide box, 1.40 +- 0.05 with iid, 1.48 +- 0.13 in the narrow box. Of 321 refused 77 would be below.
The frequencies' own word, `seen`, is not enough: it lets four cases through at 1.5 to 1.9 (c = 0.6 and 0.75), where
what was drawn has not met the tail of the target's spectrum.
One length-scale serves, of the Gaussian, 0.77 to 1.76 (d = 2) and 0.84 to 1.61 (d = 3) decomposable, 0.84 to 1.48 and
0.84 to 1.35 as a field; of the Matern 0.6 or so to 1.5 and more. So 0.8 to 1.75 is not all served by one length-scale;
it is by the mixture of two: 0.57 to 2.09 and 0.62 to 1.92, fields 0.62 to 1.83 and 0.65 to 1.76. Self-normalisation
takes up to 1.23 off the error (longer length-scales, narrow boxes) and adds up to 1.08 (shorter ones).
Models of re-targeted kernels have 0.24 to 1.09 times the error of fits of their own: weights move the prior, not the
span, so that longer length-scales keep the short waves that were drawn, at a smaller ridge.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np
from tables import compute, write

from dorff import frequencies, kernels, load_model
from dorff.data import ingest
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.fit import fit
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import Density, effective_sample_size, operator_weights
from dorff.plan.sharing import LEAST_SHARE, sample_sizes
from dorff.spec.job import Job

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

M, POINTS, MOST = 1024, 100, 1.5  # columns; points; how much worse than fresh frequencies is allowed
RATIOS: Final = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5)
FINE: Final = np.exp(np.linspace(math.log(0.25), math.log(4.0), 65))
SCALARS: Final[dict[str, Callable[[float], kernels.ScalarKernel]]] = {
    "gaussian": kernels.Gaussian,
    "matern 5/2": lambda s: kernels.Matern(s, nu=2.5),
}
OPERATORS: Final[dict[str, Callable[[kernels.ScalarKernel], OperatorKernel]]] = {
    "decomposable": kernels.Decomposable,
    "curl-free trace": lambda scalar: kernels.CurlFree(scalar, "trace"),
    "curl-free unbounded": lambda scalar: kernels.CurlFree(scalar, "unbounded"),
    "divergence-free trace": lambda scalar: kernels.DivergenceFree(scalar, "trace"),
}
SAMPLERS: Final = {"orthogonal": frequencies.Orthogonal(), "iid": frequencies.IID()}
DRAWN: Final[dict[str, tuple[float, ...]]] = {"one": (1.0,), "two": (2 / 3, 5 / 3)}


@dataclass(frozen=True)
class Row:
    """One line of the CSV: means over the runs, and standard errors `_se`; sizes are shares of D."""

    d: int
    scalar: str
    operator: str
    sampler: str
    width: float
    drawn: str
    c: float
    runs: int
    formula: float | None
    seen: float
    size: float
    own_size: float
    accepted: bool
    error: float
    error_se: float
    unnormalised: float
    fresh: float
    fresh_se: float
    ratio: float
    ratio_se: float


@dataclass(frozen=True)
class Task:
    """All ratios of one family of kernels."""

    d: int
    scalar: str
    operator: str
    sampler: str
    width: float
    runs: int

    def recipe(self, *scales: float) -> Recipe:
        """The features of a mixture of length-scales."""
        p = self.p
        members = [self.kernel(scale).fix(self.d, p) for scale in scales]
        return Recipe(kernels.mixture(members, self.d, p), SAMPLERS[self.sampler], self.d, p, M)

    def kernel(self, scale: float) -> OperatorKernel:
        return OPERATORS[self.operator](SCALARS[self.scalar](scale))

    @property
    def p(self) -> int:
        return 1 if self.operator == "decomposable" else self.d

    def work(self) -> list[Row]:
        found: dict[tuple[str, float], list[tuple[float, ...]]] = {(name, c): [] for name in DRAWN for c in RATIOS}
        sources = {name: self.recipe(*scales) for name, scales in DRAWN.items()}
        for run in range(self.runs):
            drawn = {name: density_of(recipe, run) for name, recipe in sources.items()}
            for c in RATIOS:
                target, own = self.kernel(c).fix(self.d, self.p), density_of(self.recipe(c), run + 10**6)
                X = np.random.default_rng([run, 1]).uniform(0, self.width * c, (POINTS, self.d))
                K = target.gram(X, X)
                fresh, _ = errors(target, own, X, K)
                for name, density in drawn.items():
                    sizes = sample_sizes(target, sources[name], density, own)
                    plain, normal = errors(target, density, X, K)
                    seen = effective_sample_size(target, density)
                    found[name, c].append((seen, *sizes, normal, plain, fresh))
        return [self._row(name, c, np.array(values)) for (name, c), values in found.items()]

    def _row(self, drawn: str, c: float, values: FloatArray) -> Row:
        D, means = M // 2, values.mean(axis=0).tolist()
        seen, size, own_size, error, plain, fresh = means
        ratio = error / fresh
        # The ratio's deviations are linearised, paired by the points.
        spreads = [values[:, 3], values[:, 5], (values[:, 3] - ratio * values[:, 5]) / fresh]
        error_se, fresh_se, ratio_se = (float(np.std(part, ddof=1)) / math.sqrt(self.runs) for part in spreads)
        return Row(
            self.d, self.scalar, self.operator, self.sampler, self.width, drawn, c, self.runs, self._formula(drawn, c),
            seen / D, size / D, own_size / D, size >= LEAST_SHARE * own_size, error, error_se, plain, fresh, fresh_se,
            ratio, ratio_se,
        )  # fmt: skip

    def _formula(self, drawn: str, c: float) -> float | None:
        if drawn != "one" or self.scalar != "gaussian" or "unbounded" in self.operator:
            return None
        k = self.d + 2 * (self.operator != "decomposable")
        return max(0.0, 2 * c**2 - 1) ** (k / 2) / c ** (2 * k)

    def reach(self, drawn: str) -> tuple[float, float]:
        """The length-scales around s that are accepted, on a fine grid."""
        recipe, accepted = self.recipe(*DRAWN[drawn]), []
        densities = [density_of(recipe, run) for run in range(5)]
        for c in FINE:
            target, own = self.kernel(float(c)).fix(self.d, self.p), density_of(self.recipe(float(c)), 10**6)
            size, most = np.mean([sample_sizes(target, recipe, density, own) for density in densities], axis=0)
            accepted.append(size >= LEAST_SHARE * most)
        low = high = int(np.argmin(np.abs(FINE - 1.0)))
        while low > 0 and accepted[low - 1]:
            low -= 1
        while high + 1 < len(FINE) and accepted[high + 1]:
            high += 1
        return float(FINE[low]), float(FINE[high])


def density_of(recipe: Recipe, seed: int) -> Density:
    density = recipe.draw(seed).density
    assert density is not None
    return density


def errors(kernel: OperatorKernel, density: Density, X: FloatArray, K: FloatArray) -> tuple[float, float]:
    """|K - K^|_F / |K|_F of the features' gram at X, and the same normalised."""
    D = len(density[0])
    psi, normal = (operator_weights(kernel, 2 * D, density, normalize=on).psi[:D] for on in (False, True))
    t = X @ density[0].T
    waves = np.concatenate([np.cos(t), np.sin(t)], axis=1)
    weights = np.einsum("arp,arq->apq", psi, psi) / D
    factor, p = float(np.sum(normal**2) / np.sum(psi**2)), weights.shape[1]
    squares = np.zeros(2)
    for i in range(p):
        for j in range(i, p):
            found = (waves * np.tile(weights[:, i, j], 2)) @ waves.T
            for at, scale in enumerate((1.0, factor)):
                squares[at] += (1 + (i != j)) * float(np.sum((scale * found - K[:, :, i, j]) ** 2))
    plain, normalised = np.sqrt(squares) / float(np.linalg.norm(K))
    return float(plain), float(normalised)


def run(work: tuple[str, Task]) -> tuple[str, Task, Any]:
    kind, task = work
    return kind, task, task.work() if kind == "errors" else {name: task.reach(name) for name in DRAWN}


def tasks_of(quick: bool) -> Iterator[tuple[str, Task]]:
    runs = 3 if quick else 20
    for d in (3, 2):
        for scalar in SCALARS:
            for operator in OPERATORS:
                for sampler, width in (("orthogonal", 8.0), ("orthogonal", 4.0), ("iid", 8.0)):
                    yield "errors", Task(d, scalar, operator, sampler, width, runs)
                yield "reach", Task(d, scalar, operator, "orthogonal", 8.0, runs)


def fits(folder: Path) -> list[dict[str, Any]]:
    """RMSE on new points of re-targeted models and of fits of their own, and how many leaves each one computed."""
    found = []
    for n, noise in ((400, 0.5), (4000, 0.1)):
        rng = np.random.default_rng(0)
        truth, place = potential_field(rng), folder / str(n)
        X, test = rng.uniform(0, 4, (n, 2)), rng.uniform(0, 4, (4000, 2))
        place.mkdir()
        np.savez(place / "a.npz", X=X, Y=truth(X) + noise * rng.standard_normal((n, 2)))
        ingest([place / "a.npz"], place / "a.zarr", inputs=["X"], targets=["Y"])
        for kind in ("decomposable", "curl_free"):
            for c in (0.6, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75):
                own = fit(_job(place, f"own{kind}{c}", _config(kind, c)))
                trial = {"rows": n, "noise": noise, "kernel": kind, "c": c, "ridge_own": own.ridge,
                         "rmse_own": _rmse(place / f"own{kind}{c}-model", test, truth)}  # fmt: skip
                for name, scales in DRAWN.items():
                    job = _job(place, name + kind, _config(kind, c), drawn_for=[_config(kind, at) for at in scales])
                    try:
                        moved = fit(job)
                    except InputError:
                        trial[name] = None
                        continue
                    trial[name] = {"rmse": _rmse(place / f"{name}{kind}-model", test, truth), "ridge": moved.ridge,
                                   "leaves_computed": moved.leaves_computed}  # fmt: skip
                found.append(trial)
    return found


def potential_field(rng: np.random.Generator) -> Callable[[FloatArray], FloatArray]:
    """The gradient of a random potential of length-scale 1: a curl-free field of two outputs."""
    omega, phase = rng.standard_normal((200, 2)), rng.uniform(0, 2 * math.pi, 200)
    return lambda X: np.asarray(-np.sin(X @ omega.T + phase) @ omega * math.sqrt(2 / 200))


def _rmse(model: Path, X: FloatArray, truth: Callable[[FloatArray], FloatArray]) -> float:
    return float(np.sqrt(np.mean((load_model(model).predict(X) - truth(X)) ** 2)))


def _config(kind: str, scale: float) -> dict[str, Any]:
    return {"type": kind, "scalar": {"type": "gaussian", "lengthscale": scale}}


def _job(folder: Path, name: str, kernel: dict[str, Any], **features: Any) -> Job:
    ridges = {"from": 1e-11, "to": 1e-1, "count": 21}
    return Job.model_validate({
        "data": {"store": str(folder / "a.zarr")}, "kernel": kernel,
        "features": {"count": 400, "sampler": {"type": "orthogonal"}, **features},
        "solve": {"ridge": ridges}, "cluster": {"type": "serial"}, "state": str(folder / f"{name}-state"),
        "model": str(folder / f"{name}-model"),
    })  # fmt: skip


def summary(rows: Sequence[Row], reaches: dict[str, Any], trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst accepted ratio of each sampler and width, the cases above `MOST`, and the reaches."""
    worst = {}
    for width in sorted({row.width for row in rows}):
        for sampler in SAMPLERS:
            taken = [row for row in rows if row.accepted and row.width == width and row.sampler == sampler]
            if not taken:
                continue
            top = max(taken, key=lambda row: row.ratio)
            worst[f"{sampler}, box of {width:g} length-scales"] = {
                "accepted": len(taken), "above": sum(row.ratio > MOST for row in taken),
                "clearly_above": sum(row.ratio - 2 * row.ratio_se > MOST for row in taken),
                "worst": {key: getattr(top, key) for key in ("d", "scalar", "operator", "drawn", "c", "size", "ratio",
                                                             "ratio_se")},
            }  # fmt: skip
    return {"m": M, "points": POINTS, "runs": rows[0].runs, "worst": worst, "reach": reaches, "fits": trials}


def figure(path: Path, rows: Sequence[Row]) -> None:
    """A column an operator; of each d a row of errors over fresh ones and a row of effective sample sizes."""
    fig, axes = plt.subplots(4, 4, figsize=(15, 12), sharex=True, sharey="row", layout="constrained")
    for column, operator in enumerate(OPERATORS):
        for d in (2, 3):
            panel = [row for row in rows if row.operator == operator and row.d == d and row.sampler == "orthogonal"]
            top, bottom = axes[2 * (d - 2)][column], axes[2 * (d - 2) + 1][column]
            _panel([row for row in panel if row.width == 8.0], top, bottom)
            top.set_title(f"{operator}, d = {d}", fontsize=10)
    for row, label in zip(axes, ("error / fresh error", "effective sample size / its own") * 2, strict=True):
        row[0].set_ylabel(label)
    for axis in axes[3]:
        axis.set_xlabel("c: target's length-scale / s")
    handles, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=4)
    fig.savefig(path, dpi=100)
    plt.close(fig)


def _panel(rows: Sequence[Row], top: Axes, bottom: Axes) -> None:
    for number, drawn in enumerate(DRAWN):
        for scalar, style in zip(SCALARS, ("-", "--"), strict=True):
            line = [row for row in rows if row.drawn == drawn and row.scalar == scalar]
            c, color = [row.c for row in line], f"C{number}"
            told = {"one": "drawn for s", "two": "drawn for 2/3 s and 5/3 s"}[drawn]
            top.errorbar(
                c, [row.ratio for row in line], [2 * row.ratio_se for row in line], color=color, linestyle=style
            )
            bottom.plot(c, [row.size / row.own_size for row in line], color=color, linestyle=style)
            for kept, fill in ((True, color), (False, "white")):
                label = f"{scalar}, {told}: {'accepted' if kept else 'refused'}"
                at = [row for row in line if row.accepted == kept]
                top.plot([row.c for row in at], [row.ratio for row in at], "os"[scalar != "gaussian"], color=color,
                         markerfacecolor=fill, markersize=5, label=label)  # fmt: skip
    top.axhline(MOST, color="black", linewidth=0.8, linestyle=":")
    bottom.axhline(LEAST_SHARE, color="black", linewidth=0.8, linestyle=":")
    top.set(
        xscale="log",
        yscale="log",
        ylim=(0.4, 6),
        yticks=(0.5, 1, 1.5, 2, 4),
        yticklabels=("0.5", "1", "1.5", "2", "4"),
    )
    top.minorticks_off()
    bottom.set(
        xscale="log",
        xticks=(0.6, 0.8, 1, 1.5, 2, 2.5),
        xticklabels=("0.6", "0.8", "1", "1.5", "2", "2.5"),
        ylim=(0, 2),
    )
    bottom.minorticks_off()
    for axis in (top, bottom):
        axis.grid(alpha=0.3)


def report(found: dict[str, Any], rows: Sequence[Row]) -> None:
    for place, told in found["worst"].items():
        print(f"{place}: {told['accepted']} accepted, {told['above']} above {MOST}; worst {told['worst']}")
    for place, told in found["reach"].items():
        print(f"{place}: " + "; ".join(f"{name} {low:.2f} to {high:.2f}" for name, (low, high) in told.items()))
    for trial in found["fits"]:
        print(trial)


def main() -> None:
    """Compute, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="three runs; nothing is written unless --out is given")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began, rows, reaches = time.perf_counter(), list[Row](), dict[str, Any]()
    for kind, task, result in compute(run, tasks_of(given.quick), given.workers):
        if kind == "errors":
            rows += result
        else:
            reaches[f"d = {task.d}, {task.scalar}, {task.operator}"] = result
    rank = list(OPERATORS).index
    rows.sort(key=lambda row: (row.d, row.scalar, rank(row.operator), row.sampler, -row.width, row.drawn, row.c))
    with tempfile.TemporaryDirectory() as folder:
        found = summary(rows, dict(sorted(reaches.items())), fits(Path(folder)))
    report(found, rows)
    found["seconds"] = time.perf_counter() - began
    out = given.out or (None if given.quick else Path(__file__).parent / "results")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(out / "retarget.csv", rows)
        (out / "retarget.json").write_text(json.dumps(found, indent=1) + "\n")
        figure(out / "retarget.png", rows)


if __name__ == "__main__":
    main()
