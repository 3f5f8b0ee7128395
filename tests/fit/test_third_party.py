"""A package of somebody else adds one of each kind of thing: used from a file of rows to predictions, by commands."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from command_line import CURL, field, run, write_csv, write_job

PACKAGE = '''
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dorff import graphs, kernels
from dorff.data.readers import Reader, SourceBlock
from dorff.frequencies import IID
from dorff.frequencies.base import Sampler
from dorff.kernels.stretched import Isotropic
from dorff.solvers import Criterion
from dorff.solvers.scores import FitScore
from dorff.spec.cluster import LocalCluster
from dorff.spec.kernel import Scalar
from dorff.spec.part import LengthscaleSpec, Part, Positive, Typed
from dorff.spec.registry import Entry, lazily


@dataclass(frozen=True, init=False)
class Bell(Isotropic):
    """The Gaussian, so that there is something to compare with."""

    kind = "bell"
    lengthscale: float | tuple[float, ...]
    variance = property(lambda self: 1.0)

    def _values(self, squared):
        return np.exp(-0.5 * squared)

    def _slopes(self, squared):
        values = self._values(squared)
        return -0.5 * values, 0.25 * squared * values

    def _log_density(self, unit):
        return -0.5 * (unit.shape[1] * np.log(2 * np.pi) + np.sum(unit**2, axis=1))


class Slope(kernels.BaseKernel):
    """The curl-free kernel, so that there is something to compare with."""

    measures = kernels.CurlFree.measures
    measure = None
    vector_field = True

    def __init__(self, scalar):
        self.scalar, self._twin = scalar, kernels.CurlFree(scalar)

    def fix(self, d, p, covariance=None):
        self._twin.fix(d, p)
        return self

    def gram(self, X, Z):
        return self._twin.gram(X, Z)

    def root(self, omega):
        return self._twin.root(omega)

    def trace(self, d, p):
        return self._twin.trace(d, p)

    def config(self):
        return {"type": "slope", "scalar": self.scalar.config()}


class SlopeSpec(Typed):
    scalar: Scalar


class PairsSpec(Typed):
    pass


@dataclass(frozen=True)
class Plain(Sampler):
    mixes = True

    def config(self):
        return {"type": "plain"}

    def accept(self, law, measure, d):
        IID().accept(law, measure, d)

    def rule(self, rng, law, count, d):
        return IID().rule(rng, law, count, d)

    def numbers(self, d, count):
        return IID().numbers(d, count)

    def flops(self, d, count):
        return IID().flops(d, count)


class EvenSpec(Part):
    even: Positive


class PairCluster(LocalCluster):
    type: Literal["pair"] = "pair"


class BarsReader(Reader):  # a line of names, then a row a line, between bars
    def __init__(self, path):
        with open(path) as file:
            names, *self._rows = [line.strip().split("|") for line in file]
        super().__init__(path, names)

    def dtype(self, column):
        return np.dtype(np.float64)

    def _read(self, columns, labels):
        self.rows = len(self._rows)
        yield SourceBlock(np.array(self._rows, float)[:, [self.columns.index(name) for name in columns]])


bell = Entry("bell", Bell, LengthscaleSpec, "a bell of |x - z|", "Nobody 1999")
plain = Entry("plain", Plain)
even = Entry("even", lambda even: kernels.Matrix([[1, even], [even, 1]]), EvenSpec, written="{even: 0.5}")
pair = Entry("pair", lazily("dorff.engine.clusters", "start_local"), PairCluster)
bars = Entry(".bars", BarsReader)
build = lambda scalar: Slope(kernels.scalar_from_config(scalar))
slope = Entry("slope", build, SlopeSpec, "(−∇∇ᵀ k₀)", "Somebody 1998")
loss = FitScore(lambda solution: solution.gcv, lambda scores: scores.gcv_each)
least = Entry("least", lambda: Criterion("least", "loss", lambda value: value, of_fit=loss))
pairs = Entry("pairs", lambda: graphs.KNN(neighbours=2, weights="binary", within="leaf"), PairsSpec)
'''
POINTS = {"scalars": "bell", "samplers": "plain", "outputs": "even", "clusters": "pair", "readers": "bars"}
POINTS |= {"kernels": "slope", "criteria": "least", "graphs": "pairs"}


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of commands that see the package: as pip would put it on their path."""
    site = tmp_path / "site"
    (site / "waves-1.0.dist-info").mkdir(parents=True)
    (site / "waves.py").write_text(PACKAGE)
    (site / "waves-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: waves\nVersion: 1.0\n")
    lines = [f"[dorff.{group}]\n{'.' * (name == 'bars')}{name} = waves:{name}\n" for group, name in POINTS.items()]
    (site / "waves-1.0.dist-info" / "entry_points.txt").write_text("".join(lines))
    return {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.process
def test_one_of_each_from_a_file_to_predictions(tmp_path: Path, installed: dict[str, str]) -> None:
    def done(*words: object, exit_code: int = 0, env: dict[str, str] = installed) -> str:
        result = run(*words, env=env, cwd=tmp_path)
        assert result.returncode == exit_code, result.stderr
        return result.stderr + result.stdout

    table = "\n".join("|".join(map(repr, map(float, row))) for row in field(3000))
    (tmp_path / "sea.bars").write_text(f"a|b|u|v\n{table}\n")
    done("ingest", "sea.bars", "sea.zarr", "--inputs", "a,b", "--targets", "u,v")
    kernel = {"type": "decomposable", "scalar": {"type": "bell", "lengthscale": 0.5}, "output": {"even": 0.5}}
    features, solve = {"count": 64, "seed": 3, "sampler": {"type": "plain"}}, {"ridge": 1e-4}
    cluster = {"type": "pair", "workers": 2, "memory": "2GiB"}
    write_job(tmp_path / "job.yaml", kernel=kernel, features=features, solve=solve, cluster=cluster)
    done("fit", "job.yaml")
    done("predict", "models/sea", "sea.zarr", "theirs.zarr")
    done("report", "models/sea", "-o", "sea.html")
    assert "a bell of |x - z|" in (tmp_path / "sea.html").read_text()

    kernel["scalar"], kernel["output"] = kernel["scalar"] | {"type": "gaussian"}, {"matrix": [[1, 0.5], [0.5, 1]]}
    ours = {"kernel": kernel, "features": features | {"sampler": {"type": "iid"}}, "solve": solve}
    write_job(tmp_path / "ours.yaml", **ours, state="runs/ours", model="models/ours")
    done("fit", "ours.yaml", env={})
    done("predict", "models/ours", "sea.zarr", "ours.zarr", env={})
    theirs, twins = (np.asarray(zarr.open(tmp_path / f"{whose}.zarr")["y"]) for whose in ("theirs", "ours"))
    assert np.array_equal(theirs, twins) and np.ptp(twins) > 1

    refused = done("predict", "models/sea", "sea.zarr", "lost.zarr", exit_code=3, env={})
    assert "'bell' is not built" in refused and "Traceback" not in refused and not (tmp_path / "lost.zarr").exists()
    assert "kernel.scalar.type must be one of: gaussian" in done("plan", "job.yaml", exit_code=3, env={})
    assert '"scalars.bell"' in done("schema") and '"scalars.bell"' not in done("schema", env={})


@pytest.mark.process
def test_a_kernel_a_criterion_and_a_graph(tmp_path: Path, installed: dict[str, str]) -> None:
    run("ingest", write_csv(tmp_path / "sea.csv", field(300)), tmp_path / "sea.zarr", "--inputs=a,b", "--targets=u,v")
    theirs = {"type": "slope", "scalar": CURL["scalar"]}, "least", {"type": "pairs"}
    ours = CURL, "gcv", {"type": "knn", "neighbours": 2, "weights": "binary", "within": "leaf"}
    for number, ridge in enumerate(([1e-6, 1e-3, 1.0], 1e-3)):  # to choose from; or with a term
        chosen, predicted = [], []
        for name, (kernel, select, graph) in {"theirs": theirs, "ours": ours}.items():
            changes = {"solve": {"ridge": ridge, "select": select}} if number == 0 else {"solve": {"ridge": ridge}}
            changes |= {"manifold": [{"weight": 1e-4, "graph": graph}]} if number else {}
            changes |= {"kernel": kernel, "state": f"runs/{name}{number}", "model": f"models/{name}{number}"}
            job = write_job(tmp_path / f"{name}.yaml", **changes)
            fitted = run("fit", job, "--json", env=installed, cwd=tmp_path)
            assert fitted.returncode == 0, fitted.stderr
            chosen.append(json.loads(fitted.stdout)["ridge"])
            done = run("predict", changes["model"], "sea.zarr", f"{name}{number}.zarr", env=installed, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            predicted.append(np.asarray(zarr.open(tmp_path / f"{name}{number}.zarr")["y"]))
        assert chosen[0] == chosen[1] < 1.0 and np.array_equal(*predicted) and np.ptp(predicted) > 1
    report = run("report", "models/theirs0", "-o", "sea.html", env=installed, cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "Somebody 1998; Rahimi &amp; Recht 2007" in (tmp_path / "sea.html").read_text()
    write_job(tmp_path / "tuned.yaml", kernel={"type": "slope", "scalar": {"type": "gaussian", "lengthscale": "tune"}})
    refused = run("fit", "tuned.yaml", env=installed, cwd=tmp_path)
    assert refused.returncode == 3 and "lengthscale: that of Slope cannot be tuned" in refused.stderr
