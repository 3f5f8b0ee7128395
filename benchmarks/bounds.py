"""How many features the bounds ask for, and how many are needed: dorff.bounds against simulation.

    python benchmarks/bounds.py [--draws 300] [--out benchmarks/results] [--quick]

Inputs in a ball whose diameter is two length-scales, error 0.2 or 0.1 of |K(x, x)| with probability 0.95 (epsilon and
delta of the papers). `promised` is the D a bound asks for, `needed` the D at which the 95% quantile of the simulated
error is epsilon (interpolated in logarithms; beyond the largest D simulated, by the slope -1/2: `extrapolated`); the
sup is over a grid of differences, and so a little low. `tightest` is the least, over D and probabilities, of the
epsilon that a bound promises over the simulated quantile: below 1 the bound would be broken. `broken` counts the D and
probabilities at which the epsilon is exceeded more often than allowed, by four standard errors.

Second, degree (3,3) quadrature against independent frequencies as Munkhoeva et al. (2018), section 3, compare
them: columns promised and needed, against d. Third, the statements that fail as printed, with numbers.

With --quick nothing is written unless --out is given.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import printed_bounds

from dorff import bounds, frequencies, kernels
from dorff.bounds import Constants
from dorff.kernels import BaseKernel, Measure
from dorff.kernels.scalar import FloatArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DIAMETER, DELTA, SHARES = 2.0, 0.05, (0.2, 0.1)
LEVELS = (0.9, 0.5, 0.2, 0.05)
GRID, AT = 300, 40  # differences, and the one of the pointwise bound
G = kernels.Gaussian(1.0)
CASES: dict[str, tuple[BaseKernel, int]] = {
    "decomposable, d = 2": (kernels.Decomposable(G, np.array([[1.0, 0.5], [0.5, 1.0]])), 2),
    "decomposable, d = 4": (kernels.Decomposable(G, np.array([[1.0, 0.5], [0.5, 1.0]])), 4),
    "curl, trace, d = 2": (kernels.CurlFree(G, Measure.TRACE), 2),
    "curl, bounded, d = 2": (kernels.CurlFree(G, Measure.bounded(0.5)), 2),
    "curl, unbounded, d = 2": (kernels.CurlFree(G, Measure.UNBOUNDED), 2),
    "curl, trace, d = 4": (kernels.CurlFree(G, Measure.TRACE), 4),
    "div, trace, d = 4": (kernels.DivergenceFree(G, Measure.TRACE), 4),
    "div, unbounded, d = 4": (kernels.DivergenceFree(G, Measure.UNBOUNDED), 4),
}
Bound = Callable[[Constants, float, int], float]
#: The bound, and what it bounds: spectral norm or Hilbert-Schmidt norm, sup over the grid or one difference.
BOUNDS: dict[str, tuple[Bound, str]] = {
    "Brault 10, derived": (bounds.brault_uniform, "spectral"),
    "Brault 10, u corrected": (printed_bounds.brault_printed, "spectral"),
    "Minh 11 (pointwise)": (bounds.minh_pointwise, "point"),
    "Minh 12": (bounds.minh_uniform, "hs"),
    "Rahimi & Recht": (bounds.rahimi_recht, "spectral"),
    "Sutherland & Schneider": (bounds.sutherland_schneider, "spectral"),
    "Sriperumbudur & Szabo": (bounds.sriperumbudur_szabo, "spectral"),
}


@dataclass(frozen=True)
class Row:
    """One bound of one kernel at one epsilon (in |K(x, x)|)."""

    kernel: str
    bound: str
    epsilon: float
    promised: int
    needed: int
    extrapolated: bool
    ratio: float
    tightest: float
    broken: int


@dataclass(frozen=True)
class Simulated:
    """Errors (draws, len(sizes)) in three norms, for growing D."""

    sizes: tuple[int, ...]
    spectral: FloatArray
    hs: FloatArray
    point: FloatArray

    def needed(self, norm: str, epsilon: float) -> tuple[int, bool]:
        """D at which the error's 95% quantile is epsilon, and whether that lies beyond the sizes simulated."""
        logs = np.log(np.quantile(getattr(self, norm), 1 - DELTA, axis=0))
        wanted, sizes = math.log(epsilon), np.log(self.sizes)
        if wanted < logs[-1]:
            return math.ceil(math.exp(sizes[-1] + 2 * (logs[-1] - wanted))), True
        return math.ceil(math.exp(np.interp(-wanted, -logs, sizes))), False


def ball(d: int, radius: float) -> FloatArray:
    """Differences (GRID, d) in a ball, half of them on its surface, where the variance is mostly largest."""
    rng = np.random.default_rng(1)
    way = rng.standard_normal((GRID, d))
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    way[: GRID // 2] *= rng.random((GRID // 2, 1)) ** (1 / d)
    way[0] = 0
    way[AT] *= 0.5 / np.linalg.norm(way[AT])
    return radius * way


def weights(kernel: BaseKernel, omega: FloatArray) -> FloatArray:
    """mu~ at frequencies (D, d) of the kernel's measure, (D, p, p)."""
    measure = kernel.measure or Measure.UNBOUNDED
    scalar: Any = kernel.scalar
    root = kernel.root(omega)
    ratio = np.exp(scalar.log_density(omega, Measure.UNBOUNDED) - scalar.log_density(omega, measure))
    found: FloatArray = ratio[:, None, None] * np.swapaxes(root, 1, 2) @ root
    return found


def simulate(kernel: BaseKernel, d: int, sizes: tuple[int, ...], draws: int) -> Simulated:
    """Errors of K~ from the first D of independent frequencies, for each D."""
    grid, scalar = ball(d, DIAMETER), kernel.scalar
    exact = kernel.gram(grid, np.zeros((1, d)))[:, 0]
    errors = np.empty((3, draws, len(sizes)))
    for draw in range(draws):
        omega = scalar.draw(np.random.default_rng(draw), sizes[-1], d, kernel.measure or Measure.UNBOUNDED)
        mu, waves = weights(kernel, omega).reshape(len(omega), -1), np.cos(grid @ omega.T)
        total, start = np.zeros((GRID, mu.shape[1])), 0
        for index, size in enumerate(sizes):
            total += waves[:, start:size] @ mu[start:size]
            start = size
            error = total.reshape(exact.shape) / size - exact
            spectral, hs = np.abs(np.linalg.eigvalsh(error)).max(axis=1), np.linalg.norm(error, axis=(1, 2))
            errors[:, draw, index] = spectral.max(), hs.max(), hs[AT]
    return Simulated(sizes, *errors)


def promised_epsilon(bound: Callable[[float, int], float], probability: float, D: int) -> float:
    """The smallest epsilon at which the bound is at most `probability`."""
    low, high = 1e-9, 1e9
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if bound(middle, D) <= probability else (middle, high)
    return high


def table(name: str, simulated: Simulated) -> Iterator[Row]:
    """The rows of one kernel."""
    kernel, d = CASES[name]
    p = 2 if isinstance(kernel, kernels.Decomposable) else d
    constants = Constants.of(kernel, d=d, p=p, diameter=DIAMETER)
    for title, (function, norm) in BOUNDS.items():
        scalar = function in (bounds.rahimi_recht, bounds.sutherland_schneider, bounds.sriperumbudur_szabo)
        if (scalar and not constants.decomposable) or (norm != "spectral" and math.isinf(constants.hs_largest)):
            continue
        bound, errors = partial(function, constants), getattr(simulated, norm)
        tightest, broken = math.inf, 0
        for index, size in enumerate(simulated.sizes):
            for level in LEVELS:
                epsilon, seen = promised_epsilon(bound, level, size), errors[:, index]
                tightest = min(tightest, epsilon / float(np.quantile(seen, 1 - level)))
                broken += bool(np.mean(seen >= epsilon) > level + 4 * math.sqrt(level * (1 - level) / len(seen)))
        for share in SHARES:
            epsilon = share * constants.top
            promised = bounds.features_needed(bound, epsilon, DELTA)
            needed, beyond = simulated.needed(norm, epsilon)
            yield Row(name, title, share, promised, needed, beyond, promised / needed, tightest, broken)


def scalar_errors(sampler: frequencies.Sampler, d: int, ratio: float, count: int, draws: int) -> FloatArray:
    """Sup errors (draws,) of the Gaussian kernel from `count` frequencies of a sampler."""
    kernel, grid = kernels.Decomposable(G).fix(d, 1), ball(d, ratio)
    exact, found = np.exp(-0.5 * np.sum(grid**2, axis=1)), np.empty(draws)
    for seed in range(draws):
        rule = sampler.draw(kernel, d=d, p=1, count=count, seed=seed)
        found[seed] = np.abs(rule.centre + np.cos(grid @ rule.omega.T) @ rule.weights**2 - exact).max()
    return found


def quadrature(draws: int, epsilon: float) -> Iterator[dict[str, Any]]:
    """Columns promised and needed, by degree (3,3) quadrature and by independent frequencies."""
    samplers = {"quadrature": frequencies.Quadrature(mixing="haar"), "independent": frequencies.IID()}
    for ratio in (1.0, 2.0):
        for d in (1, 2, 4, 8, 16):
            constants = Constants.of(kernels.Decomposable(G), d=d, p=1, diameter=ratio)
            promised = {
                "Munkhoeva 3.1, M = 1/2": partial(printed_bounds.munkhoeva_printed, d, ratio, bound=0.5),
                "Munkhoeva 3.1": partial(printed_bounds.munkhoeva_printed, d, ratio),
                "Munkhoeva's RFF": partial(printed_bounds.munkhoeva_rff_printed, d, ratio),
                "quadrature, derived": partial(bounds.quadrature_uniform, d, ratio),
                "Sutherland & Schneider": partial(bounds.sutherland_schneider, constants),
                "RFF, derived": partial(bounds.brault_uniform, constants),
            }
            # The papers' D is a number of columns, ours one of frequencies: two columns.
            row: dict[str, Any] = {"d": d, "ratio": ratio, "epsilon": epsilon}
            for title, bound in promised.items():
                columns = bounds.features_needed(bound, epsilon, DELTA)
                row[title] = columns if title.startswith("Munkhoeva") else 2 * columns
            for title, sampler in samplers.items():
                sizes = tuple((d + 1) * n for n in sorted({max(1, round(m / (d + 1))) for m in (8, 32, 128, 512)}))
                errors = np.stack([scalar_errors(sampler, d, ratio, size, draws) for size in sizes], axis=1)
                needed, beyond = Simulated(sizes, errors, errors, errors).needed("spectral", epsilon)
                row[f"{title} needed"], row[f"{title} extrapolated"] = 2 * needed, beyond
            yield row


def faults() -> dict[str, Any]:
    """Numbers for the statements that fail as printed."""
    rng = np.random.default_rng(0)
    ratio, epsilon = 1000.0, 0.1
    columns = bounds.features_needed(partial(printed_bounds.munkhoeva_printed, 1, ratio, bound=0.5), epsilon, DELTA)
    rho = np.sqrt(rng.chisquare(3, (1000, columns // 4, 2)))
    missed = np.abs(np.mean(1 - np.sum((1 - np.cos(rho * ratio)) / rho**2, axis=2) / 2, axis=1)) > epsilon
    x, omega = np.linspace(0, 12, 3001), np.abs(rng.standard_normal(5000))
    slopes = np.abs(-omega[:, None] * np.sin(omega[:, None] * x) + x * np.exp(-(x**2) / 2)).max(axis=1)
    phase = 2 * np.pi * np.arange(64) / 64
    cosine, A = np.cos(phase), 1 + 0.1 * np.cos(2 * phase)
    pieces = [
        np.array([[v]]) for v in (A.mean(), (cosine * A).mean(), (np.cos(2 * phase) * A).mean(), A.mean(), A.var())
    ]
    field = kernels.CurlFree(kernels.Gaussian(0.03), Measure.UNBOUNDED)
    wide = Constants.of(field, d=2, p=2, diameter=0.06)
    # Where u < 0 the print has a probability of zero at an epsilon that ten frequencies always exceed somewhere.
    u, b, D = printed_bounds.printed_spread(wide), wide.variance, 10
    small = (1 - 1e-6) * 6 * b / -u
    exponent = small**2 * D / (8 * 4 * (b + small * u / 6))
    grid, exceeded = ball(2, 0.06), 0
    for seed in range(200):
        frequency = kernels.Gaussian(0.03).draw(np.random.default_rng(seed), D, 2, Measure.UNBOUNDED)
        mean = np.tensordot(np.cos(grid @ frequency.T) / D, weights(field, frequency), 1)
        error = mean - field.gram(grid, np.zeros((1, 2)))[:, 0]
        exceeded += bool(np.abs(np.linalg.eigvalsh(error)).max() > small)
    return {
        "munkhoeva_half": {"d": 1, "ratio": ratio, "columns": columns, "allowed": DELTA, "seen": float(missed.mean())},
        "lipschitz_squared_over_sigma_squared_at_one_frequency": float(np.mean(slopes**2)),
        "proposition_12": {"printed": printed_bounds.variance_printed(*pieces), "exact": float(np.var(cosine * A))},
        "spread_of_curl_at_lengthscale_0.03": {
            "printed": u,
            "corrected": printed_bounds.corrected_spread(wide),
            "epsilon": small / wide.top,
            "log_of_printed_tail": -exponent,
            "seen": exceeded / 200,
        },
    }


def variances() -> dict[str, list[float]]:
    """D |V[K~_0(delta)]| of the curl-free Gaussian, d = 4, rho_0: exact and bounds (Brault's figure 1 B)."""
    d, kernel = 4, kernels.CurlFree(G, Measure.UNBOUNDED)
    origin = np.zeros((1, d))
    mean, spread = kernel.gram(origin, origin)[0, 0], bounds.variance(kernel, origin[0])
    found: dict[str, list[float]] = {"delta": [], "exact": [], "Prop. 12, printed": [], "always true": []}
    for r in np.linspace(0, 4, 81):
        delta = r * np.eye(d)[:1]
        at, twice = (kernel.gram(x * delta, origin)[0, 0] for x in (1, 2))
        found["delta"].append(float(r))
        found["exact"].append(float(np.linalg.norm(bounds.variance(kernel, delta[0]), 2)))
        found["Prop. 12, printed"].append(printed_bounds.variance_printed(mean, at, twice, mean, spread))
        cosine = float(G.gram(2 * delta, origin)[0, 0])
        found["always true"].append(bounds.variance_bound(mean, at, twice, mean, spread, cosine))
    return found


def draw(
    path: Path, rows: list[Row], shown: Simulated, rules: list[dict[str, Any]], curve: dict[str, list[float]]
) -> None:
    """Four panels: looseness by kernel, errors against D, variance, quadrature."""
    fig, axes = plt.subplots(2, 2, figsize=(13, 9.5), layout="constrained")
    colours = dict(zip(BOUNDS, plt.get_cmap("tab10").colors, strict=False))
    axis, names = axes[0, 0], list(CASES)
    for title, colour in colours.items():
        own = [row for row in rows if row.bound == title and row.epsilon == SHARES[1]]
        axis.plot([names.index(r.kernel) for r in own], [r.ratio for r in own], "o", color=colour, label=title)
    axis.set_xticks(range(len(names)), names, rotation=25, ha="right")
    axis.set(
        yscale="log", ylabel="D promised / D needed", title=f"error {SHARES[1]} |K(x, x)|, probability {1 - DELTA}"
    )
    axis.set_ylim(1, 1e6)
    axis.legend(fontsize=8, ncols=2)
    axis.grid(alpha=0.3)
    _errors(axes[0, 1], shown, colours)
    axis = axes[1, 0]
    for (title, values), style in zip(list(curve.items())[1:], ("k-", "C3--", "C0:"), strict=True):
        axis.plot(curve["delta"], values, style, label=title)
    axis.set(
        xlabel="|x - z| / lengthscale",
        ylabel="D |V|, in lengthscale^-4",
        title="variance, curl-free, unbounded, d = 4",
    )
    axis.set_ylim(0, 6.5)
    axis.legend()
    axis.grid(alpha=0.3)
    _rules(axes[1, 1], [row for row in rules if row["ratio"] == 1.0])
    fig.savefig(path, dpi=110)
    plt.close(fig)


def _errors(axis: Any, shown: Simulated, colours: dict[str, Any]) -> None:
    """The simulated error of the curl-free kernel against D, and the epsilon that each bound promises."""
    kernel, d = CASES["curl, trace, d = 2"]
    constants = Constants.of(kernel, d=d, p=d, diameter=DIAMETER)
    for norm, style, text in (
        ("spectral", "k-", "sup, spectral"),
        ("hs", "k--", "sup, HS"),
        ("point", "k:", "at one delta, HS"),
    ):
        axis.plot(shown.sizes, np.quantile(getattr(shown, norm), 1 - DELTA, axis=0), style, label=f"simulated, {text}")
    for title, (function, _) in list(BOUNDS.items())[:4]:
        promised = [promised_epsilon(partial(function, constants), DELTA, D) for D in shown.sizes]
        axis.plot(shown.sizes, promised, color=colours[title], label=title)
    axis.set(xscale="log", yscale="log", xlabel="D", ylabel="95% error", title="curl-free, trace measure, d = 2")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _rules(axis: Any, rules: list[dict[str, Any]]) -> None:
    """Columns promised and needed against d."""
    styles = {
        "quadrature needed": "C0o-", "independent needed": "C1o-",
        "quadrature, derived": "C0--", "RFF, derived": "C1--",
        "Munkhoeva 3.1": "C0:", "Munkhoeva's RFF": "C1:", "Sutherland & Schneider": "C3-.",
    }  # fmt: skip
    for title, style in styles.items():
        axis.plot([row["d"] for row in rules], [row[title] for row in rules], style, label=title)
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="d",
        ylabel="columns",
        title=f"quadrature (3,3), diameter one lengthscale, error {rules[0]['epsilon']}",
    )
    axis.set_ylim(1, 2e6)
    axis.set_xticks([row["d"] for row in rules], [str(row["d"]) for row in rules])
    axis.legend(fontsize=8, ncols=2)
    axis.grid(alpha=0.3)


def main() -> None:
    """Compute, print and write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="few draws")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began, draws = time.perf_counter(), 40 if given.quick else given.draws
    sizes = (16, 64, 256, 1024) if given.quick else (16, 32, 64, 128, 256, 512, 1024, 2048)
    simulated = {name: simulate(kernel, d, sizes, draws) for name, (kernel, d) in CASES.items()}
    rows = [row for name in CASES for row in table(name, simulated[name])]
    for row in rows:
        mark = "*" if row.extrapolated else " "
        names = f"{row.kernel:<24}{row.bound:<24}{row.epsilon:>5}"
        print(f"{names}{row.promised:>12}{row.needed:>8}{mark}{row.ratio:>9.1f}{row.tightest:>7.2f}{row.broken:>3}")
    rules = list(quadrature(draws, 0.1))
    for rule in rules:
        print(rule)
    wrong, curve = faults(), variances()
    print(json.dumps(wrong, indent=1))
    print(f"{time.perf_counter() - began:.0f} s")
    out = given.out or (None if given.quick else Path(__file__).parent / "results")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        found = {"diameter": DIAMETER, "delta": DELTA, "draws": draws, "bounds": [asdict(row) for row in rows],
                 "quadrature": rules, "false_as_printed": wrong, "variance": curve}  # fmt: skip
        (out / "bounds.json").write_text(json.dumps(found, indent=1) + "\n")
        draw(out / "bounds.png", rows, simulated["curl, trace, d = 2"], rules, curve)


if __name__ == "__main__":
    main()
