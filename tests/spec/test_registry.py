"""Words of other packages: found by entry points, with options, in jobs and in stored kernels."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import call

from dorff import ORFFRegressor, frequencies, graphs, kernels
from dorff.engine import SerialEngine, open_engine
from dorff.errors import InputError
from dorff.spec.reader import load_job
from dorff.spec.registry import CLUSTERS, CRITERIA, GRAPHS, OUTPUTS, SAMPLERS, SCALARS

PLUGIN = """
from typing import Annotated, ClassVar, Literal
from dorff import frequencies, kernels
from dorff.engine import SerialEngine
from dorff.spec.cluster import ClusterSpec
from dorff.spec.cluster import Bytes
from dorff.spec.part import LengthscaleSpec, Part, Positive, Typed, within
from dorff.spec.registry import Entry

class HatSpec(LengthscaleSpec):
    width: Positive = 1.0

class PlainSpec(Typed):
    blocks: Annotated[int, within(1, 9)] = 2

class EvenSpec(Part):
    even: Positive

hat = Entry("hat", lambda lengthscale, width=1.0: kernels.Gaussian(lengthscale * width), HatSpec, "a hat")
plain = Entry("plain", lambda blocks=2: frequencies.ROM(blocks), PlainSpec)
class HereSpec(ClusterSpec):
    type: Literal["here"] = "here"
    in_driver: ClassVar[bool] = True
    workers: ClassVar[int] = 1
    memory: Bytes = 2**32

here = Entry("here", lambda cluster, patience: SerialEngine(shuffle=cluster.memory), HereSpec)
even = Entry("even", lambda even: kernels.Matrix([[1, even], [even, 1]]), EvenSpec, written="{even: 0.5}")
"""
MORE = """
from dorff.solvers import Criterion
from dorff.solvers.scores import FitScore

bad = Entry("bad", dict)
loss = FitScore(lambda solution: solution.gcv, lambda scores: scores.gcv_each)
least = Entry("least", lambda: Criterion("least", "loss", abs, of_fit=loss))
odd = Entry("odd", dict)
"""
POINTS = "[dorff.scalars]\nhat = hats:hat\n[dorff.samplers]\nplain = hats:plain\n[dorff.outputs]\neven = hats:even\n"
POINTS += "[dorff.clusters]\nhere = hats:here\n"
JOB = """
data: {store: a.zarr}
kernel: {type: decomposable, scalar: {type: hat, lengthscale: 2.0, width: 3.0}, output: {even: 0.5}}
features: {sampler: {type: plain, blocks: BLOCKS}}
state: s
model: m
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    info = tmp_path / "hats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hats\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "hats.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    for registry in (SCALARS, OUTPUTS, SAMPLERS, CLUSTERS, CRITERIA, GRAPHS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    yield tmp_path
    sys.modules.pop("hats", None)


def job(folder: Path, blocks: str = "4") -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB.replace("BLOCKS", blocks))
    return path


def test_a_job_has_words_of_another_package(installed: Path) -> None:
    read = load_job(job(installed))
    kernel = kernels.from_config(read.kernels[0].model_dump(mode="json"))
    ((_, base),) = kernel.terms()
    assert base.scalar == kernels.Gaussian(6.0) and base.matrix.tolist() == [[1.0, 0.5], [0.5, 1.0]]
    assert frequencies.from_config(read.features.sampler.model_dump()) == frequencies.ROM(4)
    assert SCALARS.formula({"type": "hat"}) == "a hat"


def test_a_job_runs_on_a_cluster_of_another_package(installed: Path) -> None:
    path = job(installed)
    path.write_text(f"{path.read_text()}cluster: {{type: here, memory: 7}}\n")
    cluster = load_job(path).cluster
    with open_engine(cluster) as engine:
        assert isinstance(engine, SerialEngine) and engine._rng is not None
    assert (cluster.memory, cluster.in_driver, cluster.on_this_machine) == (7, True, True)
    path.write_text(path.read_text().replace("memory: 7", "memory: none"))
    with pytest.raises(InputError, match=r"cluster\.memory must be an amount of memory"):
        load_job(path)


def test_its_options_are_checked(installed: Path) -> None:
    with pytest.raises(InputError, match=r"features\.sampler\.blocks must be less than or equal to 9"):
        load_job(job(installed, "10"))


def test_without_the_package_its_words_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"kernel\.scalar\.type must be one of: gaussian, .*; came 'hat'"):
        load_job(job(tmp_path))
    with pytest.raises(InputError, match=r"scalar\.type: 'hat' is not built"):
        kernels.scalar_from_config({"type": "hat", "lengthscale": 1.0})


def test_a_package_that_is_broken_is_named_where_its_word_is_used_and_only_there(installed: Path) -> None:
    points = POINTS.replace("even = ", "torn = nowhere:torn\neven = ") + "torn = nowhere:torn\nother = hats:here\n"
    points += "[dorff.criteria]\nbad = hats:bad\nlost = nowhere:lost\nleast = hats:least\n"
    points += "[dorff.graphs]\nodd = hats:odd\n"
    (installed / "hats-1.0.dist-info" / "entry_points.txt").write_text(points)
    (installed / "hats.py").write_text(PLUGIN + MORE)
    path = job(installed)
    path.write_text(JOB.replace("BLOCKS", "4").replace("{even: 0.5}", "evn"))
    with pytest.raises(InputError, match=r"kernel\.output must be one of: identity, .*\{even: 0\.5\}; came 'evn'"):
        load_job(path)
    path.write_text(path.read_text().replace("evn", "torn"))
    with pytest.raises(InputError, match=r"dorff\.outputs torn: nowhere:torn cannot be loaded"):
        load_job(path)
    with pytest.raises(InputError, match=r"dorff\.clusters other: hats:here is no dorff\.spec\.registry\.Entry"):
        CLUSTERS.get("other")
    rows = np.arange(300.0).reshape(150, 2)
    fitted = ORFFRegressor(n_features=8, ridge=[1e-3, 1.0], cv=None).fit(rows, rows)  # loads no criterion of others
    scores = fitted.gcv_
    fitted.set_params(criterion="least").fit(rows, rows)
    assert np.array_equal(fitted.scores_, scores) and not hasattr(fitted, "gcv_")
    fitted.set_params(criterion="gcv").fit(rows, rows)
    assert np.array_equal(fitted.gcv_, scores) and not hasattr(fitted, "scores_")
    with pytest.raises(InputError, match=r"dorff\.graphs odd: builds no graph of dorff\.graphs"):
        graphs.Graph.from_config({"type": "odd"})
    for word, why in {"bad": "builds no Criterion with `of_fit`", "lost": r"nowhere:lost cannot be loaded"}.items():
        with pytest.raises(InputError, match=f"dorff.criteria {word}: {why}"):
            ORFFRegressor(n_features=8, ridge=[1e-3, 1.0], criterion=word).fit(rows, rows)


def test_help_names_words_that_there_are() -> None:
    """It is written by hand, so that it is there before any library is imported."""
    named = re.search(r"come from: ([a-z, ]+) \.\.\.", " ".join(call("bench", "--help").stdout.split()))
    assert named is not None and set(named[1].split(", ")) <= set(SAMPLERS.names)
