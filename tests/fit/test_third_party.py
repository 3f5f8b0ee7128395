"""A package of somebody else adds one of each kind of thing: used from a file of rows to predictions, by commands."""

import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from command_line import field, run, write_job

PACKAGE = '''
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dorff import kernels
from dorff.data.readers import Reader, SourceBlock
from dorff.frequencies import IID
from dorff.frequencies.base import Sampler
from dorff.kernels.stretched import Isotropic
from dorff.spec.cluster import LocalCluster
from dorff.spec.part import LengthscaleSpec, Part, Positive
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
'''
POINTS = {"scalars": "bell", "samplers": "plain", "outputs": "even", "clusters": "pair", "readers": "bars"}


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
