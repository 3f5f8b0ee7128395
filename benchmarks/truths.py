"""Whether the uncertainty of a three-line job holds: the true function and new targets inside of its bands.

    python benchmarks/truths.py [--only NAME ...] [--models MODEL ...] [--subsample 1500] [--out benchmarks/results]

Every data set is made from a function that is known, so that f itself can be compared with `Model.std`. The list was
written down before the first run: a moving pair of eddies with five seeds, and ten more truths in 2, 3 and 4 inputs,
six of which are not drawn from a kernel. Models are

- ``job``: a job of `data`, `state` and `model` alone, on all rows;
- ``few``: the same job on the subsample;
- ``exact``: scikit-learn's exact Gaussian process with a Gaussian kernel, a length scale for each input and a noise
  variance, all by marginal likelihood, on the same subsample;
- ``lattice``: ``job`` with `features.sampler: lattice`, for up to three inputs.

Coverage is the share of entries inside of the central band of 50, 80 and 95%: of f by the standard deviation of f, of
new targets by that of a target, and of f in the third of the points with the smallest standard deviations.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from dorff import load_model
from dorff.data import ingest
from dorff.fit import fit
from dorff.spec.reader import load_job

FloatArray = npt.NDArray[np.float64]
Field = Callable[[FloatArray], FloatArray]  # inputs (n, d) to values (n, p)
Draw = Callable[[np.random.Generator, int], FloatArray]  # so many inputs (n, d)

QUANTILES: Final = {"50": 0.674490, "80": 1.281552, "95": 1.959964}
TEST_POINTS: Final = 3000
SPECTRAL_DRAWS: Final = 20_000  # frequencies of a draw from a kernel: far more than any fit has


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Training inputs, noisy targets and their groups (None: none); test inputs, and f and new targets there."""

    X: FloatArray
    Y: FloatArray
    groups: npt.NDArray[np.int64] | None
    X_test: FloatArray
    F_test: FloatArray
    Y_test: FloatArray

    def subsample(self, count: int) -> Rows:
        """Return the same with at most `count` training rows, drawn without replacement."""
        n = len(self.X)
        some = np.sort(np.random.default_rng(0).choice(n, min(count, n), replace=False))
        groups = None if self.groups is None else self.groups[some]
        return Rows(
            X=self.X[some],
            Y=self.Y[some],
            groups=groups,
            X_test=self.X_test,
            F_test=self.F_test,
            Y_test=self.Y_test,
        )


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Shares inside of the bands by their level, and the root mean square error of the mean."""

    function: dict[str, float]
    lowest_third: dict[str, float]
    targets: dict[str, float]
    rmse: float


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What a model says at the test points: means, standard deviations of f and of a target, all (n, p)."""

    mean: FloatArray
    std: FloatArray
    std_target: FloatArray
    features: str

    def coverage(self, rows: Rows) -> Coverage:
        """Compare with the truth."""
        low = self.std <= np.quantile(self.std, 1 / 3, axis=0)
        error = np.abs(self.mean - rows.F_test)
        target_error = np.abs(self.mean - rows.Y_test)
        inside = {level: error < z * self.std for level, z in QUANTILES.items()}
        return Coverage(
            function={level: float(values.mean()) for level, values in inside.items()},
            lowest_third={level: float(values[low].mean()) for level, values in inside.items()},
            targets={level: float((target_error < z * self.std_target).mean()) for level, z in QUANTILES.items()},
            rmse=float(np.sqrt(np.mean(error**2))),
        )


# Truths that are not drawn from a kernel.


def eddies(seed: int) -> Rows:
    """Drifters in two moving eddies over ten days: (x, y, hour) to (u, v), noise 0.03 m/s, tracks as groups."""
    rng = np.random.default_rng(seed)

    def velocity(points: FloatArray) -> FloatArray:
        x, y, t = points.T
        u, v = np.zeros_like(x), np.zeros_like(x)
        for cx, cy, vx, vy, radius, speed in (
            (40.0, 0.0, -0.35, 0.08, 28.0, 0.55),
            (-50.0, 30.0, 0.1, -0.2, 35.0, -0.40),
        ):
            dx, dy = x - (cx + vx * t), y - (cy + vy * t)
            gain = np.exp(0.5 - (dx**2 + dy**2) / (2 * radius**2)) * speed / radius
            u, v = u - dy * gain, v + dx * gain
        return np.column_stack([u, v])

    count, hours = 60, 240
    place = np.column_stack([rng.uniform(-100, 100, count), rng.uniform(-80, 80, count)])
    tracks = []
    for hour in range(hours):
        points = np.column_stack([place, np.full(count, float(hour))])
        tracks.append(points)
        middle = np.column_stack([place + 1.8 * velocity(points), np.full(count, hour + 0.5)])
        place = place + 3.6 * velocity(middle)
    X = np.stack(tracks, axis=1).reshape(count * hours, 3)
    groups = np.repeat(np.arange(count), hours)
    kept = rng.random(len(X)) > 0.15
    test = ~kept
    X_test = X[test] + rng.normal(0.0, [5.0, 5.0, 2.0], (int(test.sum()), 3))
    return observe(velocity, X[kept], X_test[:TEST_POINTS], noise=0.03, rng=rng, groups=groups[kept])


def observe(
    f: Field,
    X: FloatArray,
    X_test: FloatArray,
    *,
    noise: float,
    rng: np.random.Generator,
    groups: npt.NDArray[np.int64] | None = None,
) -> Rows:
    """Add noise of this standard deviation to a function at training and test inputs."""
    F, F_test = f(X), f(X_test)
    return Rows(
        X=X,
        Y=F + noise * rng.standard_normal(F.shape),
        groups=groups,
        X_test=X_test,
        F_test=F_test,
        Y_test=F_test + noise * rng.standard_normal(F_test.shape),
    )


def sampled(f: Field, draw: Draw, *, rows: int, noise: float, seed: int) -> Rows:
    """Observe a function at independent inputs, tested at others of the same law."""
    rng = np.random.default_rng(seed)
    return observe(f, draw(rng, rows), draw(rng, TEST_POINTS), noise=noise, rng=rng)


def uniform(d: int) -> Draw:
    """Return a draw of inputs from [-1, 1]^d."""
    return lambda rng, count: rng.uniform(-1.0, 1.0, (count, d))


def clusters(d: int) -> Draw:
    """Return a draw of inputs from eight normal clusters of unlike widths."""
    centres = np.random.default_rng(7).uniform(-1.0, 1.0, (8, d))
    widths = np.linspace(0.1, 0.5, 8)

    def draw(rng: np.random.Generator, count: int) -> FloatArray:
        which = rng.integers(0, 8, count)
        return np.asarray(centres[which] + widths[which, None] * rng.standard_normal((count, d)))

    return draw


def franke(X: FloatArray) -> FloatArray:
    """Franke's function (1979) on [-1, 1]^2."""
    x, y = 4.5 * (X + 1.0).T
    value = 0.75 * np.exp(-((x - 2) ** 2 + (y - 2) ** 2) / 4)
    value += 0.75 * np.exp(-((x + 1) ** 2) / 49 - (y + 1) / 10)
    value += 0.5 * np.exp(-((x - 7) ** 2 + (y - 3) ** 2) / 4)
    value -= 0.2 * np.exp(-((x - 4) ** 2) - (y - 7) ** 2)
    return np.asarray(value[:, None])


def front(X: FloatArray) -> FloatArray:
    """A front, a fifth of the box wide, along a wave."""
    return np.asarray(np.tanh((X[:, 1] - 0.4 * np.sin(3 * X[:, 0])) / 0.2)[:, None])


def vortices(X: FloatArray) -> FloatArray:
    """Velocities of six vortices with cores of solid rotation (Rankine, smoothed as Lamb and Oseen have it)."""
    rng = np.random.default_rng(3)
    value = np.zeros((len(X), 2))
    for _ in range(6):
        centre, strength, radius = rng.uniform(-0.8, 0.8, 2), rng.normal(), rng.uniform(0.1, 0.3)
        dx, dy = (X - centre).T
        square = dx**2 + dy**2 + 1e-12
        speed = strength * radius * (1.0 - np.exp(-square / radius**2)) / square
        value += np.column_stack([-dy * speed, dx * speed])
    return value


def double_gyre(X: FloatArray) -> FloatArray:
    """The periodically driven double gyre of Shadden et al. (2005): (x, y, t) to (u, v)."""
    x, y, t = X[:, 0] + 1.0, 0.5 * (X[:, 1] + 1.0), 5.0 * (X[:, 2] + 1.0)
    a = 0.25 * np.sin(2 * np.pi * t / 10)
    f, slope = a * x**2 + (1 - 2 * a) * x, 2 * a * x + 1 - 2 * a
    u = -np.sin(np.pi * f) * np.cos(np.pi * y)
    return np.column_stack([u, np.cos(np.pi * f) * np.sin(np.pi * y) * slope])


def ishigami(X: FloatArray) -> FloatArray:
    """Ishigami and Homma's function (1990), over its standard deviation."""
    a, b, c = np.pi * X.T
    return np.asarray(((np.sin(a) + 7 * np.sin(b) ** 2 + 0.1 * c**4 * np.sin(a)) / 3.72)[:, None])


def plume(X: FloatArray) -> FloatArray:
    """A drifting, spreading plume: (x, y, z, t) to a concentration."""
    t = 0.5 * (X[:, 3] + 1.0)
    width = 0.3 + 0.3 * t
    square = (X[:, 0] + 0.5 - t) ** 2 + (X[:, 1] - 0.3 * np.sin(4 * t)) ** 2 + 0.5 * X[:, 2] ** 2
    return np.asarray((np.exp(-square / (2 * width**2)) / width)[:, None])


def from_kernel(d: int, p: int, lengthscale: float, *, nu: float = np.inf, seed: int) -> Field:
    """Draw p functions of a Gaussian (nu infinite) or Matern kernel of variance 1 by its spectrum."""
    rng = np.random.default_rng(seed)
    omega = rng.standard_normal((SPECTRAL_DRAWS, d)) / lengthscale
    if np.isfinite(nu):
        omega *= np.sqrt(2 * nu / rng.chisquare(2 * nu, (SPECTRAL_DRAWS, 1)))
    phase = rng.uniform(0.0, 2 * np.pi, SPECTRAL_DRAWS)
    weights = rng.standard_normal((SPECTRAL_DRAWS, p)) * np.sqrt(2.0 / SPECTRAL_DRAWS)

    def f(X: FloatArray) -> FloatArray:
        parts = [np.cos(X[at : at + 1000] @ omega.T + phase) @ weights for at in range(0, len(X), 1000)]
        return np.concatenate(parts)

    return f


TRUTHS: Final[dict[str, Callable[[], Rows]]] = {
    **{f"eddies {seed}": lambda seed=seed: eddies(seed) for seed in range(1, 6)},  # type: ignore[misc]
    "franke, few": lambda: sampled(franke, uniform(2), rows=200, noise=0.05, seed=1),
    "front": lambda: sampled(front, uniform(2), rows=4000, noise=0.1, seed=2),
    "vortices": lambda: sampled(vortices, uniform(2), rows=1500, noise=0.05, seed=3),
    "double gyre": lambda: sampled(double_gyre, uniform(3), rows=25_000, noise=0.1, seed=4),
    "ishigami": lambda: sampled(ishigami, uniform(3), rows=2000, noise=0.1, seed=5),
    "plume": lambda: sampled(plume, uniform(4), rows=30_000, noise=0.1, seed=6),
    "gaussian 2": lambda: sampled(from_kernel(2, 2, 0.15, seed=1), clusters(2), rows=20_000, noise=0.2, seed=7),
    "matern 3": lambda: sampled(from_kernel(3, 1, 0.6, nu=2.5, seed=2), clusters(3), rows=8000, noise=0.2, seed=8),
    "gaussian 4": lambda: sampled(from_kernel(4, 1, 0.7, seed=3), uniform(4), rows=10_000, noise=0.2, seed=9),
    "gaussian 4, few": lambda: sampled(from_kernel(4, 2, 1.0, seed=4), uniform(4), rows=300, noise=0.1, seed=10),
}


def fit_job(rows: Rows, features: str) -> Fitted:
    """Fit a job of `data`, `state` and `model`, and what the text `features` says more."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arrays = {"x": rows.X, "y": rows.Y}
        if rows.groups is not None:
            arrays["g"] = rows.groups
        np.savez(folder / "rows.npz", **arrays)
        groups = None if rows.groups is None else "g"
        ingest([folder / "rows.npz"], folder / "data.zarr", inputs=["x"], targets=["y"], groups=groups)
        (folder / "job.yaml").write_text(f"data: {{store: data.zarr}}\nstate: state\nmodel: model\n{features}")
        report = fit(load_job(folder / "job.yaml"))
        model = load_model(folder / "model")
    for warning in report.warnings:
        print(f"    {warning}", flush=True)
    X = rows.X_test
    return Fitted(
        mean=model.predict(X),
        std=model.std(X),
        std_target=model.std(X, noise=True),
        features=f"{model.feature_map.m} {model.sampler['type']}",
    )


def fit_exact(rows: Rows) -> Fitted:
    """Fit an exact Gaussian process, its parameters by marginal likelihood."""
    scale, centre = rows.X.std(axis=0), rows.X.mean(axis=0)
    mean, spread = rows.Y.mean(axis=0), rows.Y.std(axis=0)
    kernel = ConstantKernel(1.0) * RBF(np.ones(rows.X.shape[1]), (0.01, 100.0)) + WhiteKernel(0.1, (1e-8, 10.0))
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=0, random_state=0)
    process.fit((rows.X - centre) / scale, (rows.Y - mean) / spread)
    values, std = process.predict((rows.X_test - centre) / scale, return_std=True)
    shape = rows.F_test.shape
    target_std = np.reshape(std, shape) * spread
    noise = process.kernel_.k2.noise_level * spread**2
    return Fitted(
        mean=np.reshape(values, shape) * spread + mean,
        std=np.sqrt(np.maximum(target_std**2 - noise, 0.0)),
        std_target=target_std,
        features="exact",
    )


def run(rows: Rows, model: str, subsample: int) -> Fitted | None:
    """Fit one model; None for a lattice of too many inputs."""
    if model == "job":
        return fit_job(rows, "")
    if model == "few":
        return fit_job(rows.subsample(subsample), "")
    if model == "exact":
        return fit_exact(rows.subsample(subsample))
    if rows.X.shape[1] > 3:
        return None
    return fit_job(rows, "features: {sampler: {type: lattice}}\n")


def main(models: Sequence[str] = ("job", "few", "exact", "lattice")) -> None:
    """Run what was asked for, and keep it beside what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--models", nargs="*", default=models)
    parser.add_argument("--subsample", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of an exact process at a bound
    path = options.out / "truths.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in options.only or TRUTHS:
        rows = TRUTHS[name]()
        for model in options.models:
            fitted = run(rows, model, options.subsample)
            if fitted is None:
                continue
            coverage = fitted.coverage(rows)
            results.setdefault(name, {})[model] = asdict(coverage) | {"features": fitted.features}
            shares = "/".join(f"{share:.3f}" for share in coverage.function.values())
            targets = "/".join(f"{share:.3f}" for share in coverage.targets.values())
            print(
                f"{name:16s} {model:8s} f {shares}  lowest third {coverage.lowest_third['95']:.3f}  "
                f"targets {targets}  rmse {coverage.rmse:.5f}  {fitted.features}",
                flush=True,
            )
            options.out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
