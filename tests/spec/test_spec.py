"""Job files: what they may say, what they mean, and the one sentence for whatever is wrong with them."""

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dorff import kernels
from dorff.errors import InputError
from dorff.kernels.nonstationary import FUNCTIONS, SYSTEMS
from dorff.spec.cluster import LocalCluster, RemoteCluster, SerialCluster
from dorff.spec.data import ClassTargets
from dorff.spec.job import Job
from dorff.spec.reader import load_job

MINIMAL = """\
data: {store: sea.zarr}
kernel: {type: curl_free}
state: runs/sea
model: models/sea
"""

WHOLE = """\
data:     {store: sea.zarr, inputs: x, targets: y, nan: refuse}
kernel:   {type: curl_free, scalar: {type: gaussian, lengthscale: auto}, measure: null}
features: {count: auto, sampler: auto, seed: 0}
solve:    {ridge: auto, select: auto, folds: {count: 5, by: auto}, standardize: auto, intercept: true,
           observe: null, class_weight: none, calibrate: true}
cluster:  {type: local, workers: 2, memory: 4GiB}
state:    runs/sea
model:    models/sea
"""


# A few lines that would be 2^39 values.
BOMB = "\n".join(["a0: &a0 [1]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(39))])


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mapping(**parts: Any) -> dict[str, Any]:
    return {**yaml.safe_load(MINIMAL), **parts}


def kernel(**fields: Any) -> dict[str, Any]:
    return {"type": "decomposable", "scalar": {"lengthscale": 1.0}, **fields}


def curl(**fields: Any) -> dict[str, Any]:
    return {"type": "curl_free", "scalar": {"lengthscale": 1.0}, **fields}


CLASSES = {"data": {"store": "s", "targets": {"classes": "c"}}}
OUTPUTS = (
    "identity, covariance, simplex, learned, {matrix: FILE}, {factor: FILE}, {graph: FILE, offset: 0.1}, "
    "{learned: frobenius}"
)


def problem(folder: Path, **parts: Any) -> str:
    """The sentence that refuses a job with these parts, without the file's name at its start."""
    path = write(folder, yaml.safe_dump(mapping(**parts)))
    with pytest.raises(InputError) as caught:
        load_job(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    return text.removeprefix(f"{path}: ")


def test_a_scalar_kernel_in_the_place_of_an_operator_kernel_is_told_where_it_goes(tmp_path: Path) -> None:
    text = problem(tmp_path, kernel={"type": "matern", "lengthscale": 25.0})
    assert "'matern' is a scalar kernel; write {type: decomposable, scalar: {type: matern" in text


def test_omitted_keys_take_the_documented_values(tmp_path: Path) -> None:
    assert load_job(write(tmp_path, MINIMAL)) == load_job(write(tmp_path, WHOLE))


def test_relative_paths_start_from_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, MINIMAL.replace("models/sea", "/elsewhere/sea"))
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    job = load_job("../job.yaml")
    assert job.data.store == tmp_path / "sea.zarr"
    assert job.state == tmp_path / "runs/sea"
    assert job.model == Path("/elsewhere/sea")


SQUARE = [[1, 0], [0, 2.5]]


@pytest.mark.parametrize(
    ("key", "rows"),
    [("matrix", SQUARE), ("graph", SQUARE), ("factor", [[1], [2], [3]]), ("observe", [[1, 0, 0], [0, 1, 1]])],
)
@pytest.mark.parametrize("mode", ["python", "json"])
def test_a_matrix_is_a_file_beside_the_job_or_its_rows(tmp_path: Path, key: str, rows: list[Any], mode: str) -> None:
    numbers = tuple(tuple(float(number) for number in row) for row in rows)
    for written, wanted in (("coupling.npy", str(tmp_path / "coupling.npy")), (rows, numbers)):
        parts = {"solve": {key: written}} if key == "observe" else {"kernel": kernel(output={key: written})}
        job = load_job(write(tmp_path, yaml.safe_dump(mapping(**parts))))
        dump = job.model_dump(mode=mode)
        found = dump["solve"] if key == "observe" else dump["kernel"]["output"]
        assert json.dumps(found[key]) == json.dumps(wanted)
        assert Job.model_validate(dump) == job


def test_the_kernel_is_dumped_in_the_grammar_it_was_read_in() -> None:
    scalar = {"type": "gaussian", "lengthscale": 0.2}
    curl = {"type": "curl_free", "scalar": scalar}
    div = {"type": "divergence_free", "scalar": scalar, "measure": {"type": "bounded", "split": 0.3}}
    named = [{**curl, "measure": name} for name in ("trace", "unbounded", "defensive", "bounded")]
    outputs = ("covariance", "simplex", "learned", {"learned": "frobenius"}, {"graph": ((0.0,),), "offset": 0.1})
    decomposables = [kernel(scalar=scalar, output=output) for output in outputs]
    terms = ({"weight": 0.1, "kernel": curl}, {"weight": 0.9, "kernel": div})
    both = {"type": "sum", "terms": terms, "concatenate": True}
    for config in (curl, div, both, *named, *decomposables):
        (found,) = Job.model_validate(mapping(kernel=config)).kernels
        assert found.model_dump() == config


def test_what_a_kernel_leaves_out() -> None:
    term = {"weight": 1.0, "kernel": kernel()}
    for config, key, wanted in (
        ({"type": "curl_free", "scalar": {"lengthscale": 1.0}, "measure": {"type": "bounded"}}, "measure",
         {"type": "bounded", "split": 0.5}),
        ({"type": "sum", "terms": [term]}, "concatenate", False),
        (kernel(), "output", "identity"),
        (kernel(output={"graph": SQUARE}), "output", {"graph": ((1.0, 0.0), (0.0, 2.5)), "offset": 0.0}),
    ):  # fmt: skip
        assert Job.model_validate(mapping(kernel=config)).kernel.model_dump()[key] == wanted


def test_several_kernels_are_a_list() -> None:
    curl = {"type": "curl_free", "scalar": {"lengthscale": 0.2}}
    several = Job.model_validate(mapping(kernel=[curl, kernel(), curl]))
    assert several.kernels == several.kernel and len(several.kernels) == 3
    one = Job.model_validate(mapping(kernel=curl))
    assert one.kernels == (one.kernel,) == several.kernels[:1]
    assert Job.model_validate(mapping(kernel=[curl])).kernels == one.kernels


@pytest.mark.parametrize("mode", ["python", "json"])
def test_classes_and_their_weights(tmp_path: Path, mode: str) -> None:
    for written, wanted in (
        ("none", "none"),
        ("balanced", "balanced"),
        ({"dry": 1, 7: 0.5}, (("dry", 1.0), ("7", 0.5))),
    ):
        solve = {"class_weight": written, "calibrate": False}
        parts = mapping(data={"store": "s", "targets": {"classes": "sky"}, "nan": "partial"}, solve=solve)
        job = load_job(write(tmp_path, yaml.safe_dump(parts, sort_keys=False)))
        assert job.data.targets == ClassTargets(classes="sky")
        assert job.solve.class_weight == wanted and not job.solve.calibrate
        assert Job.model_validate(job.model_dump(mode=mode)) == job
        hash(job)


SCALARS = (
    {"type": "gaussian", "lengthscale": 0.2},
    {"type": "laplacian", "lengthscale": (1.0, 2.0)},
    {"type": "matern", "lengthscale": "median", "nu": 2.5},
    {"type": "matern", "lengthscale": "tune each", "nu": 2.5},
    {"type": "gaussian", "lengthscale": "tune"},
    {"type": "cauchy", "lengthscale": 3.0},
    {"type": "rational_quadratic", "lengthscale": 3.0, "alpha": 0.5},
    {"type": "arc_cosine", "order": 0},
    {"type": "polynomial", "degree": 3, "offset": 0.0, "scale": 0.1},
    {"type": "pointwise", "function": "erf"},
    {"type": "mercer", "system": "bridge", "count": 7},
)
SAMPLERS = (
    *({"type": kind} for kind in ("iid", "orthogonal", "sorf", "fastfood")),
    {"type": "rom", "blocks": 2},
    {"type": "qmc", "sequence": "halton", "scramble": False},
    {"type": "gauss_quadrature", "points": 64},
    {"type": "quadrature", "degree": (1, 3), "mixing": "haar", "radii": "shared", "centre": "signed"},
    {"type": "quadrature", "degree": (3, 3), "mixing": "haar", "radii": "own", "centre": "drop"},
)


@pytest.mark.parametrize("mode", ["python", "json"])
@pytest.mark.parametrize("config", SCALARS, ids=lambda config: config["type"])
def test_every_scalar_kernel_is_read_and_built(tmp_path: Path, config: dict[str, Any], mode: str) -> None:
    written = yaml.safe_dump(mapping(kernel=kernel(scalar=json.loads(json.dumps(config)))))
    (chosen,) = load_job(write(tmp_path, written)).kernels
    found = chosen.model_dump(mode=mode)["scalar"]
    assert json.dumps(found) == json.dumps(config)
    if found.get("lengthscale") in ("median", "tune", "tune each"):
        found["lengthscale"] = 1.5
    built = kernels.scalar_from_config(found)
    assert json.dumps(built.config()) == json.dumps(found)


@pytest.mark.parametrize(
    ("scalar", "wanted"),
    [
        ({"type": "matern", "lengthscale": 1}, kernels.Matern(1.0)),
        ({"type": "rational_quadratic", "lengthscale": 1}, kernels.RationalQuadratic(1.0)),
        ({"type": "arc_cosine"}, kernels.ArcCosine()),
        ({"type": "polynomial", "degree": 2}, kernels.Polynomial(2)),
        ({"type": "mercer", "system": "brownian"}, kernels.Mercer.named("brownian", 1000)),
    ],
    ids=lambda value: str(value)[:24],
)
def test_omitted_options_of_scalar_kernels(scalar: dict[str, Any], wanted: kernels.ScalarKernel) -> None:
    found = Job.model_validate(mapping(kernel=kernel(scalar=scalar))).kernel.model_dump()["scalar"]
    assert kernels.scalar_from_config(found) == wanted


def test_names_known_to_a_job_are_those_that_are_built(tmp_path: Path) -> None:
    for key, scalar, built in (
        ("function", {"type": "pointwise", "function": "?"}, FUNCTIONS),
        ("system", {"type": "mercer", "system": "?"}, SYSTEMS),
    ):
        found = problem(tmp_path, kernel=kernel(scalar=scalar))
        assert found.startswith(f"kernel.scalar.{key} must be one of: {', '.join(built)}; came '?'")


@pytest.mark.parametrize("mode", ["python", "json"])
@pytest.mark.parametrize("config", SAMPLERS, ids=lambda config: config["type"])
def test_every_sampler_is_read_with_its_options(tmp_path: Path, config: dict[str, Any], mode: str) -> None:
    written = yaml.safe_dump(mapping(features={"sampler": json.loads(json.dumps(config))}))
    found = load_job(write(tmp_path, written)).features.sampler.model_dump(mode=mode)
    assert json.dumps(found) == json.dumps(config)


def test_omitted_options_of_samplers() -> None:
    for kind, wanted in (
        (None, {"type": "orthogonal"}),
        ("rom", {"type": "rom", "blocks": 3}),
        ("qmc", {"type": "qmc", "sequence": "sobol", "scramble": True}),
        ("gauss_quadrature", {"type": "gauss_quadrature", "points": 8}),
        (
            "quadrature",
            {"type": "quadrature", "degree": (3, 3), "mixing": "butterfly", "radii": "own", "centre": "signed"},
        ),
    ):
        job = Job.model_validate(mapping(features={"sampler": {} if kind is None else {"type": kind}}))
        assert job.features.sampler.model_dump() == wanted


def test_any_number_of_features_from_two_on() -> None:
    for count in (2, 3, 101, 2048):
        assert Job.model_validate(mapping(features={"count": count})).features.count == count


@pytest.mark.parametrize("mode", ["python", "json"])
def test_a_dumped_job_reads_back_as_the_same_job(tmp_path: Path, mode: str) -> None:
    term = {"weight": 2, "kernel": kernel(output={"matrix": "a.npy"})}
    curl = {"type": "curl_free", "scalar": {"lengthscale": 1}, "measure": {"type": "bounded", "split": 0.1}}
    parts = mapping(
        kernel=[{"type": "sum", "terms": [term, term], "concatenate": True}, curl, {**curl, "measure": "defensive"}],
        data={"store": "s", "inputs": ["lon", "lat"]},
        solve={"ridge": [0, 1e-3]},
        features={"count": 7, "sampler": {"type": "quadrature", "degree": [1, 1]}},
    )
    job = load_job(write(tmp_path, yaml.safe_dump(parts)))
    assert Job.model_validate(job.model_dump(mode=mode)) == job


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("1E3", 1e3), (".5e-2", 0.005), ("+2.e+1", 20.0), ("7", 7.0), ("0.25", 0.25), ("0", 0.0)],
)
def test_numbers_as_people_write_them(tmp_path: Path, text: str, value: float) -> None:
    job = load_job(write(tmp_path, f"{MINIMAL}solve: {{ridge: {text}}}\n"))
    assert job.solve.ridge == value
    assert load_job(write(tmp_path, f"{MINIMAL}solve: {{ridge: [{text}]}}\n")).solve.ridges == (value,)


@given(ridges=st.lists(st.floats(min_value=0, allow_infinity=False), min_size=1))
def test_every_float_survives_the_way_through_a_file(
    tmp_path_factory: pytest.TempPathFactory, ridges: list[float]
) -> None:
    path = write(tmp_path_factory.getbasetemp(), f"{MINIMAL}solve: {{ridge: {ridges}}}\n")
    assert load_job(path).solve.ridges == tuple(ridges)


@pytest.mark.parametrize(
    ("written", "size"),
    [("4GiB", 4 * 2**30), ("512 MB", 512 * 10**6), ("1.5gib", 3 * 2**29), (1000, 1000), ("7B", 7), ("1tb", 10**12)],
)
def test_memory_is_bytes(written: object, size: int) -> None:
    assert Job.model_validate(mapping(cluster={"memory": written})).cluster == LocalCluster(memory=size)


def test_the_three_clusters() -> None:
    for config, wanted in (
        ({"workers": 3}, LocalCluster(workers=3)),
        ({"type": "serial"}, SerialCluster()),
        ({"address": "tcp://node:8786"}, RemoteCluster(address="tcp://node:8786")),
    ):
        assert Job.model_validate(mapping(cluster=config)).cluster == wanted
        assert Job.model_validate(mapping(cluster=wanted)).cluster == wanted


def test_parts_are_frozen_and_hashable() -> None:
    job = Job.model_validate(mapping(solve={"ridge": [1, 2]}))
    assert hash(job) == hash(Job.model_validate(mapping(solve={"ridge": [1.0, 2.0]})))
    with pytest.raises(ValidationError):
        job.state = Path("other")


def test_an_unknown_key_names_its_place_and_the_nearest(tmp_path: Path) -> None:
    assert problem(tmp_path, kernel=kernel(scalar={"lenghtscale": 1})) == (
        "kernel.scalar.lenghtscale is not a known key; did you mean 'lengthscale'? use one of: type, lengthscale"
    )
    assert problem(tmp_path, sovle={}).startswith("sovle is not a known key; did you mean 'solve'? ")
    term = {"weight": 1, "kernel": kernel(zzz=1)}
    found = problem(tmp_path, kernel={"type": "sum", "terms": [{**term, "kernel": kernel()}, term]})
    assert found == "kernel.terms[1].kernel.zzz is not a known key; use one of: type, scalar, output"


@pytest.mark.parametrize(
    ("parts", "place", "name", "built"),
    [
        ({"kernel": {"type": "product"}}, "kernel.type", "product", "divergence_free"),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(
    tmp_path: Path, parts: dict[str, Any], place: str, name: str, built: str
) -> None:
    found = problem(tmp_path, **parts)
    assert found.startswith(f"{place} asks for ") and f"'{name}', which is known but not built yet; " in found
    assert built in found


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"cluster": {"type": "address"}},
            "cluster.type must be one of: local, serial, slurm, mpi, kubernetes; came 'address'; correct it",
        ),
        ({"features": {"count": 1}}, "features.count must be a whole number of 2 or more, came 1; correct it"),
        ({"features": {"count": True}}, "features.count must be a whole number of 2 or more, came True; correct it"),
        (
            {"features": {"count": "2048"}},
            "features.count must be a whole number of 2 or more, came '2048'; correct it",
        ),
        ({"features": {"count": [64, 1]}}, "features.count must be a whole number of 2 or more, came 1; correct it"),
        (
            {"features": {"count": [24, 16, 24]}},
            "features.count must have each count once, came [24, 16, 24]; take out what is twice",
        ),
        (
            {"features": {"count": []}},
            "features.count must be a number or a list of numbers, came an empty list; add a number",
        ),
        (
            {"solve": {"ridge": {"from": 0, "to": 1, "count": 3}}},
            "solve.ridge.from must be a number greater than 0, came 0; correct it",
        ),
        (
            {"solve": {"ridge": {"from": 1, "to": 2, "count": 1}}},
            "solve.ridge.count must be a whole number of 2 or more, came 1; correct it",
        ),
        ({"solve": {"ridge": {"from": 1, "till": 2}}}, "solve.ridge.till is not a known key; use: from, to, count"),
        (
            {"solve": {"route": "fast"}},
            "solve.route must be one of: auto, direct, cg, streaming; came 'fast'; correct it",
        ),
        ({"solve": {"posterior": "no"}}, "solve.posterior must be one of: auto, true, false; came 'no'; correct it"),
        (
            {"solve": {"conformal": True}, "data": {"store": "s", "targets": {"classes": "c"}}},
            "solve.conformal has no effect: it is for numbers, and data.targets is classes, which have probabilities; "
            "leave it out",
        ),
        ({"features": {"seed": -1}}, "features.seed must be greater than or equal to 0, came -1; correct it"),
        ({"features": None}, "features must be a mapping of keys, came None; correct it"),
        (
            {"features": {"sampler": "quadrature"}},
            "features.sampler must be a mapping of keys, came 'quadrature'; write {type: quadrature}",
        ),
        ({"features": {"sampler": 3}}, "features.sampler must be a mapping of keys, came 3; correct it"),
        ({"data": {}}, "data.store is missing; add it"),
        (
            {"data": {"store": 3}},
            "data.store must be a path, came 3; write one (in quotes where it looks like a number)",
        ),
        (
            {"data": {"store": "s", "inputs": [3]}},
            "data.inputs must be the name of an array or a list of names, came [3]; correct it",
        ),
        (
            {"kernel": {}},
            "kernel.type is missing; add it, one of: decomposable, curl_free, divergence_free, sum, multi_view",
        ),
        ({"kernel": 3}, "kernel must be a mapping of keys, came 3; correct it"),
        (
            {"features": {"sampler": "lattise"}},
            "features.sampler must be one of: orthogonal, iid, sorf, rom, fastfood, qmc, gauss_quadrature, paths, "
            "lattice, landmarks, quadrature, auto; came 'lattise'; did you mean 'lattice'?",
        ),
        (
            {"kernel": {"type": "curlfree"}},
            "kernel.type must be one of: decomposable, curl_free, divergence_free, sum, multi_view; came 'curlfree'; "
            "did you mean 'curl_free'?",
        ),
        (
            {"kernel": kernel(scalar={"lengthscale": 0})},
            "kernel.scalar.lengthscale must be a number greater than 0, came 0; correct it",
        ),
        (
            {"kernel": kernel(scalar={"lengthscale": [1, -2]})},
            "kernel.scalar.lengthscale must be a number greater than 0, came -2; correct it",
        ),
        (
            {"kernel": kernel(scalar={"lengthscale": float("nan")})},
            "kernel.scalar.lengthscale must be a number greater than 0, came nan; correct it",
        ),
        (
            {"kernel": kernel(scalar={"lengthscale": "medain"})},
            "kernel.scalar.lengthscale must be a number, a list of numbers (one an input), median, tune or "
            "{tune: each}, came 'medain'; did you mean 'median'?",
        ),
        (
            {"kernel": kernel(scalar={"lengthscale": []})},
            "kernel.scalar.lengthscale must be a number or a list of numbers, came an empty list; add a number",
        ),
        ({"kernel": kernel(output="eye")}, f"kernel.output must be one of: {OUTPUTS}; came 'eye'; correct it"),
        ({"kernel": kernel(output={})}, f"kernel.output must be one of: {OUTPUTS}; came {{}}; correct it"),
        (
            {"kernel": kernel(output="lerned")},
            f"kernel.output must be one of: {OUTPUTS}; came 'lerned'; did you mean 'learned'?",
        ),
        (
            {"kernel": kernel(output={"grahp": "g"})},
            "kernel.output.grahp is not a known key; did you mean 'graph'? use one of: matrix, factor, graph, learned",
        ),
        (
            {"kernel": kernel(output={"matrix": "a", "factor": "b"})},
            "kernel.output.factor is not a known key; use one of: matrix",
        ),
        (
            {"kernel": kernel(output={"matrix": [[1, 2]]})},
            "kernel.output.matrix must be a file or p rows of p numbers, came [[1, 2]]; correct it",
        ),
        (
            {"kernel": kernel(output={"factor": [[1, 2], [3]]})},
            "kernel.output.factor must be a file or rows of numbers, all as long, came [[1, 2], [3]]; correct it",
        ),
        (
            {"kernel": kernel(output={"graph": [["a"]]})},
            "kernel.output.graph must be a number, came 'a'; correct it",
        ),
        (
            {"kernel": kernel(output={"graph": "g", "offset": -1})},
            "kernel.output.offset must be a number of at least 0, came -1; correct it",
        ),
        (
            {"kernel": kernel(output={"graph": "g", "ofset": 1})},
            "kernel.output.ofset is not a known key; did you mean 'offset'? use one of: graph, offset",
        ),
        (
            {"kernel": kernel(output={"learned": "ridge"})},
            "kernel.output.learned must be 'trace' or 'frobenius', came 'ridge'; correct it",
        ),
        *(
            (
                {"kernel": {"type": kind}},
                f"kernel.type asks for '{kind}', which is made of a Python function, and a job file cannot hold one; "
                "use dorff.ORFFRegressor(kernel=...)",
            )
            for kind in ("spectral_density", "from_signature")
        ),
        ({"kernel": []}, "kernel must be a kernel or a list of kernels, came an empty list; add a kernel"),
        (
            {"kernel": [kernel(), {"type": "curl_fre"}]},
            "kernel[1].type must be one of: decomposable, curl_free, divergence_free, sum, multi_view; came "
            "'curl_fre'; did you mean 'curl_free'?",
        ),
        (
            {"kernel": {"type": "sum", "terms": [], "concatenate": 1}},
            "kernel.terms must be a list of {weight, kernel}, at least one, came []; add a term (and 1 more: "
            "kernel.concatenate)",
        ),
        (
            {"kernel": {"type": "sum", "terms": []}},
            "kernel.terms must be a list of {weight, kernel}, at least one, came []; add a term",
        ),
        (
            {"kernel": {"type": "sum", "terms": [{"weight": -1, "kernel": kernel()}]}},
            "kernel.terms[0].weight must be a number greater than 0, came -1; correct it",
        ),
        (
            {"kernel": curl(measure="tarce")},
            "kernel.measure must be one of: trace, unbounded, defensive, bounded, {type: bounded, split: 0.3}; "
            "came 'tarce'; did you mean 'trace'?",
        ),
        (
            {"kernel": curl(measure={"type": "tarce"})},
            "kernel.measure.type must be one of: bounded; came 'tarce'; correct it",
        ),
        ({"kernel": curl(measure={"split": 0.5})}, "kernel.measure.type is missing; add it, one of: bounded"),
        (
            {"kernel": curl(measure={"type": "trace"})},
            "kernel.measure takes keys for bounded alone; write measure: trace",
        ),
        (
            {"kernel": curl(measure={"type": "bounded", "split": 1})},
            "kernel.measure.split must be a number between 0 and 1, came 1; correct it",
        ),
        (
            {"kernel": curl(measure={"type": "bounded", "splt": 0.5})},
            "kernel.measure.splt is not a known key; did you mean 'split'? use one of: type, split",
        ),
        (
            {"kernel": kernel(scalar={"type": "matern", "lengthscale": 1, "alpha": 2})},
            "kernel.scalar.alpha is not a known key; use one of: type, lengthscale, nu",
        ),
        (
            {"kernel": kernel(scalar={"type": "matern", "lengthscale": 1, "nu": 0})},
            "kernel.scalar.nu must be a number greater than 0, came 0; correct it",
        ),
        (
            {"kernel": kernel(scalar={"type": "rational_quadratic", "lengthscale": 1, "alpha": "1"})},
            "kernel.scalar.alpha must be a number greater than 0, came '1'; correct it",
        ),
        (
            {"kernel": kernel(scalar={"type": "arc_cosine", "order": 2})},
            "kernel.scalar.order must be less than or equal to 1, came 2; correct it",
        ),
        (
            {"kernel": kernel(scalar={"type": "arc_cosine", "order": True})},
            "kernel.scalar.order must be a valid integer, came True; correct it",
        ),
        ({"kernel": kernel(scalar={"type": "polynomial"})}, "kernel.scalar.degree is missing; add it"),
        (
            {"kernel": kernel(scalar={"type": "polynomial", "degree": 0})},
            "kernel.scalar.degree must be greater than or equal to 1, came 0; correct it",
        ),
        (
            {"kernel": kernel(scalar={"type": "polynomial", "degree": 2, "offset": -1})},
            "kernel.scalar.offset must be a number of at least 0, came -1; correct it",
        ),
        (
            {"kernel": kernel(scalar={"type": "pointwise", "function": "rleu"})},
            "kernel.scalar.function must be one of: step, relu, erf, tanh, sigmoid, softplus, sin, cos; came 'rleu'; "
            "did you mean 'relu'?",
        ),
        (
            {"kernel": kernel(scalar={"type": "mercer", "system": "wiener"})},
            "kernel.scalar.system must be one of: brownian, bridge; came 'wiener'; correct it",
        ),
        (
            {"kernel": kernel(scalar={"type": "mattern"})},
            "kernel.scalar.type must be one of: gaussian, laplacian, matern, cauchy, rational_quadratic, arc_cosine, "
            "polynomial, pointwise, mercer, skeleton; came 'mattern'; did you mean 'matern'?",
        ),
        (
            {"features": {"sampler": {"type": "sorff"}}},
            "features.sampler.type must be one of: orthogonal, iid, sorf, rom, fastfood, qmc, gauss_quadrature, "
            "paths, lattice, landmarks, quadrature; came 'sorff'; did you mean 'sorf'?",
        ),
        (
            {"features": {"sampler": {"type": "sorf", "blocks": 3}}},
            "features.sampler.blocks is not a known key; use one of: type",
        ),
        (
            {"features": {"sampler": {"type": "rom", "blocks": 0}}},
            "features.sampler.blocks must be greater than or equal to 1, came 0; correct it",
        ),
        (
            {"features": {"sampler": {"type": "qmc", "sequence": "hatlon"}}},
            "features.sampler.sequence must be one of: sobol, halton; came 'hatlon'; did you mean 'halton'?",
        ),
        (
            {"features": {"sampler": {"type": "qmc", "scramble": 1}}},
            "features.sampler.scramble must be a valid boolean, came 1; correct it",
        ),
        (
            {"features": {"sampler": {"type": "gauss_quadrature", "points": 65}}},
            "features.sampler.points must be less than or equal to 64, came 65; correct it",
        ),
        (
            {"features": {"sampler": {"type": "quadrature", "degree": [3, 1]}}},
            "features.sampler.degree must be [1, 1], [1, 3] or [3, 3], came [3, 1]; correct it",
        ),
        (
            {"features": {"sampler": {"type": "quadrature", "degree": [True, 3]}}},
            "features.sampler.degree must be [1, 1], [1, 3] or [3, 3], came [True, 3]; correct it",
        ),
        (
            {"features": {"sampler": {"type": "quadrature", "centre": "keep"}}},
            "features.sampler.centre must be one of: signed, redraw, drop; came 'keep'; correct it",
        ),
        ({"solve": {"ridge": -1}}, "solve.ridge must be a number of at least 0, came -1; correct it"),
        ({"solve": {"ridge": True}}, "solve.ridge must be a number of at least 0, came True; correct it"),
        (
            {"data": {"store": "s", "targets": {"clases": "c"}}},
            "data.targets.clases is not a known key; did you mean 'classes'? use one of: classes",
        ),
        (
            {"data": {"store": "s", "targets": {"classes": ["c"]}}},
            "data.targets.classes must be the name of an array, came ['c']; correct it",
        ),
        (
            {"data": {"store": "s", "nan": "patial"}},
            "data.nan must be one of: refuse, drop, partial, unlabelled; came 'patial'; did you mean 'partial'?",
        ),
        (
            {"solve": {"observe": 3}},
            "solve.observe must be a file or rows of numbers, all as long, came 3; correct it",
        ),
        (
            {"solve": {"class_weight": "balance"}, **CLASSES},
            "solve.class_weight must be one of: none, balanced, {LABEL: WEIGHT, ...}; came 'balance'; "
            "did you mean 'balanced'?",
        ),
        (
            {"solve": {"class_weight": {"a": 0}}, **CLASSES},
            "solve.class_weight must be a number greater than 0, came 0; correct it",
        ),
        (
            {"solve": {"class_weight": {True: 1}}, **CLASSES},
            "solve.class_weight has the label True, which is neither text nor a number; write it in quotes",
        ),
        (
            {"solve": {"class_weight": "balanced"}, "data": {"store": "s", "targets": "y"}},
            "solve.class_weight has no effect: it is for classes (data.targets: {classes: NAME}), and these are "
            "numbers; leave it out",
        ),
        ({"solve": {"calibrate": 1}}, "solve.calibrate must be a valid boolean, came 1; correct it"),
        ({"solve": {"standardize": 1}}, "solve.standardize must be one of: auto, true, false; came 1; correct it"),
        (
            {"solve": {"folds": {"by": 3}}},
            "solve.folds.by must be leaves, rows or the name of a column, came 3; correct it",
        ),
        (
            {"cluster": {"memory": "4 gigs"}},
            "cluster.memory must be an amount of memory such as 4GiB or 512MB, came '4 gigs'; correct it",
        ),
        (
            {"cluster": {"memory": "9" * 400 + "GiB"}},
            f"cluster.memory must be an amount of memory such as 4GiB or 512MB, came '{'9' * 56}...; correct it",
        ),
        (
            {"data": {"store": "~nobody-of-this-name/sea.zarr"}},
            "data.store must be a path, came '~nobody-of-this-name/sea.zarr', which cannot be followed (Could not "
            "determine home directory.); correct it",
        ),
        (
            {"data": {"store": "a\0b"}},
            "data.store must be a path, came 'a\\x00b'; write one (in quotes where it looks like a number)",
        ),
        *(
            (
                parts,
                f"{place} holds a password or a signed query, which plans, logs and models would keep; take it out "
                "(credentials belong in files or in the environment)",
            )
            for parts, place in (
                ({"data": {"store": "s3://me:hunter2hunter2@bucket/sea.zarr"}}, "data.store"),
                ({"data": {"store": "https://x.org/sea.zarr?X-Amz-Signature=abcdef"}}, "data.store"),
                ({"cluster": {"address": "tls://me:hunter2hunter2@node:8786"}}, "cluster.address"),
                ({"solve": {"observe": "ftp://me:hunter2hunter2@host/c.npy"}}, "solve.observe"),
                ({"publish": {"holdout": "ftp://me:hunter2hunter2@host/c.zarr"}}, "publish.holdout"),
            )
        ),
        (
            {"data": {"store": "s", "nan": "ftp://me:hunter2hunter2@host"}},
            "data.nan must be one of: refuse, drop, partial, unlabelled; came 'ftp://***@host'; correct it",
        ),
        (
            {"publish": {"keep": 0}},
            "publish.keep must be greater than or equal to 1, came 0; correct it",
        ),
        *(
            (
                {"cluster": {"address": came}},
                f"cluster.address must be a Dask scheduler's address, came '{came}'; write it as tcp://HOST:PORT or "
                "tls://HOST:PORT; not its dashboard's",
            )
            for came in ("node", "tcp://node", "http://node:8787/status", "https://node:8787", "tcp://node:", "://a:1")
        ),
        (
            {"cluster": {"type": "kubernetes", "image": "dorff", "tls": "Not A"}},
            "cluster.tls must match pattern '^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$', came 'Not A'; correct it",
        ),
        (
            {"cluster": {"address": "tcp://n:1", "workers": 2}},
            "cluster.workers is not a known key; use one of: address, tls, plain_tcp",
        ),
        (
            {"state": "sea.zarr"},
            "the job must give data.store, data.unlabelled, publish.holdout, state and model a place each; two are "
            "the same, move one",
        ),
    ],
)
def test_a_fault_is_one_sentence(tmp_path: Path, parts: dict[str, Any], sentence: str) -> None:
    assert problem(tmp_path, **parts) == sentence


def test_several_faults_tell_the_first_and_name_the_rest(tmp_path: Path) -> None:
    found = problem(tmp_path, features={"count": 1, "seed": -1}, solve={"ridge": "x"})
    assert found.startswith("features.count must be a whole number of 2 or more")
    assert found.endswith("; correct it (and 2 more: features.seed, solve.ridge)")
    path = tmp_path / "bare.yaml"
    path.write_text("data: {store: sea.zarr}\n")
    with pytest.raises(InputError, match=r"state is missing; add it \(and 1 more: model\)$"):
        load_job(path)
    many = problem(tmp_path, kernel=[{"type": "sum", "terms": []}] * 20)
    assert many.endswith("kernel[7].terms, kernel[8].terms, ...)") and "(and 19 more: kernel[1].terms" in many


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("data: {store: a\nstate: b\n", ", line 2: expected ',' or '}', but got ':'; correct the YAML there"),
        (f"{MINIMAL}state: again\n", ", line 5: the key 'state' comes twice; correct the YAML there"),
        ("data: {store: a, store: b}\n", ", line 1: the key 'store' comes twice; correct the YAML there"),
        ("data: !!python/object:os.system {}\n", ", line 1: could not determine a constructor for the tag"),
        (
            "",
            ": must be a mapping with the keys data, kernel, manifold, features, solve, publish, cluster, state, "
            "model, came",
        ),
        ("- a\n- b\n", ": must be a mapping with the keys data, kernel,"),
        ("data: \x07\n", ": is not YAML (unacceptable character #x0007"),
        ("data: 2024-99-99\n", ": is not YAML (month must be in 1..12"),
        ("data: &d {store: *d}\n", ", line 1: a value holds itself; correct the YAML there"),
        (f"a: &a [{'x' * 10**6}]\nb: [{'*a, ' * 200}]", ", line 2: more than 1,000,000 values"),
        ("state: 0x" + "f" * 5000, ", line 1: a whole number of more than 63 bits; correct the YAML there"),
        (BOMB, ", line 20: more than 1,000,000 values, aliases counted each time; correct the YAML there"),
        ("data: " + "[" * 3000, ": is nested too deeply; correct it"),
    ],
    ids=range(13),
)
def test_a_file_that_is_not_a_job(tmp_path: Path, text: str, sentence: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path}{sentence}") and "\n" not in str(caught.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=3) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=5,
)
HOLES = (
    *("data", "data.store", "data.inputs", "data.targets", "data.window", "kernel", "kernel.scalar", "kernel.terms"),
    *("kernel.scalar.lengthscale", "kernel.output", "kernel.measure", "features", "features.count", "solve.folds.by"),
    *("features.sampler", "features.sampler.degree", "solve.ridge", "solve.class_weight", "solve.observe", "publish"),
    *("publish.keep", "publish.margin", "cluster", "cluster.memory", "cluster.address", "cluster.tls", "state"),
)


@given(hole=st.sampled_from(HOLES), value=ANYTHING)
@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_anything_in_any_place_is_a_job_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, hole: str, value: object
) -> None:
    *above, last = hole.split(".")
    whole = mapping(kernel=kernel(), features={"sampler": {"type": "quadrature"}})
    node = whole
    for key in above:
        node = node.setdefault(key, {})
    node[last] = value
    path = write(tmp_path_factory.getbasetemp(), yaml.safe_dump(whole, allow_unicode=True))
    try:
        load_job(path, root=path.parent)
    except InputError as error:
        assert "\n" not in str(error)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read \(No such file or directory\); give the path"):
        load_job(tmp_path / "none.yaml")
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        load_job(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"data: \xe9\n")
    with pytest.raises(InputError, match=r"latin\.yaml: is not UTF-8 text \(byte 6\); save it as UTF-8"):
        load_job(tmp_path / "latin.yaml")


def test_a_kernel_that_holds_itself_is_refused(tmp_path: Path) -> None:
    text = MINIMAL.replace("{type: curl_free}", "&k {type: sum, terms: [{weight: 1, kernel: *k}]}")
    with pytest.raises(InputError, match=r"kernel"):
        load_job(write(tmp_path, text))


PLACES = (
    "data.store",
    "state",
    "model",
    "publish.holdout",
    "cluster.tls.key",
    "solve.observe",
    "kernel.output.matrix",
)


ALLOWED: dict[str, None] = dict.fromkeys(
    ["cluster.address", *(f"cluster.tls.{file}" for file in ("ca", "cert", "key"))]
)


def placed(place: str, path: str) -> dict[str, Any]:
    """A job inside the root but for one path."""
    key, *_ = place.split(".")
    parts: dict[str, Any] = {
        "data": {"store": path},
        "publish": {"holdout": path},
        "cluster": {"address": "tls://node:1", "tls": {"ca": "ca.pem", "cert": "cert.pem", "key": path}},
        "solve": {"observe": path},
        "kernel": kernel(output={"matrix": path}),
    }
    return {key: parts.get(key, path)}


@pytest.mark.parametrize("place", PLACES)
def test_every_path_stays_below_the_root(tmp_path: Path, place: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "jobs", outside):
        folder.mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "jobs" / "loop").symlink_to("loop")
    (tmp_path / "way-in").symlink_to(root)
    for path in ("here", "../beside", str(root / "there"), "new/../deep/er"):
        job = write(root / "jobs", yaml.safe_dump(mapping(**placed(place, path))))
        assert load_job(job, root=tmp_path / "way-in", allowed=ALLOWED) == load_job(job)
    for path, why in (
        ("../../outside/x", f"{outside}/x"), (str(outside), str(outside)), ("../link/x", f"{outside}/x"),
        ("/etc/passwd", "/etc/passwd"), ("loop", "cannot be followed"),
    ):  # fmt: skip
        job = write(root / "jobs", yaml.safe_dump(mapping(**placed(place, path))))
        load_job(job)
        with pytest.raises(InputError) as caught:
            load_job(job, root=root, allowed=ALLOWED)
        assert str(caught.value).startswith(f"{job}: {place} ") and why in str(caught.value)
        assert "cannot be followed" in why or f"out of the root {root}" in str(caught.value)


def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"root .*none: is not a folder; name the one"):
        load_job(write(tmp_path, MINIMAL), root=tmp_path / "none")


def test_no_secret_of_a_job_is_repeated(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL.replace("sea.zarr", "s3://me:hunter2hunter2@bucket/sea.zarr") + "cluster: oops\n")
    with pytest.raises(InputError) as caught:
        load_job(path)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_lists_ranges_and_words() -> None:
    given = mapping(
        solve={"ridge": {"from": 1e-6, "to": 1e-2, "count": 5}},
        features={"count": [512, 256], "drawn_for": kernel(scalar={"lengthscale": {"tune": "each"}})},
    )
    job = Job.model_validate(given)
    assert job.solve.ridges == pytest.approx((1e-6, 1e-5, 1e-4, 1e-3, 1e-2)) and job.features.counts == (512, 256)
    assert [one.model_dump()["scalar"]["lengthscale"] for one in job.features.kernels] == ["tune each"]
    assert Job.model_validate(job.model_dump()) == job
    assert Job.model_validate(mapping()).features.kernels == () and Job.model_validate(mapping()).features.counts == (
        4096,
    )


def test_a_job_that_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(InputError, match="/dev/zero: is no plain file"):
        load_job("/dev/zero")
