"""Peers of the sampler `lattice` on the same data and threads: EFGP by finufft, GPyTorch's KISS-GP and SVGP.

    python benchmarks/lattice_peers.py [--peers-python PYTHON] [--rows N] [--cases gaussian,published,matern]
        [--who efgp,lattice,job,kissgp,svgp] [--threads 1,2] [--repeats 3]
        [--limit SECONDS] [--where WORDS] [--out FILE]

Results go to results/lattice_peers.json; `python benchmarks/readme.py` writes a table of docs/lattice.md from them. One
thread, and two, for all. finufft and GPyTorch are looked for in PYTHON, a Python that has them; this one needs neither,
and a peer that is not installed is left out, and said to be. Each run has a process of its own, which has done a small
fit and prediction before it is timed (`start_s` is what that and the imports take); all take turns.

Data are those of Greengard, Rachh & Barnett 2025 and of their comparison, gp-shootout: points spread evenly in the unit
square, f(x) = cos(2 pi w.x + 1.3), |w| = 3, with noise; kernels of length-scale 0.1 with k(x, x) = 1, and a prior mean
of 0. "published" is the case of that comparison's log. Hyperparameters are given to all.

- efgp: our own, from the paper: complex Fourier modes, sums by finufft, plain conjugate gradients to the tolerance.
- lattice: dorff's sums of rows in memory, and its solve. job: a fit from Zarr to a published model, as users have it.
- kissgp: GridInterpolationKernel. In 2-d it takes the product of a kernel of each input: of Gaussian kernels alone.
- svgp: inducing points on a grid, natural gradients on minibatches, once through.

`away` is the largest difference of the posterior mean at 10^4 points to that of a reference: EFGP at 1e-12 of Gaussian
kernels, dorff's lattice at 1e-5 of Matern ones; `agreement` is that of the other, at 1e-11 and 1e-6, with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

OUT = Path(__file__).parent / "results" / "lattice_peers.json"
FEW, MANY, SMALL = 10_000, 1_000_000, 2_000  # points to predict at; rows of what comes before the clock
COUNT = 400_000  # features at most: more than any run has
SLOW = 60.0  # seconds of a run from which on it is repeated once only
LENGTH = 0.1
FloatArray = npt.NDArray[np.float64]
Config = dict[str, Any]
Predict = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Case:
    """The kernel, Matern where there is a nu, and the noise; how accurate runs are asked to be, which largest errors of
    the posterior mean the table compares them at, and the error that EFGP is asked for in or beside the reference."""

    name: str
    nu: float | None
    noise: float
    errors: tuple[float, ...]
    targets: tuple[float, ...]
    reference: float


CASES = {
    case.name: case
    for case in (
        Case("gaussian", None, 0.3, (1e-4, 1e-6, 1e-8), (1e-2, 1e-3, 1e-5), 1e-12),
        Case("published", None, 1.0, (1e-4, 1e-6, 1e-8), (1e-2, 1e-3, 1e-5), 1e-12),
        Case("matern", 1.5, 0.3, (1e-2, 1e-3, 1e-4), (1e-1, 5e-2, 1e-2), 1e-6),
    )
}


@dataclass(frozen=True)
class Data:
    """Rows in memory, and the same in a store of the folder."""

    X: FloatArray
    y: FloatArray
    folder: Path
    store: str

    @classmethod
    def read(cls, folder: Path, case: str, store: str) -> Data:
        return cls(np.load(folder / f"X-{store}.npy"), np.load(folder / f"y-{case}-{store}.npy"), folder, store)


def truth(X: FloatArray) -> FloatArray:
    return np.asarray(np.cos(2 * np.pi * (X @ np.array([1.8, 2.4])) + 1.3))


# ---- EFGP


def spectrum(case: Case, r: FloatArray) -> FloatArray:
    """The kernel's Fourier transform at frequencies of length r, in cycles, in two dimensions."""
    if case.nu is None:
        return np.asarray(2 * np.pi * LENGTH**2 * np.exp(-2 * (np.pi * LENGTH * r) ** 2))
    inside = 2 * case.nu / LENGTH**2
    return np.asarray(4 * np.pi * case.nu * inside**case.nu * (inside + (2 * np.pi * r) ** 2) ** (-case.nu - 1))


def correlation(case: Case, r: float) -> float:
    if case.nu is None:
        return math.exp(-0.5 * (r / LENGTH) ** 2)
    s = math.sqrt(2 * case.nu) * r / LENGTH
    return {0.5: 1.0, 1.5: 1 + s, 2.5: 1 + s + s * s / 3}[case.nu] * math.exp(-s)


def decayed(function: Callable[[float], float], error: float) -> float:
    """Where a function that falls has come down to the error."""
    low, high = 1e-3, 2e-3
    while function(high) > error:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > error else (low, middle)
    return high


def efgp(data: Data, case: Case, how: Config) -> Predict:
    """Greengard, Rachh & Barnett 2025; frequencies by the rule of gp-shootout's get_xis, until both the kernel and its
    spectrum have come down to the error."""
    import finufft
    from scipy import fft

    error, threads = how["error"], how["threads"]
    with_threads = {"eps": max(error / 10, 1e-14), "nthreads": threads}
    low, high = data.X.min(axis=0), data.X.max(axis=0)
    step = 1 / (float((high - low).max()) + decayed(lambda r: correlation(case, r), error))
    tail = decayed(
        lambda r: 1.0 if r < 1 else r * float(spectrum(case, np.array(r)) / spectrum(case, np.array(0))), error
    )
    most = math.ceil(tail / step)
    modes, centre = 2 * most + 1, (low + high) / 2
    xi = step * np.arange(-most, most + 1)
    root = np.sqrt(spectrum(case, np.hypot(xi[:, None], xi)) * step**2)

    def angles(X: FloatArray) -> list[FloatArray]:
        return list(np.ascontiguousarray((2 * np.pi * step * (X - centre)).T))

    theta, wide = angles(data.X), 2 * modes - 1
    sums = finufft.nufft2d1(*theta, np.ones(len(data.y), complex), (wide, wide), isign=-1, **with_threads)
    rhs = root * finufft.nufft2d1(*theta, data.y.astype(complex), (modes, modes), isign=-1, **with_threads)
    points = fft.next_fast_len(wide)
    padded = np.zeros((points, points), complex)
    padded[:wide, :wide] = sums
    turned = fft.fftn(np.roll(padded, (-2 * most, -2 * most), axis=(0, 1)), workers=threads)

    def product(v: Any) -> Any:
        seen = fft.fftn(root * v, (points, points), workers=threads)
        seen *= turned
        return root * fft.ifftn(seen, workers=threads, overwrite_x=True)[:modes, :modes] + case.noise**2 * v

    beta, steps = iterated(product, rhs, how.get("residual", error))
    how |= {"m": modes**2, "steps": steps}
    weights = root * beta
    return lambda X: np.asarray(finufft.nufft2d2(*angles(X), weights, isign=1, **with_threads).real)


def iterated(product: Callable[[Any], Any], rhs: Any, residual: float) -> tuple[Any, int]:
    """Conjugate gradients to a relative residual, as MATLAB's pcg; with the number of steps."""
    x, r = np.zeros_like(rhs), rhs.copy()
    p, rho = r.copy(), float(np.vdot(r, r).real)
    least, steps = residual**2 * rho, 0
    while rho > least and steps < 20_000:
        q = product(p)
        alpha = rho / float(np.vdot(p, q).real)
        x += alpha * p
        r -= alpha * q
        before, rho = rho, float(np.vdot(r, r).real)
        p *= rho / before
        p += r
        steps += 1
    return x, steps


# ---- dorff


def lattice(data: Data, case: Case, how: Config) -> Predict:
    """The sums of rows in memory, a part of them each thread, and the solve."""
    from dorff import frequencies, kernels
    from dorff.features import FeatureMap, Recipe, modes_of
    from dorff.model import Model
    from dorff.moments import LatticeMoments
    from dorff.moments.blas import pinned
    from dorff.passes.blocks import LATTICE_ROWS, LatticeSums
    from dorff.solvers import Setting

    scalar = kernels.Gaussian(LENGTH) if case.nu is None else kernels.Matern(LENGTH, nu=case.nu)
    kernel = kernels.Decomposable(scalar).fix(2, 1)
    sampler = frequencies.Lattice(how["error"], how["tolerance"]).over(np.ones(2), constant=True)
    drawn = Recipe(kernel, sampler, 2, 1, how["count"], False).draw(0)
    features, n = FeatureMap(drawn.phi, np.full(2, 0.5), np.ones(2)), len(data.y)

    def summed(part: int) -> Any:
        sums = LatticeSums(features, np.zeros(1), block_rows=LATTICE_ROWS, tolerance=how["tolerance"])
        rows = slice(n * part // how["threads"], n * (part + 1) // how["threads"])
        sums.add(data.X[rows], data.y[rows, None], 0)
        (adder,) = sums.sums.values()
        return adder.moments()

    direct, modes = features.m <= how.get("direct", 2048), modes_of(features)
    method = "direct" if direct else "cg"
    setting = Setting(kernel, 2, features.m, drawn.density, standardize=False, intercept=False, method=method)
    with pinned(), ThreadPoolExecutor(how["threads"]) as pool:  # BLAS has one thread in each, as in a job
        each = pool.map(summed, range(how["threads"])) if how["threads"] > 1 else [summed(0)]
        total = reduce(lambda one, other: one.absorb(other), each)
        moments = LatticeMoments.of(total).on(modes.modes, modes.extents)
        (made,) = setting.solve([moments.gram() if direct else moments], [case.noise**2 / n])
    how |= {"m": features.m, "digits": float(made.solution.digits), "route": method}
    return lambda X: Model(
        features, made.weights, made.solution.h, made.bias, made.scale, made.kernel, {}, 0
    ).predict(X)[:, 0]  # fmt: skip


def job(data: Data, case: Case, how: Config) -> Predict:
    """A fit of a job, from Zarr to a published model: one process, or with two threads the default of two workers."""
    from dorff import load_model
    from dorff.fit import fit
    from dorff.spec.job import Job

    scalar = {"type": "gaussian"} if case.nu is None else {"type": "matern", "nu": case.nu}
    name = f"{os.getpid()}-{data.store}"
    cluster = {"type": "serial"} if how["threads"] == 1 else {"type": "local", "workers": how["threads"]}
    body = {
        "data": {"store": f"{case.name}-{data.store}.zarr", "box": [[0, 1], [0, 1]]}, "cluster": cluster,
        "kernel": {"type": "decomposable", "scalar": {**scalar, "lengthscale": LENGTH}},
        "features": {"count": how["count"], "sampler": {"type": "lattice"} | {
            key: how[key] for key in ("error", "tolerance")}},
        "solve": {"ridge": case.noise**2 / len(data.y), "intercept": False}, "publish": {"digits": 0},
        "state": f"state-{name}", "model": f"model-{name}",
    }  # fmt: skip
    report = fit(Job.model_validate(body, context={"folder": data.folder}))
    how |= {key: getattr(report, key) for key in ("m", "digits", "route", "rung", "reads", "in_driver", "status")}
    model = load_model(data.folder / f"model-{name}")
    return lambda X: model.predict(X)[:, 0]


# ---- GPyTorch


def kissgp(data: Data, case: Case, how: Config) -> Predict:
    """Structured kernel interpolation (Wilson & Nickisch 2015), conjugate gradients to `residual`; double precision."""
    import gpytorch
    import torch

    torch.set_num_threads(how["threads"])

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(torch.from_numpy(data.X), torch.from_numpy(data.y), likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.GridInterpolationKernel(
                torch_kernel(case), grid_size=how["grid"], grid_bounds=[(0.0, 1.0), (0.0, 1.0)]
            )

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = case.noise**2
    process = Process(likelihood).double().eval()
    settings = gpytorch.settings

    def predict(X: FloatArray) -> FloatArray:
        with torch.no_grad(), settings.skip_posterior_variances(), settings.max_cg_iterations(5000), \
                settings.eval_cg_tolerance(how["residual"]), settings.max_cholesky_size(0), \
                settings.max_preconditioner_size(0):  # fmt: skip
            return np.asarray(process(torch.from_numpy(X)).mean.numpy())

    predict(data.X[:1])  # solves, and keeps what predictions need
    return predict


def torch_kernel(case: Case) -> Any:
    import gpytorch

    kernel = gpytorch.kernels.RBFKernel() if case.nu is None else gpytorch.kernels.MaternKernel(nu=case.nu)
    kernel.lengthscale = LENGTH
    return kernel.double()


def svgp(data: Data, case: Case, how: Config) -> Predict:
    """Hensman, Fusi & Lawrence 2013 with given hyperparameters and inducing points on a grid: steps 1, 1/2, 1/3 ... of
    natural gradients are a mean over minibatches, which is the optimum after one reading of the rows."""
    import gpytorch
    import torch

    torch.set_num_threads(how["threads"])
    torch.manual_seed(0)
    side = np.linspace(0, 1, how["side"])
    grid = torch.from_numpy(np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2))

    class Process(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self) -> None:
            q = gpytorch.variational.NaturalVariationalDistribution(len(grid))
            super().__init__(gpytorch.variational.VariationalStrategy(self, grid, q, learn_inducing_locations=False))
            self.mean, self.kernel = gpytorch.means.ZeroMean(), torch_kernel(case)

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = case.noise**2
    process = Process().double()
    bound = gpytorch.mlls.VariationalELBO(likelihood, process, num_data=len(data.y))
    X, y = torch.from_numpy(data.X), torch.from_numpy(data.y)
    process.train()
    descent = gpytorch.optim.NGD(process.variational_parameters(), num_data=len(data.y))
    for step, rows in enumerate(torch.randperm(len(y)).split(1024)):
        descent.param_groups[0]["lr"] = 1.0 / (1 + step)
        descent.zero_grad()
        (-bound(process(X[rows]), y[rows])).backward()
        descent.step()
    process.eval()

    def predict(X: FloatArray) -> FloatArray:
        with torch.no_grad(), gpytorch.settings.skip_posterior_variances():
            return np.concatenate([process(part).mean.numpy() for part in torch.from_numpy(X).split(1024)])

    return predict


WHO = {"efgp": efgp, "lattice": lattice, "job": job, "kissgp": kissgp, "svgp": svgp}
NEEDS = {"efgp": "finufft", "kissgp": "gpytorch", "svgp": "gpytorch"}


# ---- runs


def child(words: Config) -> None:
    """One run, in a process of its own: seconds by the clock and of the processor, and predictions in a file."""
    folder, how, case = Path(words["folder"]), words["how"], CASES[words["case"]]
    fit, few, many = WHO[words["who"]], np.load(folder / "few.npy"), np.load(folder / "many.npy")
    began = time.perf_counter()
    fit(Data.read(folder, case.name, "small"), case, dict(how))(few[:100])
    started, data = time.perf_counter() - began, Data.read(folder, case.name, "large")
    began, worked = time.perf_counter(), time.process_time()
    predict = fit(data, case, how)
    line = {"fit_s": time.perf_counter() - began, "fit_cpu_s": time.process_time() - worked, "start_s": started}
    for name, X in (("few", few), ("many", many)):
        began = time.perf_counter()
        values = predict(X)
        line[f"predict_{name}_s"] = time.perf_counter() - began
        line[f"rmse_{name}"] = float(np.sqrt(np.mean((values - truth(X)) ** 2)))
        if name == "few":
            np.save(folder / f"{words['name']}.npy", values)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**line, "peak_mib": peak, "how": how}))


def run(options: argparse.Namespace, folder: Path, case: Case, who: str, how: Config, name: str = "mean") -> Config:
    """What `child` says in a process of as many threads; `over` where it took longer than the limit, or `failed`."""
    python = options.peers_python if who in NEEDS else sys.executable
    words = {"folder": str(folder), "case": case.name, "who": who, "how": how, "name": name}
    counts = {key: str(how["threads"]) for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    try:
        done = subprocess.run(
            [python, __file__, "--child", json.dumps(words)], env={**os.environ, **counts}, timeout=options.limit,
            capture_output=True, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"over": options.limit}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    line: Config = json.loads(done.stdout.splitlines()[-1])
    return line


def settings(options: argparse.Namespace, case: Case) -> Iterator[tuple[str, Config]]:
    """Every who, and how accurate it is asked to be."""
    whole = {"count": COUNT}
    each: dict[str, list[Config]] = {
        "efgp": [{"error": error} for error in (*case.errors, case.errors[-1] / 10)],
        "lattice": [
            {"error": error, "tolerance": tolerance, **whole}
            for error in case.errors
            for tolerance in (1e-12, max(error / 10, 1e-12))
        ],
        "job": [{"error": error, "tolerance": 1e-12, **whole} for error in case.errors],
        "kissgp": [{"grid": 64, "residual": 1e-3}] if case.nu is None else [],
        "svgp": [{"side": 16}, {"side": 23}],
    }
    for threads in map(int, options.threads.split(",")):
        for who in options.who.split(","):
            if who not in options.missing:
                yield from ((who, {**how, "threads": threads}) for how in each[who])


def write_rows(folder: Path, options: argparse.Namespace) -> float:
    """The rows of all cases, in memory's form and in stores; seconds that a store took."""
    from lattice import written

    rng, names, seconds = np.random.default_rng(0), options.cases.split(","), 0.0
    np.save(folder / "few.npy", rng.uniform(0, 1, (FEW, 2)))
    np.save(folder / "many.npy", rng.uniform(0, 1, (MANY, 2)))
    for store, rows in (("small", SMALL), ("large", options.rows)):
        X = rng.uniform(0, 1, (rows, 2))
        noise = rng.standard_normal(rows)
        np.save(folder / f"X-{store}.npy", X)
        for name in names:
            y = truth(X) + CASES[name].noise * noise
            np.save(folder / f"y-{name}-{store}.npy", y)
            began = time.perf_counter()
            written(folder, X, y[:, None], f"{name}-{store}")
            seconds = time.perf_counter() - began
    return seconds


def of_case(options: argparse.Namespace, folder: Path, case: Case) -> Iterator[Config]:
    """What is known after each turn of all runs. The reference first, and what the other code makes of it."""
    every = {"threads": int(options.threads.split(",")[-1])}
    theirs = {"error": case.reference, "residual": 1e-13 if case.nu is None else 1e-7, **every}
    ours = {"error": case.reference * 10, "tolerance": 1e-13, "count": COUNT, **every}
    both = [("efgp", theirs), ("lattice", ours)]
    (who, how), (other, how_other) = both if case.nu is None and "efgp" not in options.missing else both[::-1]
    made = run(options, folder, case, who, how, "reference")
    beside = {} if other in options.missing else run(options, folder, case, other, how_other, "beside")
    reference = np.load(folder / "reference.npy") if "how" in made else None
    line: Config = {**asdict(case), "reference": made, "beside": beside, "agreement": None}
    if reference is not None and "how" in beside:
        line["agreement"] = float(np.abs(np.load(folder / "beside.npy") - reference).max())
    print(case.name, "reference", made, "beside", beside, "agreement", line["agreement"], flush=True)
    turns = [(who, how, list[Config]()) for who, how in settings(options, case)]
    for turn in range(options.repeats):
        for who, how, done in turns:
            if turn and max(one.get("fit_s", math.inf) for one in done) > SLOW:
                continue
            done.append(run(options, folder, case, who, how))
            if reference is not None and "how" in done[-1]:
                done[-1]["away"] = float(np.abs(np.load(folder / "mean.npy") - reference).max())
            print(who, how, json.dumps(done[-1]), flush=True)
        yield {**line, "runs": [summary(who, how, done) for who, how, done in turns]}


def summary(who: str, how: Config, done: Sequence[Config]) -> Config:
    """The runs of one setting: spreads of what takes time, and what is the same in all."""
    good = [one for one in done if "how" in one]
    if not good:
        return {"who": who, "how": how, **done[0]}
    times = {
        key: {"median": statistics.median(each), "least": min(each), "most": max(each), "each": each}
        for key in good[0] if key.endswith(("_s", "_mib"))
        for each in [[one[key] for one in good]]
    }  # fmt: skip
    same = {key: good[0].get(key) for key in ("rmse_few", "rmse_many", "away")}
    return {"who": who, "how": good[0]["how"], **same, **times}


def versions(python: str) -> dict[str, str]:
    """Of those peers' packages that a Python has."""
    names = ("finufft", "gpytorch", "torch", "numpy", "scipy")
    code = f"""
import importlib.metadata, json
out = {{}}
for name in {names}:
    try:
        out[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(out))"""
    seen: dict[str, str] = json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", default=sys.executable, help="a Python that has finufft and gpytorch")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--who", default=",".join(WHO))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds after which a run is given up")
    parser.add_argument("--where", default=platform.processor() or platform.machine(), help="the machine, in words")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    there = versions(options.peers_python)
    options.missing = {who for who, package in NEEDS.items() if package not in there}
    for who in options.missing & set(options.who.split(",")):
        print(f"{who}: {NEEDS[who]} is not installed", flush=True)
    result: Config = {"machine": options.where, "cpus": os.cpu_count(), "versions": there,
                      "missing": sorted(options.missing), "rows": options.rows, "cases": []}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="dorff-peers-") as place:
        result["store_s"] = write_rows(Path(place), options)
        before: list[Config] = []
        for name in options.cases.split(","):
            for line in of_case(options, Path(place), CASES[name]):
                result |= {"cases": [*before, line], "load": os.getloadavg()[1]}
                options.out.write_text(json.dumps(result, indent=1) + "\n")
            before = result["cases"]


if __name__ == "__main__":
    main()
