"""Every key of a job has an effect on it, or the job is refused, or warned: by a rule that a new key cannot escape.

`EFFECTS` changes each key there is in a job where it counts: the fit must come out another. In `CONTEXTS`, jobs of
many kinds, each key that they have is changed to the values of `TRIALS`: another fit, a refusal or a warning.
"""

import copy
import dataclasses
import itertools
import json
import re
import typing
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import yaml
from command_line import call
from places import TESTS

from dorff import ORFFClassifier, ORFFRegressor, frequencies, graphs, kernels
from dorff.data import ingest
from dorff.data.edges import write_graph
from dorff.engine import SerialEngine
from dorff.errors import DoesNotFitError, DorffError, InputError
from dorff.fit import fit
from dorff.plan import make_plan
from dorff.spec.job import Job
from dorff.spec.kernel import BoundedSpec, TermSpec, ViewSpec
from dorff.spec.part import Idle, Part, Typed
from dorff.spec.reader import load_job
from dorff.spec.registry import CLUSTERS, GRAPHS, KERNELS, LOSSES, OUTPUTS, SAMPLERS, SCALARS

GAUSS = {"type": "gaussian", "lengthscale": 3.0}
SINGLE = {"type": "decomposable", "scalar": GAUSS}
CURL = {"type": "curl_free", "scalar": GAUSS}
VIEWS = {"type": "multi_view", "views": [{"inputs": "x", "kernel": SINGLE}, {"inputs": "v", "kernel": SINGLE}]}
CLASSES = {"targets": {"classes": "classes"}}
KNN = {"weight": 1e-3, "graph": {"type": "knn", "neighbours": 3}}
KFOLD = {"select": "kfold", "ridge": [1e-4, 1e-2], "folds": {"by": "rows"}}
SERIAL = {"type": "serial"}


def scalar(kind: str, **options: Any) -> dict[str, Any]:
    return {"kernel": {"type": "decomposable", "scalar": {"type": kind, **options}}}


def sampler(kind: str, **options: Any) -> dict[str, Any]:
    return {"features": {"sampler": {"type": kind, **options}}}


def two(other: dict[str, Any]) -> dict[str, Any]:
    return {"kernel": {"type": "sum", "terms": [{"weight": 1.0, "kernel": SINGLE}, {"weight": 2.0, "kernel": other}]}}


SKELETON = scalar("skeleton", layers=[{"activation": "erf"}])
WIDE = {**SINGLE, "scalar": {"type": "gaussian", "lengthscale": 1.0}}
#: A job in which the key counts, the key's place in it, and another value.
EFFECTS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "Data.store": ({}, "data.store", "b.zarr"),
    "Data.inputs": ({}, "data.inputs", ["u", "x"]),
    "Data.targets": ({}, "data.targets", "one"),
    "Data.weights": ({}, "data.weights", "weights"),
    "Data.nan": ({}, "data.nan", "partial"),
    "Data.box": (sampler("lattice"), "data.box", [[-9, 9], [-9, 9]]),
    "Data.labelled": ({"data": {"nan": "unlabelled"}, "manifold": KNN}, "data.labelled", "known"),
    "Data.unlabelled": ({"manifold": KNN}, "data.unlabelled", "b.zarr"),
    "ClassTargets.classes": ({"data": CLASSES}, "data.targets.classes", "groups"),
    "Features.count": ({}, "features.count", 20),
    "Features.sampler": ({}, "features.sampler", {"type": "iid"}),
    "Features.seed": ({}, "features.seed", 1),
    "Features.drawn_for": ({}, "features.drawn_for", [SINGLE, WIDE]),
    "Features.precision": ({}, "features.precision", "mixed"),
    "Folds.count": ({"solve": KFOLD}, "solve.folds.count", 4),
    "Folds.by": ({"solve": KFOLD}, "solve.folds.by", "groups"),
    "Solve.ridge": ({}, "solve.ridge", 1e-3),
    "Solve.ridge_per_output": ({"solve": {"ridge": [1e-4, 1e-2]}}, "solve.ridge_per_output", True),
    "Solve.select": ({"solve": {"ridge": [1e-4, 1e-2]}}, "solve.select", "evidence"),
    "Solve.folds": ({"solve": {"conformal": True}}, "solve.folds", {"count": 3, "by": "rows"}),
    "Solve.standardize": ({}, "solve.standardize", True),
    "Solve.intercept": ({}, "solve.intercept", False),
    "Solve.observe": ({}, "solve.observe", [[1, 0], [1, 1]]),
    "Solve.posterior": ({}, "solve.posterior", False),
    "Solve.conformal": ({}, "solve.conformal", True),
    "Solve.route": ({}, "solve.route", "cg"),
    "Solve.qr": ({"solve": {"ridge": 1e-16}, **sampler("orthogonal")}, "solve.qr", False),
    "Solve.class_weight": ({"data": CLASSES}, "solve.class_weight", "balanced"),
    "Solve.calibrate": ({"data": CLASSES}, "solve.calibrate", False),
    "Solve.loss": ({"publish": {"digits": 3.0}}, "solve.loss", "huber"),
    "Solve.solver": ({"solve": {"loss": {"huber": 0.1}}}, "solve.solver", "newton"),
    "Solve.tolerance": ({"solve": {"loss": {"huber": 0.1}}}, "solve.tolerance", 1e-2),
    "Solve.epochs": ({"solve": {"solver": "sgd"}}, "solve.epochs", 2),
    "Solve.batch": ({"solve": {"solver": "adam"}}, "solve.batch", 16),
    "HuberSpec.huber": ({"solve": {"loss": {"huber": 1.0}}}, "solve.loss.huber", 0.5),
    "EpsilonSpec.epsilon_insensitive": ({"solve": {"loss": {"epsilon_insensitive": 0.1}}},
                                        "solve.loss.epsilon_insensitive", 0.3),
    "QuantilesSpec.quantiles": ({"solve": {"loss": {"quantiles": [0.5]}}}, "solve.loss.quantiles", [0.3, 0.5]),
    "QuantilesSpec.coupling": ({"solve": {"loss": {"quantiles": [0.2, 0.5]}}}, "solve.loss.coupling", 4.0),
    "Publish.digits": ({}, "publish.digits", 15.0),
    "Publish.holdout": ({}, "publish.holdout", "b.zarr"),
    "Publish.sample": ({"solve": KFOLD}, "publish.sample", False),
    "MatrixOutput.matrix": ({"kernel": {**SINGLE, "output": {"matrix": [[1, 0], [0, 1]]}}}, "kernel.output.matrix",
                            [[1, 0.5], [0.5, 1]]),
    "FactorOutput.factor": ({"kernel": {**SINGLE, "output": {"factor": [[1], [0]]}}}, "kernel.output.factor",
                            [[1], [1]]),
    "GraphOutput.graph": ({"kernel": {**SINGLE, "output": {"graph": [[0, 1], [1, 0]]}}}, "kernel.output.graph",
                          [[0, 2], [2, 0]]),
    "GraphOutput.offset": ({"kernel": {**SINGLE, "output": {"graph": [[0, 1], [1, 0]]}}}, "kernel.output.offset", 0.1),
    "LearnedOutputSpec.learned": ({"kernel": {**SINGLE, "output": {"learned": "trace"}}}, "kernel.output.learned",
                              "frobenius"),
    "decomposable.scalar": ({"kernel": SINGLE}, "kernel.scalar", {"type": "laplacian", "lengthscale": 1.0}),
    "decomposable.output": ({"kernel": SINGLE}, "kernel.output", "covariance"),
    "BoundedSpec.split": ({"kernel": {**CURL, "measure": {"type": "bounded"}}}, "kernel.measure.split", 0.3),
    "curl_free.scalar": ({"kernel": CURL}, "kernel.scalar.lengthscale", 2.0),
    "curl_free.measure": ({"kernel": CURL}, "kernel.measure", "unbounded"),
    "divergence_free.scalar": ({"kernel": {**CURL, "type": "divergence_free"}}, "kernel.scalar.lengthscale", 2.0),
    "divergence_free.measure": ({"kernel": {**CURL, "type": "divergence_free"}}, "kernel.measure", "unbounded"),
    "TermSpec.weight": (two(WIDE), "kernel.terms.0.weight", 3.0),
    "TermSpec.kernel": (two(WIDE), "kernel.terms.0.kernel", CURL),
    "sum.terms": (two(WIDE), "kernel.terms.0.kernel", CURL),
    "sum.concatenate": (two(WIDE), "kernel.concatenate", True),
    "ViewSpec.inputs": ({"kernel": VIEWS}, "kernel.views.1.inputs", "u"),
    "ViewSpec.kernel": ({"kernel": VIEWS}, "kernel.views.1.kernel", WIDE),
    "multi_view.views": ({"kernel": VIEWS}, "kernel.views.1.kernel", WIDE),
    "ManifoldSpec.graph": ({"manifold": KNN}, "manifold.graph", {"type": "identity"}),
    "ManifoldSpec.weight": ({"manifold": KNN}, "manifold.weight", 1e-2),
    "ManifoldSpec.laplacian": ({"manifold": KNN}, "manifold.laplacian", "normalised"),
    "ManifoldSpec.power": ({"manifold": KNN}, "manifold.power", 2),
    "ManifoldSpec.outputs": ({"manifold": KNN}, "manifold.outputs", {"matrix": [[1, 0.5], [0.5, 1]]}),
    "ManifoldSpec.view": ({"kernel": VIEWS, "manifold": KNN}, "manifold.view", "x"),
    "ManifoldSpec.between": ({"kernel": VIEWS, "manifold": {"weight": 1e-3, "graph": {"type": "identity"}}},
                             "manifold.between", True),
    "ManifoldSpec.form": ({"manifold": KNN}, "manifold.form", "difference"),
    "ManifoldSpec.scale": ({"manifold": KNN}, "manifold.scale", "mean"),
    "KnnSpec.neighbours": ({"manifold": KNN}, "manifold.graph.neighbours", 4),
    "KnnSpec.weights": ({"manifold": KNN}, "manifold.graph.weights", "binary"),
    "KnnSpec.within": ({"manifold": KNN}, "manifold.graph.within", "leaf"),
    "GivenSpec.path": ({"manifold": {"weight": 1e-3, "graph": {"type": "given", "path": "g.parquet"}}},
                       "manifold.graph.path", "h.parquet"),
    "rom.blocks": (sampler("rom"), "features.sampler.blocks", 2),
    "qmc.sequence": (sampler("qmc"), "features.sampler.sequence", "halton"),
    "qmc.scramble": (sampler("qmc"), "features.sampler.scramble", False),
    "lattice.error": (sampler("lattice"), "features.sampler.error", 0.5),
    "gauss_quadrature.points": (sampler("gauss_quadrature"), "features.sampler.points", 5),
    "quadrature.degree": (sampler("quadrature"), "features.sampler.degree", [1, 3]),
    "quadrature.mixing": (sampler("quadrature"), "features.sampler.mixing", "haar"),
    "quadrature.radii": (sampler("quadrature"), "features.sampler.radii", "shared"),
    "quadrature.centre": (sampler("quadrature"), "features.sampler.centre", "redraw"),
    "gaussian.lengthscale": (scalar("gaussian", lengthscale=1.0), "kernel.scalar.lengthscale", "median"),
    "laplacian.lengthscale": (scalar("laplacian", lengthscale=1.0), "kernel.scalar.lengthscale", [1.0, 2.0]),
    "matern.lengthscale": (scalar("matern", lengthscale=1.0), "kernel.scalar.lengthscale", "tune"),
    "matern.nu": (scalar("matern", lengthscale=1.0), "kernel.scalar.nu", 2.5),
    "cauchy.lengthscale": (scalar("cauchy", lengthscale=1.0), "kernel.scalar.lengthscale", 2.0),
    "rational_quadratic.lengthscale": (scalar("rational_quadratic", lengthscale=1.0), "kernel.scalar.lengthscale",
                                          2.0),
    "rational_quadratic.alpha": (scalar("rational_quadratic", lengthscale=1.0), "kernel.scalar.alpha", 2.0),
    "arc_cosine.order": (scalar("arc_cosine"), "kernel.scalar.order", 0),
    "polynomial.degree": (scalar("polynomial", degree=2), "kernel.scalar.degree", 3),
    "polynomial.offset": (scalar("polynomial", degree=2), "kernel.scalar.offset", 2.0),
    "polynomial.scale": (scalar("polynomial", degree=2), "kernel.scalar.scale", 2.0),
    "pointwise.function": (scalar("pointwise", function="erf"), "kernel.scalar.function", "tanh"),
    "mercer.system": ({"data": {"inputs": "unit"}, **scalar("mercer", system="brownian", count=20)},
                          "kernel.scalar.system", "bridge"),
    "skeleton.inputs": (SKELETON, "kernel.scalar.inputs", {"type": "angle", "lengthscale": 2.0}),
    "skeleton.layers": (SKELETON, "kernel.scalar.layers", [{"activation": "step"}]),
    "skeleton.shape": (scalar("skeleton", layers=[{"size": 1}, {}], shape=[2, 1]), "kernel.scalar.shape", [1, 2]),
    "skeleton.nodes": (scalar("skeleton", nodes={"a": {"of": [0, 1]}}), "kernel.scalar.nodes", {"a": {"of": [0]}}),
    "paths.draws": ({**SKELETON, **sampler("paths")}, "features.sampler.draws", 4),
    "mercer.count": ({"data": {"inputs": "unit"}, **scalar("mercer", system="brownian", count=20)},
                         "kernel.scalar.count", 10),
}  # fmt: skip
#: What shows the effect of a key that is not about fitting the rows that are there.
ELSEWHERE = {
    "Data.outside": "test_lattice_fit.py::test_rows_outside_of_the_box_are_refused_or_counted",
    "lattice.periods": "test_lattice.py::test_along_a_period_the_kernel_is_the_sum_of_its_copies",
    "lattice.tolerance": "test_exponentials.py::test_sums_by_a_grid_are_as_good_as_their_tolerance",
    "Data.window": "test_fit_scheduled.py::test_a_window_slides_by_leaving_leaves_out",
    "Publish.margin": "test_fit_scheduled.py::test_the_gate_keeps_what_is_worse",
    "Publish.keep": "test_fit_scheduled.py::test_keep_prunes",
    "KnnSpec.append": "test_fit_manifold.py::test_linked_rows",
    "LocalCluster.host": "test_clusters.py::test_a_local_cluster_off_loopback_lets_nobody_in",
    "LocalCluster.small_jobs": "test_start.py::test_a_job_that_wants_workers_has_them_however_small",
    **dict.fromkeys(("LocalCluster.workers", "LocalCluster.memory", "SerialCluster.memory"),
                    "test_no_effect.py::test_what_there_is_bounds_the_plan"),
    **dict.fromkeys(("TLS.ca", "TLS.cert", "TLS.key", "RemoteCluster.address", "RemoteCluster.tls"),
                    "test_clusters.py::test_a_job_reaches_its_cluster_by_tls"),
    **dict.fromkeys(("SlurmCluster.workers", "SlurmCluster.memory", "SlurmCluster.interface", "SlurmCluster.folder"),
                    "test_slurm.py::test_a_job_asks_slurm_for_what_it_says"),
    **dict.fromkeys(("SlurmCluster.walltime", "SlurmCluster.account", "SlurmCluster.directives"),
                    "test_slurm.py::test_a_job_asks_slurm_for_what_it_says"),
    "SlurmCluster.queue": "test_slurm.py::test_what_sbatch_says_is_passed_on",
    "SlurmCluster.wait": "test_slurm.py::test_a_queue_that_starts_nothing_ends_the_fit_with_its_reason",
    **dict.fromkeys(("MPICluster.memory", "MPICluster.interface"),
                    "test_mpi.py::test_ranks_have_the_memory_and_the_interface_of_the_job"),
    "RemoteCluster.plain_tcp": "test_clusters.py::test_plain_tcp_off_loopback_is_refused_unless_asked_for",
    **{f"KubernetesCluster.{key}": "test_kubernetes.py::test_every_key_is_in_the_pods" for key in (
        "image", "workers", "memory", "namespace", "tls", "claim", "env_from", "service_account",
        "priority_class", "tolerations")},
    **dict.fromkeys(("Job.state", "Job.model"), "test_spec.py::test_relative_paths_start_from_the_job_file"),
}  # fmt: skip
EFFECTS["ViewSpec.name"] = ({"kernel": VIEWS, "manifold": {**KNN, "view": "x"}}, "kernel.views.0.name", "left")

#: Keys whose other value is one that this job cannot have: more digits than there are, a name that a term misses.
REFUSED = {"Publish.digits", "ViewSpec.name"}

#: Jobs of every kind, for keys that count in some of them.
CONTEXTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "field": {"kernel": CURL},
    "kfold": {"solve": KFOLD},
    "classes": {"data": CLASSES},
    "bare classes": {"data": CLASSES, "solve": {"calibrate": False}},
    "conformal": {"solve": {"conformal": True}},
    "cg": {"solve": {"route": "cg"}},
    "streaming": {"solve": {"route": "streaming"}},
    "mixed": {"features": {"precision": "mixed"}},
    "manifold": {"manifold": {**KNN, "graph": {"type": "knn", "neighbours": 3, "within": "leaf"}}},
    "views": {"kernel": VIEWS},
    "polynomial": {**scalar("polynomial", degree=2)},
    "halton": sampler("qmc", sequence="halton", scramble=False),
    "one target": {"data": {"targets": "one"}},
    "huber": {"solve": {"loss": {"huber": 0.1}}},
    "hinge": {"data": CLASSES, "solve": {"loss": "hinge"}},
    "sgd": {"solve": {"solver": "sgd"}},
}
#: What each key is set to in all of them: the value of EFFECTS, or these, beside what.
TRIALS: dict[str, tuple[tuple[dict[str, Any], Any], ...]] = {
    **{name: (({}, value),) for name, (_, _, value) in EFFECTS.items()},
    "Data.nan": (({}, "partial"), ({}, "unlabelled")),
    "Features.count": (({}, 4), ({}, [24, 24]), ({}, [24, 4])),
    "Solve.ridge_per_output": (({"solve": {"ridge": [1e-4, 1e-2]}}, True), ({}, True)),
    "Solve.select": (({}, "evidence"), ({}, "kfold"), ({}, "loo"), ({"solve": {"ridge": [1e-4, 1e-2]}}, "evidence")),
    "Folds.by": (({"solve": {"folds": {"by": "rows"}}}, "groups"),),  # which these data are dealt by if it is left out
    "Solve.folds": (({}, {"count": 4, "by": "rows"}), ({}, {"by": "nosuch"})),
    "Solve.qr": (({"solve": {"ridge": 1e-16}, **sampler("orthogonal")}, False),),  # of landmarks no digit is lost
    "KnnSpec.append": (({}, "link"),),
}
#: What no single fit shows, and the name by which `predict` is asked for a view.
UNTRIED = (set(ELSEWHERE) - set(TRIALS)) | {"ViewSpec.name"}
TERMS = {"type": "sum", "terms": [{"weight": 1.0, "kernel": SINGLE}]}
POLYNOMIAL = {"type": "decomposable", "scalar": {"type": "polynomial", "degree": 2}}
PLACED: tuple[tuple[dict[str, Any], str, Any], ...] = (
    *((sampler("quadrature", degree=[1, 1]), f"features.sampler.{key}", value)
      for key, value in (("mixing", "haar"), ("radii", "shared"), ("centre", "redraw"), ("centre", "drop"))),
    *((sampler("quadrature", degree=[1, 3]), f"features.sampler.{key}", value)
      for key, value in (("mixing", "haar"), ("radii", "shared"), ("centre", "redraw"), ("centre", "drop"))),
    ({"kernel": TERMS}, "kernel.concatenate", True),
    ({"kernel": {**TERMS, "terms": [{"weight": 1.0, "kernel": two(WIDE)["kernel"]}]}}, "kernel.concatenate", True),
    ({"solve": {"conformal": True}}, "solve.posterior", True),
    ({"solve": {**KFOLD, "ridge": 1e-3}}, "solve.ridge_per_output", True),
    ({"kernel": POLYNOMIAL, "features": {"drawn_for": POLYNOMIAL}}, "features.sampler", {"type": "iid"}),
    ({"manifold": {**KNN, "graph": {"type": "identity"}}}, "manifold.laplacian", "normalised"),
    ({"manifold": {**KNN, "graph": {"type": "identity"}}}, "manifold.power", 2),
    ({"manifold": {**KNN, "graph": {"type": "identity"}}}, "manifold.form", "edges"),
    ({"manifold": {**KNN, "power": 2}}, "manifold.form", "edges"),
    ({"manifold": {**KNN, "graph": {"type": "knn", "neighbours": 3, "within": "leaf"}}}, "manifold.graph.append",
     "link"),
    ({"manifold": KNN}, "manifold.view", "u"),
    ({"data": {"inputs": "unit"}, **scalar("mercer", system="bridge", count=9)}, "features.sampler", {"type": "iid"}),
    ({}, "publish.margin", 0.1),
    ({"manifold": {**KNN, "graph": {"type": "identity"}}}, "manifold.between", True),
    ({}, "manifold", {**KNN, "weight": 0.0}),
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets, some targets of the first missing, and two graphs of its rows."""
    folder, rng = tmp_path_factory.mktemp("idle"), np.random.default_rng(0)
    for name, n in (("a", 80), ("b", 60)):
        X = rng.uniform(-1, 1, (n, 2))
        Y = np.column_stack([np.sin(4 * X[:, 0]), 3 * np.cos(X[:, 1])]) + 0.1 * rng.standard_normal((n, 2))
        gaps = Y.copy()
        gaps[:5, 0] = np.nan
        rows = np.arange(n)
        columns = {
            "x": X, "y": gaps if name == "a" else Y, "c": np.digitize(X[:, 0], [-0.2, 0.8]), "one": Y[:, :1],
            "w": rng.uniform(0.5, 2, n), "g": rows // 8, "known": np.where(rows % 3, 1.0, 0.0), "u": X[:, 0],
            "v": X[:, 1], "unit": (X[:, 0] + 1) / 2,
        }  # fmt: skip
        np.savez(folder / f"{name}.npz", **columns)
        also = {array: [array] for array in ("one", "known", "u", "v", "unit")}
        ingest(
            [folder / f"{name}.npz"], folder / f"{name}.zarr", inputs=["x"], targets=["y"], classes="c", weights="w",
            groups="g", also=also,
        )  # fmt: skip
    for name, step in (("g", 1), ("h", 2)):
        near = sp.eye_array(80, k=step, format="csr")
        write_graph(folder / f"{name}.parquet", near + near.T)
    return folder


def merged(job: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """The job with these keys of its sections."""
    found = dict(job)
    for key, value in parts.items():
        section = key in ("data", "features", "solve", "publish")
        found[key] = {**found.get(key, {}), **value} if section else value
    return found


def whole(parts: dict[str, Any]) -> dict[str, Any]:
    base = {
        "data": {"store": "a.zarr", "nan": "drop"}, "kernel": SINGLE, "features": {"count": 24},
        "solve": {"ridge": 1e-4}, "cluster": SERIAL,
        "publish": {} if {"loss", "solver"} & set(parts.get("solve", {})) else {"digits": 0.0},
    }  # fmt: skip
    return merged(base, parts)


def changed(job: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """The job with another value in a dotted place."""
    found = copy.deepcopy(job)
    *path, last = place.split(".")
    at: Any = found
    for key in path:
        if isinstance(at, list) or not key.isdigit():  # a lone term is written without a list
            at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
    at[last] = value
    return found


ECHOES = ("seconds", "syrk_share", "peak_bytes", "plan_peak_bytes", "model", "select", "reads", "warnings", "choices")
_results: dict[str, tuple[str, list[str]]] = {}


def result(home: Path, job: dict[str, Any]) -> tuple[str, list[str]]:
    """What a fit gives, but for what only repeats the job: the model's arrays, what is said of it; or the refusal. And
    what it warns of."""
    text = json.dumps(job, sort_keys=True)
    if text not in _results:
        number = len(_results)
        path = home / f"{number}.yaml"
        path.write_text(yaml.safe_dump({**job, "state": f"runs/{number}", "model": f"models/{number}"}))
        try:
            report = fit(load_job(path), engine=SerialEngine())
        except DorffError as error:
            refusal = re.sub(r"\d+\.yaml|(runs|models)/\d+", "", f"{type(error).__name__}: {error}")
            _results[text] = refusal, []
        else:
            described = json.loads((Path(report.model) / "zarr.json").read_text())["attributes"]["description"]
            model = json.loads(described)
            own = {key: value for key, value in asdict(report).items() if key not in ECHOES}
            own["graphs"] = [{key: of for key, of in one.items() if key != "seconds"} for one in report.graphs]
            extras = [model["info"].get(key) for key in ("calibration", "conformal", "labels")]
            told = json.dumps([model["crc32"], model["features"], model["info"]["data"]["targets"], own, extras])
            _results[text] = told, make_plan(load_job(path)).warnings  # not those of how good the fit is
    return _results[text]


def read(home: Path, job: dict[str, Any]) -> Job:
    return Job.model_validate(json.loads(json.dumps({**job, "state": "s", "model": "m"})), context={"folder": home})


_plans: dict[str, Any] = {}


def planned(home: Path, job: dict[str, Any]) -> Any:
    """What a plan says that is sure to make another fit; None where there is none. Of its spec not what only
    repeats the job's words."""
    text = json.dumps(job, sort_keys=True)
    if text not in _plans:
        try:
            plan = make_plan(read(home, job))
        except (ValueError, DorffError):
            _plans[text] = None
        else:
            solve, spec = plan.job.solve, {**plan.spec.config(), "seed": 0, "nan": "", "sampler": "", "count": 0}
            terms = [[term.asked(), term.manifold.weights] for term in plan.terms]
            _plans[text] = json.dumps([spec, solve.ridges, solve.intercept, terms, plan.costs.route, plan.counts])
    return _plans[text]


def refused(text: str) -> bool:
    return "Error: " in text[:40]


def parts_of(kind: Any) -> Iterator[type[Part]]:
    """Every mapping that a value of this type may have in it."""
    if isinstance(kind, type) and issubclass(kind, Part):
        yield kind
        for field in kind.model_fields.values():
            yield from parts_of(field.annotation)
    else:
        for inner in typing.get_args(kind):
            yield from parts_of(inner)


def named_parts() -> Iterator[tuple[str, type[Part]]]:
    """Every mapping of a job: a word's options by the word, others by their class."""
    keyed = [entry.options for registry in (OUTPUTS, CLUSTERS, GRAPHS, LOSSES) for entry in registry.entries()]
    plain = [Job, TermSpec, ViewSpec, BoundedSpec, *keyed]
    for part in dict.fromkeys(part for kind in plain for part in parts_of(kind)):
        if part is not Typed:
            yield part.__name__, part
    for registry in (KERNELS, SCALARS, SAMPLERS):
        yield from ((entry.name, entry.options) for entry in registry.entries())


KEYS = {
    f"{name}.{key}": field
    for name, part in named_parts()
    for key, field in part.model_fields.items()
    if key != "type"  # it says which mapping this is, and with it all other keys
}
#: Keys that only hold other keys.
HOLDERS = {name for name in KEYS if name.startswith("Job.")} - {"Job.state", "Job.model"}


def test_no_key_is_left_out() -> None:
    """A new key must say where it counts: in EFFECTS, with a job that it changes, or in a test elsewhere."""
    assert len(KEYS) > 90
    assert not set(EFFECTS) & set(ELSEWHERE)
    assert set(KEYS) - HOLDERS == set(EFFECTS) | set(ELSEWHERE)
    for place in ELSEWHERE.values():
        file, name = place.split("::")
        assert f"def {name}(" in next(TESTS.rglob(file)).read_text(), place


@pytest.mark.slow
@pytest.mark.parametrize("name", EFFECTS)
def test_every_key_has_an_effect(home: Path, name: str) -> None:
    parts, place, value = EFFECTS[name]
    base = whole(parts)
    before, warned = result(home, base)
    assert not refused(before) and not warned, before
    after, said = result(home, changed(base, place, value))
    assert after != before and "no effect" not in after and not said, (place, said)
    assert refused(after) == (name in REFUSED), after


def keys_of(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The name in KEYS, and the place, of every key of a job."""
    if isinstance(value, Part):
        for key in type(value).model_fields:
            if key != "type":
                words = any(registry.get(getattr(value, "type", None)) for registry in (KERNELS, SCALARS, SAMPLERS))
                yield f"{value.type if words else type(value).__name__}.{key}", f"{place}{key}"
            yield from keys_of(getattr(value, key), f"{place}{key}.")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from keys_of(item, f"{place}{number}.")


def changes(home: Path, context: str) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Each key of a context's job: a job, the key's place in it, and another value."""
    base = whole(CONTEXTS[context])
    for name, place in keys_of(read(home, base)):
        if name not in HOLDERS and name not in UNTRIED:
            for also, value in TRIALS[name]:
                yield merged(base, also), place, value


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_no_key_is_ignored_in_silence(home: Path, context: str) -> None:
    for base, place, value in changes(home, context):
        counts(home, base, place, value)


@pytest.mark.parametrize(("parts", "place", "value"), PLACED, ids=lambda value: str(value)[-40:])
def test_no_key_further_in_is_ignored_in_silence(home: Path, parts: dict[str, Any], place: str, value: Any) -> None:
    assert not refused(result(home, whole(parts))[0])
    counts(home, whole(parts), place, value)


def test_views_that_are_badly_conditioned_are_fitted(home: Path) -> None:
    """There is no QR of their features, and so nothing to refuse the fit for."""
    told, warned = result(home, merged(whole({"kernel": VIEWS}), {"solve": {"ridge": 1e-16}}))
    assert not refused(told) and not warned and json.loads(told)[3]["status"] == "ill_conditioned"


def counts(home: Path, base: dict[str, Any], place: str, value: Any) -> None:
    """That the key makes another fit, or is refused by name, or warned of by name."""
    job = changed(base, place, value)
    before, after = planned(home, base), planned(home, job)
    if job == base or before is None or (after is not None and after != before):
        return
    was, _ = result(home, base)
    if refused(was):
        return
    told, warned = result(home, job)
    dotted = re.sub(r"[.](\d+)", r"[\1]", place).replace("manifold[0]", "manifold")
    said = [warning for warning in warned if dotted.startswith(warning.split(" ")[0].rstrip(":"))]
    said = said or [warning for warning in warned if warning.startswith(dotted)]
    assert told != was or said, f"{place}: {value} is ignored in {base}"
    assert told == was or "no effect" not in "".join(said), f"{place}: {value} has an effect in {base}: {said}"
    sentence = said[0] if said else told
    if said or "no effect" in told:
        assert re.search(r"; (leave it out|write (drop|partial))$", sentence), sentence
        idle = re.search(r"([\w.\[\]]+) has no effect", sentence)
        assert idle is None or idle[1] in dotted, sentence


@pytest.mark.slow
def test_what_has_a_rule_is_tried_where_the_rule_holds(home: Path) -> None:
    """Each key that a rule calls idle somewhere is so in one of the jobs above, and the job is refused or warns."""
    ruled = {name for name, field in KEYS.items() if any(isinstance(rule, Idle) for rule in field.metadata)}
    keys = {name.split(".")[1] for name in ruled}
    jobs = [one for context in CONTEXTS for one in changes(home, context)]
    jobs += [(whole(parts), place, value) for parts, place, value in PLACED]
    found = [result(home, changed(base, place, value)) for base, place, value in jobs if place.split(".")[-1] in keys]
    said = " ".join(f"{text[:200]} {' '.join(warned)}" for text, warned in found)
    told = {re.sub(r"\[\d+\]", "", place) for place in re.findall(r"([\w.\[\]]+) has no effect", said)}
    named = {name: re.sub(r"[.]\d+", "", EFFECTS[name][1]) for name in ruled if name in EFFECTS}
    assert {place for place in named.values() if place not in told} == set()
    assert ruled - set(named) == {
        "RemoteCluster.tls", "RemoteCluster.plain_tcp", "KnnSpec.append", "Publish.margin", "Data.outside",
    }  # fmt: skip


def test_what_a_key_would_be_anyway_may_be_written(home: Path) -> None:
    """Of every kind of job the dump, which has all keys, is the job."""
    for parts in (*CONTEXTS.values(), *(parts for parts, _, _ in PLACED)):
        raw = json.loads(json.dumps({**whole(parts), "state": "s", "model": "m"}))
        job = Job.model_validate(raw, context={"folder": home})
        again = Job.model_validate(job.model_dump(mode="json"))
        assert again == job and again.warnings == job.warnings == []


def test_the_place_of_an_idle_key_is_named(home: Path) -> None:
    parts = {"kernel": [SINGLE, {**TERMS, "terms": [{"weight": 1.0, "kernel": {**TERMS, "concatenate": True}}]}]}
    text, _ = result(home, whole(parts))
    assert "kernel[1].terms[0].kernel.concatenate has no effect: there is one term" in text
    nested = {**TERMS, "terms": [{"weight": 1.0, "kernel": two(WIDE)["kernel"]}], "concatenate": True}
    assert not refused(result(home, whole({"kernel": nested}))[0])  # of two terms, further in


IDENTITY = {**KNN, "graph": {"type": "identity"}}
GIVEN = {**KNN, "graph": {"type": "given", "path": "g.parquet"}}


@pytest.mark.parametrize(
    ("parts", "idle"),
    [
        ({"manifold": IDENTITY, "data": {"unlabelled": "b.zarr"}}, ""),
        ({"manifold": [GIVEN, KNN], "data": {"unlabelled": "b.zarr"}}, ""),
        ({"manifold": GIVEN, "data": {"unlabelled": "b.zarr"}}, "each term's graph is given"),
        ({"data": {"unlabelled": "b.zarr"}}, "and the job has none"),
        ({"solve": KFOLD, "publish": {"margin": 0.1}}, ""),
        ({"publish": {"holdout": "b.zarr", "margin": 0.1}}, ""),
        ({"publish": {"margin": 0.1}}, "no rows are held out to score"),
        ({"solve": {"observe": [[1, 0], [0, 1]]}}, ""),
        ({"data": CLASSES, "solve": {"observe": [[1, 0], [0, 1]]}}, "data.targets is classes"),
        ({"kernel": VIEWS, "solve": {"observe": [[1, 0], [0, 1]]}}, "the targets see the mean"),
        ({"manifold": {**GIVEN, "form": "edges", "power": 1}}, ""),
        ({"manifold": {**GIVEN, "form": "edges", "power": 2}}, "power is more than 1"),
        ({"manifold": {**GIVEN, "laplacian": "normalised"}}, ""),
        ({"kernel": VIEWS, "manifold": {**KNN, "view": "x"}}, ""),
        ({"kernel": VIEWS, "manifold": {"weight": 1e-3, "between": True, "view": "x"}}, "penalises all views"),
        ({"kernel": VIEWS, "manifold": {"weight": 1e-3, "between": True}}, ""),
        ({"manifold": {**IDENTITY, "between": True}}, "the kernel has no views"),
        ({"manifold": {**KNN, "graph": {"type": "knn", "append": "link"}}}, ""),
    ],
    ids=lambda value: str(value)[-60:],
)  # fmt: skip
def test_a_key_is_refused_where_it_is_idle_alone(home: Path, parts: dict[str, Any], idle: str) -> None:
    try:
        read(home, whole(parts))
    except ValueError as error:
        assert idle and re.search(rf"has no effect: .*{idle}", str(error)), error
    else:
        assert not idle


FOLDLESS = "solve.folds has no effect: select is gcv, and no rows are held out (set select: kfold,"


@pytest.mark.parametrize(
    ("parts", "warned"),
    [
        ({"solve": {"select": "evidence", "ridge_per_output": True, "ridge": 1e-3}},
         ["solve.ridge_per_output has no effect: there is one ridge", "solve.select has no effect: there is one"]),
        ({"solve": {"select": "evidence"}, "kernel": [SINGLE, CURL]}, []),
        ({"solve": {"select": "evidence"}, "features": {"count": [24, 12]}}, []),
        ({"solve": {"route": "direct", "qr": False}}, []),
        ({"solve": {"route": "cg", "posterior": True}}, []),  # the plan refuses it
        ({"solve": {"route": "cg", "conformal": True}, "publish": {"sample": False}, **sampler("lattice")}, []),
        ({"solve": {"route": "cg", **KFOLD}, "publish": {"sample": False}}, ["publish.sample has no effect: no model"]),
        ({"solve": {"folds": {"count": 4}}},
         [f"{FOLDLESS} or conformal: true)"]),
        ({"solve": {"folds": {"count": 4}, "calibrate": False}, "data": CLASSES},
         [f"{FOLDLESS} or calibrate: true)"]),
    ],
)  # fmt: skip
def test_ways_to_choose_and_to_solve_make_keys_idle(home: Path, parts: dict[str, Any], warned: list[str]) -> None:
    said = read(home, whole(parts)).warnings
    assert len(said) == len(warned) and all(map(str.startswith, said, warned)), said


TLS = {"ca": "ca.pem", "cert": "cert.pem", "key": "key.pem"}


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        (
            {"address": "tcp://[::1]:1", "tls": TLS},
            "cluster.tls has no effect: tcp://[::1]:1 is not encrypted",
        ),
        ({"address": "ws://node:1", "tls": TLS}, "cluster.tls has no effect: ws://node:1 is not encrypted"),
        ({"address": "tls://node:1", "plain_tcp": True}, "cluster.plain_tcp has no effect: tls://node:1 is encrypted"),
        ({"address": "wss://node:1", "plain_tcp": True}, "cluster.plain_tcp has no effect: wss://node:1 is encrypted"),
    ],
)
def test_credentials_that_nobody_would_look_at(home: Path, cluster: dict[str, Any], sentence: str) -> None:
    path = home / "remote.yaml"
    path.write_text(yaml.safe_dump({**whole({}), "cluster": cluster, "state": "s", "model": "m"}))
    with pytest.raises(InputError) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")
    kept = {key: value for key, value in cluster.items() if key == "address"}
    path.write_text(yaml.safe_dump({**whole({}), "cluster": kept, "state": "s", "model": "m"}))
    assert load_job(path)


def test_what_there_is_bounds_the_plan(home: Path) -> None:
    def costs(**cluster: Any) -> Any:
        job = {**whole({}), "cluster": cluster, "state": "s", "model": "m"}
        return make_plan(Job.model_validate(job, context={"folder": home})).costs

    assert costs(type="local", workers=3).peak_bytes > costs(type="local", workers=2).peak_bytes
    for kind in ("local", "serial"):
        with pytest.raises(DoesNotFitError, match=r"cluster\.memory is 50 MiB"):
            costs(type=kind, memory="50MiB")


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"features": {"seed": 3}, **scalar("polynomial", degree=2)}, "features.seed has no effect: nothing is drawn"),
        ({"data": {"targets": "one"}, "solve": {"ridge": [1e-4, 1e-2], "select": "gcv", "ridge_per_output": True}},
         "solve.ridge_per_output: there is one output"),
        ({"manifold": [KNN, {**KNN, "weight": 0.0}]}, "manifold.weight: it is 0, and term 2"),
    ],
)  # fmt: skip
def test_what_only_the_data_tell_is_warned_of(home: Path, parts: dict[str, Any], sentence: str) -> None:
    path = home / "warned.yaml"
    path.write_text(yaml.safe_dump({**whole(parts), "state": "runs/warned", "model": "models/warned"}))
    for command in ("plan", "fit", "fit"):
        done = call(command, path, "--json")
        assert done.exit_code == 0, done.stderr
        (warning,) = (one for one in json.loads(done.stdout)["warnings"] if one.endswith("; leave it out"))
        assert warning.startswith(sentence)
        assert f"dorff: {warning}\n" in done.stderr


def test_a_grid_that_is_whole_has_no_seed(home: Path) -> None:
    """9 nodes of 2 columns each: with 18 columns every node is taken, with 17 some are drawn."""
    for count, whole_grid in ((18, True), (17, False)):
        features = {**sampler("gauss_quadrature", points=3)["features"], "count": count, "seed": 3}
        job = {**whole({"features": features}), "state": "s", "model": "m"}
        assert bool(make_plan(Job.model_validate(job, context={"folder": home})).warnings) == whole_grid


def test_seeds_of_what_is_drawn_or_dealt_are_not_warned_of(home: Path) -> None:
    grid = sampler("gauss_quadrature", points=3)["features"]
    for parts in (
        {"features": {"seed": 3}},
        {"features": {**grid, "seed": 3}, "solve": {"conformal": True}},
        {"features": {**grid, "seed": 3}, "manifold": KNN},
        {"features": {**grid, "seed": 3, "count": 8}},
        {"features": {"seed": 3, "count": 9}, **scalar("polynomial", degree=4)},
        {"data": {"inputs": "unit"}, "features": {"seed": 3}, **scalar("mercer", system="brownian", count=30)},
        {"features": {"sampler": {"type": "qmc", "scramble": False}, "seed": 3}, **two(WIDE)},
        {"features": {**grid, "seed": 3}, "kernel": {**SINGLE, "scalar": {**GAUSS, "lengthscale": "tune"}}},
        {"features": grid},
    ):
        job = {**whole(parts), "state": "s", "model": "m"}
        assert make_plan(Job.model_validate(job, context={"folder": home})).warnings == [], parts


@pytest.mark.parametrize("d", [2, 5])
def test_every_option_of_a_sampler_changes_what_is_drawn(d: int) -> None:
    """All options of all samplers, each against each other: other frequencies, or a refusal."""
    options: dict[type[frequencies.Sampler], dict[str, tuple[Any, ...]]] = {
        frequencies.IID: {}, frequencies.Orthogonal: {}, frequencies.SORF: {}, frequencies.Fastfood: {},
        frequencies.Paths: {"draws": (16,)},
        frequencies.ROM: {"blocks": (3, 2, 4)},
        frequencies.QMC: {"sequence": ("sobol", "halton"), "scramble": (True, False)},
        frequencies.GaussQuadrature: {"points": (8, 4)},
        frequencies.Lattice: {"error": (0.1, 0.01), "tolerance": (1e-12,), "sides": ((1.0,) * d, (2.0,) * d),
                              "constant": (False, True), "grid": (None,), "periods": (None, (2.0, *(None,) * (d - 1))),
                              "box": (None,)},
        frequencies.Quadrature: {
            "degree": ((3, 3), (1, 3), (1, 1)), "mixing": ("butterfly", "haar"), "radii": ("own", "shared"),
            "centre": ("signed", "redraw", "drop"),
        },
    }  # fmt: skip
    others = {frequencies.Landmarks}  # which has no frequencies to draw, and no options
    assert set(options) == {entry.build for entry in SAMPLERS.entries()} - others
    kernel = kernels.Decomposable(kernels.Gaussian(1.0)).fix(d, 1)
    for sampler_type, choices in options.items():
        assert set(choices) == {field.name for field in dataclasses.fields(sampler_type)}
        seen: dict[str, dict[str, Any]] = {}
        for values in itertools.product(*choices.values()):
            given = dict(zip(choices, values, strict=True))
            try:
                draw = sampler_type(**given).draw
                found = [draw(kernel, d=d, p=1, count=4 * (d + 1), seed=seed) for seed in range(4)]
            except InputError as error:
                assert re.match(
                    r"sampler[.](mixing|radii|centre) has no effect on a rule of degree \(1, \d\)", str(error)
                )
                assert any(given[key] != choices[key][0] for key in ("mixing", "radii", "centre"))
                continue
            drawn = json.dumps([[one.omega.tolist(), one.weights.tolist(), one.centre] for one in found])
            assert drawn not in seen, (given, seen[drawn])
            seen[drawn] = given
        assert len(seen) == {frequencies.Quadrature: 12 + 4 + 1, frequencies.ROM: 3, frequencies.QMC: 4,
                             frequencies.GaussQuadrature: 2, frequencies.Lattice: 16}.get(sampler_type, 1)  # fmt: skip


X, NOISE = np.random.default_rng(0).uniform(-1, 1, (60, 2)), 0.3 * np.random.default_rng(1).standard_normal((60, 2))
Y = np.column_stack([np.sin(4 * X[:, 0]), X[:, 1] > 0.1]) + NOISE
K1 = kernels.Gaussian(1.0)
POLY, A = kernels.Polynomial(6), np.array([[2.0, 0.5], [0.5, 1.0]])
#: Of each parameter, beside what it is changed, and to what.
PARAMETERS: dict[type, dict[str, tuple[dict[str, Any], Any]]] = {
    ORFFRegressor: {
        "kernel": ({}, POLY), "n_features": ({}, 20), "sampler": ({}, frequencies.IID()), "ridge": ({}, 1e-2),
        "cv": ({"ridge": [1e-3, 1.0]}, 4), "random_state": ({}, 1), "intercept": ({}, False),
        "standardize": ({}, True), "observe": ({}, [[1.0, 0.0], [1.0, 1.0]]), "missing": ({}, "partial"),
        "criterion": ({"ridge": [1e-3, 1.0]}, "evidence"), "precision": ({}, "mixed"), "posterior": ({}, False),
        "manifold": ({}, 1e-2), "graph": ({"manifold": 1e-2}, graphs.KNN(3)),
        "loss": ({}, {"huber": 0.1}), "solver": ({"loss": {"huber": 0.1}}, "newton"),
        "tol": ({"loss": {"huber": 0.1}}, 1e-2),
    },
    ORFFClassifier: {
        "kernel": ({}, POLY), "n_features": ({}, 20), "coding": ({}, "one_vs_all"), "sampler": ({}, frequencies.IID()),
        "ridge": ({}, 1e-2), "cv": ({}, 4), "class_weight": ({}, "balanced"), "calibrate": ({}, False),
        "random_state": ({}, 1), "intercept": ({}, False), "standardize": ({}, True), "manifold": ({}, 1e-2),
        "graph": ({"manifold": 1e-2}, graphs.KNN(3)),
        "loss": ({}, "logistic"), "solver": ({"loss": "logistic"}, "newton"), "tol": ({"loss": "logistic"}, 0.1),
        "posterior": ({"loss": "logistic"}, True),
    },
}  # fmt: skip
#: Estimators of other kinds, for parameters that count in some of them.
KINDS: tuple[dict[str, Any], ...] = (
    {}, {"ridge": [1e-3, 1.0]}, {"ridge": [1e-3, 1.0], "cv": 3}, {"kernel": POLY},
    {"kernel": kernels.Decomposable(POLY)}, {"kernel": kernels.Decomposable(K1, A)}, {"manifold": 1e-2},
)  # fmt: skip
TABLES = ("cv_errors_", "gcv_", "log_evidences_", "calibration_")


def estimated(kind: type, options: dict[str, Any], *, gaps: bool = False) -> tuple[str, list[str]]:
    """What a fit gives, or its refusal; and what it warns of. `gaps`: a target of a row is missing."""
    y = Y if kind is ORFFRegressor else Y[:, 1] > 0.4
    if gaps:
        y = np.where((np.arange(60)[:, None] == 7) & [True, False], np.nan, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            one = kind(**{"kernel": K1, "n_features": 24, **options}).fit(X, y)
        except ValueError as error:
            return f"InputError: {error}", []
    shown = [repr(np.asarray(vars(one).get(name))) for name in TABLES]
    model = [one.model_.coefficients.tolist(), one.model_.predict(X[:9]).tolist(), hasattr(one, "posterior_model_")]
    said = [str(warning.message) for warning in caught if warning.category is UserWarning]
    return json.dumps([model, shown]), said


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARAMETERS)
def test_every_parameter_of_an_estimator_counts_or_is_warned_of(kind: type) -> None:
    choices = PARAMETERS[kind]
    assert set(choices) == set(kind().get_params()) - {"n_jobs"}  # threads, which change no bit
    for name, (beside, value) in choices.items():
        gaps = name == "missing"
        before, quiet = estimated(kind, beside, gaps=gaps)
        after, said = estimated(kind, {**beside, name: value}, gaps=gaps)
        assert after != before and not quiet and not said, name
    for options, (name, (_, value)) in itertools.product(KINDS, choices.items()):
        if name in options:
            continue
        gaps = name == "missing"
        after, said = estimated(kind, {**options, name: value}, gaps=gaps)
        warned = any(text.startswith(f"{name}=") for text in said)
        assert warned or after != estimated(kind, options, gaps=gaps)[0], (name, options)


def test_what_an_estimator_warns_of_is_named_with_the_reason() -> None:
    for kind, options, sentence in (
        (ORFFRegressor, {"criterion": "evidence", "ridge": 1e-6},
         "criterion='evidence' has no effect: there is one ridge"),
        (ORFFRegressor, {"criterion": "evidence", "cv": 3, "ridge": [1.0, 2.0]},
         "criterion='evidence' has no effect: with cv"),
        (ORFFRegressor, {"kernel": POLY, "sampler": frequencies.IID()}, "sampler=IID() has no effect: polynomial"),
        (ORFFClassifier, {"kernel": kernels.Decomposable(POLY), "sampler": frequencies.Orthogonal()},
         "sampler=Orthogonal() has no effect: polynomial"),
        (ORFFRegressor, {"kernel": kernels.Polynomial(2), "random_state": 3, "cv": None},
         "random_state=3 has no effect: nothing"),
        (ORFFClassifier, {"kernel": kernels.Decomposable(K1), "coding": "one_vs_all"},
         "coding='one_vs_all' has no effect: it is what a scalar"),
    ):  # fmt: skip
        (warning,) = estimated(kind, options)[1]
        assert warning.startswith(sentence)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is refused is not warned of too
        with pytest.raises(InputError, match="sampler: a Polynomial kernel"):
            ORFFRegressor(POLY, 24, sampler=frequencies.Quadrature()).fit(X, Y)
