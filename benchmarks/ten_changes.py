"""Ten changes that the rooms were built for, each made in a copy of the package: which files it touches, whether it
works.

    python benchmarks/ten_changes.py

A class, a word or a number is put into the copy as a developer would, then a few lines that use it are run. The table
says for each change the files of `dorff/` that differ from the package, and how many are allowed.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
ROOT = Path(tempfile.mkdtemp()) / "copy"


USE = """
import numpy as np
from dorff import ORFFRegressor, frequencies, kernels
from dorff.spec.job import Job

X, G = np.random.default_rng(0).normal(size=(200, 2)), kernels.Gaussian(1.0)
Y = np.sin(X)
job = {"data": {"store": "a"}, "state": "s", "model": "m"}
curl = {"type": "curl_free", "scalar": {"type": "gaussian", "lengthscale": 1}}


def fitted(kernel, ridge=1e-6, **options):
    return ORFFRegressor(kernel=kernel, n_features=64, ridge=ridge, **options).fit(X, Y)


"""  # the start of scripts that fit a kernel or read a job


def sub(path: str, *pairs: tuple[str, str]) -> None:
    """Replace the first of each text in a file, which must be there."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for old, new in pairs:
        if old not in text:
            sys.exit(f"{path}: {old!r} is not there any more; correct this script")
        text = text.replace(old, new, 1)
    (ROOT / path).write_text(text, encoding="utf-8")


def put(path: str, text: str) -> None:
    (ROOT / path).write_text(text, encoding="utf-8")


def append(path: str, text: str) -> None:
    put(path, (ROOT / path).read_text(encoding="utf-8").rstrip() + "\n\n\n" + text)


def scalar() -> str:
    append(
        "dorff/kernels/isotropic.py",
        '''@dataclass(frozen=True, init=False)
class Bell(Isotropic):
    """exp(-|x - z|^2 / 2 s^2) once more."""

    kind = "bell"
    lengthscale: float | tuple[float, ...]

    @property
    def variance(self) -> float:
        return 1.0

    def _values(self, squared: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-0.5 * squared))

    def _slopes(self, squared: FloatArray) -> tuple[FloatArray, FloatArray]:
        values = self._values(squared)
        return -0.5 * values, 0.25 * squared * values

    def _log_density(self, unit: FloatArray) -> FloatArray:
        return np.asarray(-0.5 * (unit.shape[1] * math.log(2 * math.pi) + np.sum(unit**2, axis=1)))
''',
    )
    sub(
        "dorff/kernels/__init__.py",
        ("from dorff.kernels.isotropic import Gaussian", "from dorff.kernels.isotropic import Bell, Gaussian"),
        (
            "SCALARS.add(\n",
            'SCALARS.add(\n    Entry("bell", Bell, LengthscaleSpec, "exp(−|x − z|² / 2s²)", "Nobody 1999"),\n',
        ),
    )
    return (
        USE
        + """mine, twin = (fitted(kernels.CurlFree(k)).predict(X) for k in (kernels.Bell(1.0), G))
assert np.array_equal(mine, twin)
Job.model_validate(job | {"kernel": {**curl, "scalar": {"type": "bell", "lengthscale": 1}}})
"""
    )


def sampler() -> str:
    append(
        "dorff/frequencies/samplers.py",
        '''@dataclass(frozen=True)
class Antithetic(DenseSampler):
    """IID frequencies, each with its reflection in the first axis."""

    kind = "antithetic"

    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        half = law.draw(rng, -(-count // 2), d, measure)
        mirrored = half * np.where(np.arange(d) == 0, -1.0, 1.0)
        return np.concatenate([half, mirrored])[:count]


SAMPLERS.add(Entry("antithetic", Antithetic))
''',
    )
    sub(
        "dorff/frequencies/__init__.py",
        ("from dorff.frequencies.samplers import IID", "from dorff.frequencies.samplers import IID, Antithetic"),
    )
    return (
        USE
        + """assert fitted(kernels.CurlFree(G), sampler=frequencies.Antithetic()).score(X, Y) > 0.9
Job.model_validate(job | {"kernel": curl, "features": {"sampler": {"type": "antithetic"}}})
"""
    )


def output() -> str:
    append(
        "dorff/kernels/output.py",
        '''class EvenSpec(Part):
    """Every output with every other alike."""

    even: Positive


OUTPUTS.add(Entry("even", lambda even: Even(even), EvenSpec, written="{even: 0.5}"))


@dataclass(frozen=True)
class Even(Output):
    """A = I + even (1 1^T)."""

    even: float

    def root(self, p: int, covariance: FloatArray | None = None) -> FloatArray:
        return self.fixed(p).root(p)

    def fixed(self, p: int, covariance: FloatArray | None = None) -> Output:
        return Matrix(np.eye(p) + self.even)

    def trace(self, p: int) -> float:
        return p * (1.0 + self.even)

    def config(self) -> Config:
        return {"even": self.even}
''',
    )
    sub(
        "dorff/kernels/output.py",
        ("from dorff.spec.part import Part\n", "from dorff.spec.part import Part, Positive\n"),
    )
    sub(
        "dorff/kernels/__init__.py",
        ("from dorff.kernels.output import Covariance,", "from dorff.kernels.output import Covariance, Even,"),
    )
    return (
        USE
        + """outputs = kernels.Even(0.5), kernels.Matrix([[1.5, 0.5], [0.5, 1.5]])
mine, twin = (fitted(kernels.Decomposable(G, output)).predict(X) for output in outputs)
assert np.allclose(mine, twin)
Job.model_validate(job | {"kernel": {**curl, "type": "decomposable", "output": {"even": 0.5}}})
"""
    )


def fileformat() -> str:
    put(
        "dorff/data/bars_reader.py",
        '''"""Rows between bars, below a line of names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dorff.data.readers import Reader, SourceBlock


class BarsReader(Reader):
    """A line of names, then a row a line, between bars."""

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:
            names, *self._rows = [line.strip().split("|") for line in file]
        super().__init__(path, names)

    def dtype(self, column: str) -> np.dtype[Any]:
        return np.dtype(np.float64)

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        self.rows = len(self._rows)
        yield SourceBlock(np.array(self._rows, float)[:, [self.columns.index(name) for name in columns]])
''',
    )
    sub(
        "dorff/data/readers.py",
        ('_add(".npy",', '_add(".bars", lazily("dorff.data.bars_reader", "BarsReader"))\n_add(".npy",'),
    )
    return """import os, subprocess, sys, tempfile
os.chdir(tempfile.mkdtemp())
open("a.bars", "w").write("a|u\\n1|2\\n3|4\\n")
words = "ingest a.bars a.zarr --inputs a --targets u"
subprocess.run([sys.executable, "-c", "from dorff.cli import main; main()", *words.split()], check=True)
"""


def cluster() -> str:
    sub(
        "dorff/spec/cluster.py",
        (
            "class SerialCluster(ClusterSpec):",
            '''class PairCluster(ClusterSpec):
    """Two workers on this machine."""

    workers: ClassVar[int] = 2
    type: Literal["pair"] = "pair"
    memory: Bytes = 4 * 2**30


class SerialCluster(ClusterSpec):''',
        ),
        (
            "CLUSTERS.add(\n",
            'CLUSTERS.add(\n    Entry("pair", lazily("dorff.engine.clusters", "start_pair"), PairCluster),\n',
        ),
    )
    sub(
        "dorff/engine/clusters.py",
        (
            "def _started(",
            '''def start_pair(cluster: spec.PairCluster, patience: float) -> DaskEngine:
    """Two workers."""
    return start_local(spec.LocalCluster(workers=2, memory=cluster.memory), patience)


def _started(''',
        ),
    )
    return """from dorff.engine import open_engine; from dorff.spec.cluster import PairCluster
if __name__=="__main__":
    with open_engine(PairCluster()) as engine: print(engine)"""


def storage() -> str:
    put(
        "dorff/storage/attic.py",
        '''"""A storage of the scheme attic://, which lies in a folder."""

from __future__ import annotations

from dorff.storage.location import SCHEMES, Location


class Attic(Location):
    """What lies in a folder under another name."""

    __slots__ = ()


SCHEMES["attic"] = Attic
''',
    )
    append("dorff/storage/__init__.py", "import dorff.storage.attic\n")
    return '''from dorff.storage.location import locate, is_remote; import tempfile
from dorff.storage.files import *
d=tempfile.mkdtemp(); p=locate(f"attic://{d[1:]}/a"); assert is_remote(p), p
p.write_bytes(b"1"); assert locate(f"attic://{d[1:]}/a").read_bytes()==b"1"'''


def option() -> str:
    sub("dorff/spec/job.py", ("    calibrate: Annotated[bool", '    note: str = ""\n    calibrate: Annotated[bool'))
    sub(
        "dorff/fit/fit_report.py",
        ("    log_evidence: float | None\n", "    log_evidence: float | None\n    note: str\n"),
    )
    evidence = "        log_evidence=solution.log_evidence,\n"
    sub("dorff/fit/run.py", (evidence, evidence + "        note=plan.job.solve.note,\n"))
    return """import json, os, subprocess, sys, tempfile
from pathlib import Path
os.chdir(tempfile.mkdtemp())
rows = "".join(f"{i / 50},{(i / 50) ** 2}\\n" for i in range(200))
Path("a.csv").write_text("x,y\\n" + rows)
Path("j.yaml").write_text(json.dumps({"data": {"store": "a.zarr"}, "kernel": {"type": "decomposable", "scalar":
    {"type": "gaussian", "lengthscale": 1}}, "features": {"count": 32}, "solve": {"note": "mine"},
    "cluster": {"type": "serial"}, "state": "s", "model": "m"}))
for words in ("ingest a.csv a.zarr --inputs x --targets y", "fit j.yaml --json"):
    done = subprocess.run([sys.executable, "-c", "from dorff.cli import main; main()", *words.split()],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
assert json.loads(done.stdout)["note"] == "mine" """


def solver() -> str:
    put("dorff/solvers/inverse.py", (HOME / "tests/toy_solver.py").read_text(encoding="utf-8"))
    sub(
        "dorff/solvers/direct.py",
        (
            "SOLVERS: Final[tuple[type[DirectSolver], ...]] = (CholeskySolver,",
            "SOLVERS: Final[tuple[type[DirectSolver], ...]] = (Inverse, CholeskySolver,",
        ),
        (
            "from dorff.solvers.problem import",
            "from dorff.solvers.inverse import Inverse\nfrom dorff.solvers.problem import",
        ),
    )
    return (
        USE
        + """assert fitted(kernels.CurlFree(G)).rung_ == "inverse"
"""
    )


def criterion() -> str:
    sub(
        "dorff/solvers/scores.py",
        (
            "CRITERIA.add(\n",
            """_AIC = FitScore(
    lambda solution: None
    if solution.rss is None or solution.freedom is None
    else float(len(solution.h) * np.log(solution.rss.sum()) + 2 * solution.freedom.sum()),
    lambda scores: len(scores.rss) * np.log(scores.rss) + 2 * scores.freedom,
)
_OF_AIC = Criterion("AIC", "AIC", lambda value: value, of_fit=_AIC)

CRITERIA.add(
    Entry("aic", lambda: _OF_AIC, source="Akaike 1974"),
""",
        ),
    )
    return (
        USE
        + """assert len(fitted(kernels.CurlFree(G), ridge=[1e-6, 1e-3, 1.0], criterion="aic").scores_) == 3
Job.model_validate(job | {"kernel": curl, "solve": {"select": "aic", "ridge": [1, 2]}})
"""
    )


def sums() -> str:
    put("dorff/passes/sizes.py", (HOME / "tests/toy_sums.py").read_text(encoding="utf-8"))
    return """from dorff.passes.sizes import SizeSums; print(SizeSums)"""


CHANGES: dict[str, tuple[Callable[[], str], int]] = {  # and how many files each may touch
    "scalar kernel": (scalar, 2),
    "sampler": (sampler, 2),
    "output matrix": (output, 2),
    "file format": (fileformat, 2),
    "cluster type": (cluster, 2),
    "storage": (storage, 2),
    "job option": (option, 3),
    "solver": (solver, 2),
    "criterion": (criterion, 2),
    "sum over rows": (sums, 2),
}


def touched() -> list[str]:
    """Files of the copy that are new or differ."""
    paths = sorted(path.relative_to(ROOT) for path in (ROOT / "dorff").rglob("*.py"))
    return [
        str(path.relative_to("dorff"))
        for path in paths
        if not (HOME / path).exists() or not filecmp.cmp(HOME / path, ROOT / path, shallow=False)
    ]


def main() -> None:
    bad = 0
    for name, (change, most) in CHANGES.items():
        shutil.rmtree(ROOT, ignore_errors=True)
        shutil.copytree(HOME / "dorff", ROOT / "dorff", ignore=shutil.ignore_patterns("__pycache__"))
        script = ROOT / "use.py"
        script.write_text(change(), encoding="utf-8")
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, str(script)], env=env, cwd=ROOT, capture_output=True, text=True)
        files = touched()
        bad += done.returncode != 0 or len(files) > most
        says = "works" if done.returncode == 0 else f"fails: {done.stderr.strip().splitlines()[-1]}"
        print(f"| {name} | {len(files)} of {most} | {', '.join(files)} | {says} |", flush=True)
    shutil.rmtree(ROOT.parent)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
