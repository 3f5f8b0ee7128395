"""Job files with manifold terms, kernels of views and unlabelled rows: what they mean, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dorff.errors import InputError
from dorff.spec.data import Data, GivenSpec, IdentitySpec, KnnSpec, ManifoldSpec
from dorff.spec.job import Folds, Job, Solve
from dorff.spec.kernel import GraphOutput, MatrixOutput, MultiViewSpec
from dorff.spec.reader import load_job

SINGLE = {"type": "decomposable", "scalar": {"lengthscale": 1.0}}
CURL = {"type": "curl_free", "scalar": {"lengthscale": 0.5}}
VIEWS = {
    "type": "multi_view",
    "views": [
        {"inputs": "pixels", "kernel": SINGLE},
        {"inputs": ["hog", "moduli"], "kernel": CURL},
        {
            "inputs": "pixels",
            "name": "coarse",
            "kernel": {"type": "sum", "terms": [{"weight": 2.0, "kernel": SINGLE}]},
        },
    ],
}
TERM = {"weight": 0.1}


def mapping(**parts: Any) -> dict[str, Any]:
    return {"data": {"store": "digits.zarr"}, "kernel": SINGLE, "state": "run", "model": "models/digits", **parts}


def load(folder: Path, **parts: Any) -> Job:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(mapping(**parts)), encoding="utf-8")
    return load_job(path)


def term(folder: Path, **parts: Any) -> ManifoldSpec:
    (found,) = load(folder, manifold={**TERM, **parts}).manifold
    return found


def problem(folder: Path, **parts: Any) -> str:
    """The sentence that refuses a job, without the file's name at its start."""
    with pytest.raises(InputError) as caught:
        load(folder, **parts)
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(f"{folder / 'job.yaml'}: ")


def test_a_term_of_a_weight_alone_is_of_nearest_neighbours(tmp_path: Path) -> None:
    assert term(tmp_path) == ManifoldSpec(weight=0.1) == ManifoldSpec(
        graph=KnnSpec(neighbours=10, weights="heat", within="data", append="rebuild"), weight=0.1,
        laplacian="unnormalised", power=1, outputs=None, view=None, between=False, form="auto", scale="sum",
    )  # fmt: skip
    assert term(tmp_path, graph={"neighbours": 3}).graph == KnnSpec(neighbours=3)
    assert load(tmp_path).manifold == ()


def test_one_term_or_a_list_and_their_weights(tmp_path: Path) -> None:
    kfold = {"select": "kfold"}
    several = [{"weight": [0, 1, 10]}, {"weight": {"from": 1, "to": 100, "count": 3}, "graph": {"type": "identity"}}]
    job = load(tmp_path, manifold=several, solve=kfold)
    assert [found.weights for found in job.manifold] == [(0.0, 1.0, 10.0), pytest.approx((1.0, 10.0, 100.0))]
    assert [type(found.graph) for found in job.manifold] == [KnnSpec, IdentitySpec]
    assert term(tmp_path, weight=0).weights == (0.0,)


def test_the_graphs(tmp_path: Path) -> None:
    given = term(tmp_path, graph={"type": "given", "path": "edges.parquet"}).graph
    assert given == GivenSpec(type="given", path=tmp_path / "edges.parquet")
    for weights in ("binary", 0.5, 2):
        assert term(tmp_path, graph={"weights": weights}).graph == KnnSpec(weights=weights)
    assert term(tmp_path, graph={"within": "leaf"}).graph == KnnSpec(within="leaf")
    assert term(tmp_path, graph={"append": "link"}).graph == KnnSpec(append="link")


def test_what_couples_the_outputs(tmp_path: Path) -> None:
    rows = ((2.0, 0.5), (0.5, 1.0))
    for written, wanted in (
        (None, None),
        ("identity", "identity"),
        ({"matrix": "q.npy"}, MatrixOutput(matrix=tmp_path / "q.npy")),
        ({"matrix": [[2, 0.5], [0.5, 1]]}, MatrixOutput(matrix=rows)),
        ({"graph": [[2, 0.5], [0.5, 1]], "offset": 0.1}, GraphOutput(graph=rows, offset=0.1)),
    ):
        assert term(tmp_path, outputs=written).outputs == wanted


@pytest.mark.parametrize("mode", ["python", "json"])
def test_a_dumped_job_reads_back_as_the_same_job(tmp_path: Path, mode: str) -> None:
    terms = [
        {"weight": [0, 1], "power": 2, "laplacian": "normalised", "view": "hog+moduli"},
        {"weight": 1, "graph": {"type": "given", "path": "edges"}, "form": "edges", "scale": "mean"},
        {"weight": 1, "between": True, "outputs": {"graph": [[0, 1], [1, 0]]}},
    ]
    data = {"store": "s", "labelled": "known", "unlabelled": "more.zarr"}
    job = load(tmp_path, manifold=terms, kernel=VIEWS, data=data, solve={"select": "kfold"})
    assert Job.model_validate(job.model_dump(mode=mode)) == job
    hash(job)
    assert job.manifold[2].graph == IdentitySpec(type="identity")
    (plain,) = load(tmp_path, manifold=[TERM]).manifold
    assert Job.model_validate(load(tmp_path, manifold=[TERM]).model_dump(mode=mode)).manifold == (plain,)


def test_the_views_of_a_kernel_say_what_the_inputs_are(tmp_path: Path) -> None:
    job = load(tmp_path, kernel=VIEWS)
    kernel = job.kernel
    assert isinstance(kernel, MultiViewSpec)
    assert [view.name for view in kernel.views] == ["pixels", "hog+moduli", "coarse"]
    assert job.data.inputs == kernel.arrays == ("pixels", "hog", "moduli")
    in_order = load(tmp_path, kernel=VIEWS, data={"store": "s", "inputs": ["moduli", "pixels", "hog"]})
    assert in_order.data.inputs == ("moduli", "pixels", "hog")
    built = Job(data=Data(store=Path("s")), kernel=kernel, state=Path("run"), model=Path("model"))
    assert built.data.inputs == kernel.arrays
    wider = {**VIEWS, "views": [{**view, "kernel": SINGLE} for view in VIEWS["views"]]}
    assert len(load(tmp_path, kernel=[VIEWS, wider], solve={"select": "kfold"}).kernels) == 2


def test_rows_that_are_not_labelled(tmp_path: Path) -> None:
    assert load(tmp_path, data={"store": "s", "nan": "unlabelled"}).data.nan == "unlabelled"
    data = load(tmp_path, data={"store": "s", "labelled": "known"}).data
    assert (data.labelled, data.nan) == ("known", "unlabelled")
    more = load(tmp_path, data={"store": "s", "unlabelled": "more.zarr"}, manifold=TERM).data
    assert (more.unlabelled, more.nan) == (tmp_path / "more.zarr", "refuse")


GRAPHLESS = "has no effect: graph is the identity; leave it out"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"weight": None}, "manifold.weight must be a number of at least 0, came None"),
        ({"weight": -1}, "manifold.weight must be a number of at least 0, came -1; correct it"),
        ({"weight": []}, "manifold.weight must be a number or a list of numbers, came an empty list"),
        ({"wieght": 1}, "manifold.wieght is not a known key; did you mean 'weight'?"),
        ({"graph": {"type": "knm"}}, "manifold.graph.type must be one of: knn, given, identity; came 'knm'"),
        ({"graph": {"type": "given"}}, "manifold.graph.path is missing; add it"),
        ({"graph": "edges"}, "manifold.graph "),
        ({"graph": {"neighbours": 0}}, "manifold.graph.neighbours must be greater than or equal to 1, came 0"),
        ({"graph": {"weights": "heats"}}, "manifold.graph.weights must be one of: heat, binary; came 'heats'"),
        ({"graph": {"weights": -2}}, "manifold.graph.weights must be a number greater than 0, came -2"),
        ({"graph": {"weights": True}}, "manifold.graph.weights must be a number greater than 0, came True"),
        ({"graph": {"within": "row"}}, "manifold.graph.within must be one of: data, leaf; came 'row'"),
        ({"graph": {"append": "no"}}, "manifold.graph.append must be one of: rebuild, link; came 'no'"),
        ({"graph": {"within": "leaf", "append": "link"}}, "manifold.graph.append has no effect: inside a leaf"),
        (
            {"laplacian": "random_walk"},
            "manifold.laplacian must not be random_walk, whose matrix is neither symmetric nor positive",
        ),
        (
            {"laplacian": "normalized"},
            "manifold.laplacian must be one of: unnormalised, normalised; came 'normalized'; did you mean "
            "'normalised'?",
        ),
        ({"power": 3}, "manifold.power must be 1, or even (L^2, L^4 ... are sums of squares), came 3; correct it"),
        ({"power": 0}, "manifold.power must be 1, or even"),
        ({"power": True}, "manifold.power must be 1, or even"),
        ({"outputs": "covariance"}, "manifold.outputs must be one of: identity, {matrix: FILE}, {graph: FILE"),
        ({"outputs": {"matrx": "q"}}, "manifold.outputs.matrx is not a known key; did you mean 'matrix'?"),
        ({"outputs": {"matrix": [[1, 2]]}}, "manifold.outputs.matrix must be a file or p rows of p numbers"),
        ({"form": "edge"}, "manifold.form must be one of: auto, edges, difference; came 'edge'"),
        ({"power": 2, "form": "edges"}, "manifold.form has no effect: power is more than 1; leave it out"),
        ({"scale": "average"}, "manifold.scale must be one of: sum, mean; came 'average'"),
        ({"graph": {"type": "identity"}, "laplacian": "normalised"}, f"manifold.laplacian {GRAPHLESS}"),
        ({"graph": {"type": "identity"}, "power": 2}, f"manifold.power {GRAPHLESS}"),
        ({"graph": {"type": "identity"}, "form": "edges"}, f"manifold.form {GRAPHLESS}"),
        ({"view": 3}, "manifold.view must be the name of a view, came 3"),
        ({"view": "pixels"}, "manifold.view has no effect: the kernel has no views (its type is not multi_view)"),
        ({"between": True}, "manifold.between has no effect: the kernel has no views"),
        ({"between": True, "graph": {}}, "manifold.between compares the views of each row with one another"),
    ],
)
def test_a_term_that_is_refused(tmp_path: Path, parts: dict[str, Any], sentence: str) -> None:
    assert problem(tmp_path, manifold={**TERM, **parts}).startswith(sentence)
    (one,) = load(tmp_path, manifold=TERM).manifold
    assert problem(tmp_path, manifold=[one.model_dump(), {**TERM, **parts}]).startswith(
        sentence.replace("manifold", "manifold[1]", 1)
    )


def test_a_term_without_a_weight(tmp_path: Path) -> None:
    assert problem(tmp_path, manifold={}) == "manifold.weight is missing; add it"
    assert problem(tmp_path, manifold=3).startswith("manifold must be a mapping of keys, came 3")


def view(**parts: Any) -> dict[str, Any]:
    return {"inputs": "a", "kernel": SINGLE, **parts}


@pytest.mark.parametrize(
    ("views", "sentence"),
    [
        ([], "kernel.views must be a list of {inputs, kernel}, two at least, came []"),
        ([view()], "kernel.views must be a list of {inputs, kernel}, two at least"),
        ({"a": SINGLE}, "kernel.views must be a list of {inputs, kernel}, two at least"),
        ([view(), "b"], "kernel.views[1] must be a mapping of keys, came 'b'"),
        ([view(), view()], "kernel.views has two views that are called 'a'; give each a name of its own"),
        ([view(), {"kernel": SINGLE}], "kernel.views[1].inputs is missing; add it"),
        ([view(), {"inputs": "b"}], "kernel.views[1].kernel is missing; add it"),
        ([view(), view(inputs=3)], "kernel.views[1].inputs must be the name of an array or a list of names, came 3"),
        ([view(), view(inputs=["b", 3])], "kernel.views[1].inputs must be the name of an array or a list of names"),
        ([view(), view(name=3)], "kernel.views[1].name must be the name of a view, came 3"),
        ([view(), view(name="b", kernel={"type": "gaussian"})], "kernel.views[1].kernel.type 'gaussian' is a scalar"),
        (
            [view(), view(name="b", kernel={"type": "multi_view", "views": []})],
            "kernel.views[1].kernel.type asks for 'multi_view' inside another kernel",
        ),
        (
            [view(), view(name="b", kernel={"type": "sum", "terms": [{"weight": 1, "kernel": VIEWS}]})],
            "kernel.views[1].kernel.terms[0].kernel.type asks for 'multi_view' inside another kernel",
        ),
    ],
)
def test_views_that_are_refused(tmp_path: Path, views: object, sentence: str) -> None:
    assert problem(tmp_path, kernel={"type": "multi_view", "views": views}).startswith(sentence)


KFOLD, EVIDENCE, GCV = {"select": "kfold"}, {"select": "evidence"}, {"ridge": 1e-3, "select": "gcv"}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"kernel": VIEWS, "data": {"store": "s", "inputs": "pixels"}},
            "data.inputs must be the arrays of the kernel's views, pixels, hog, moduli, each once, came pixels; leave",
        ),
        (
            {"kernel": VIEWS, "data": {"store": "s", "inputs": ["pixels", "hog", "moduli", "hog"]}},
            "data.inputs must name each array once",
        ),
        ({"kernel": [VIEWS, SINGLE], "solve": KFOLD}, "kernel has kernels of other views, or of none, beside one"),
        ({"kernel": VIEWS, "features": {"drawn_for": SINGLE}}, "kernel has kernels of other views, or of none"),
        (
            {"kernel": [VIEWS, {**VIEWS, "views": VIEWS["views"][:2]}], "solve": KFOLD},
            "kernel has kernels of other views, or of none",
        ),
        ({"kernel": VIEWS, "solve": {"observe": [[1, 1]]}}, "solve.observe has no effect: of a kernel of views the"),
        (
            {"kernel": VIEWS, "manifold": {**TERM, "between": True, "view": "pixels"}},
            "manifold.view has no effect: between is true, and penalises all views; leave it out",
        ),
        (
            {"kernel": VIEWS, "manifold": [TERM, {**TERM, "view": "pixel"}]},
            "manifold[1].view must be one of: pixels, hog+moduli, coarse; came 'pixel'; did you mean 'pixels'?",
        ),
        ({"manifold": TERM, "solve": {"route": "cg"}}, "solve.route is cg, which has no manifold terms; set it to"),
        ({"manifold": TERM, "solve": {"route": "streaming"}}, "solve.route is streaming, which has no manifold"),
        ({"manifold": TERM, "solve": {"ridge_per_output": True}}, "solve.ridge_per_output solves for each output"),
        ({"manifold": TERM, "kernel": {**SINGLE, "output": "learned"}}, "kernel.output is learned, which manifold"),
        (
            {"manifold": TERM, "kernel": {**SINGLE, "output": {"learned": "frobenius"}}},
            "kernel.output is learned, which manifold terms",
        ),
        (
            {"manifold": {"weight": [1, 2]}, "solve": GCV},
            "solve.select is gcv, which cannot choose among 2 trials with manifold",
        ),
        (
            {"manifold": [{"weight": [1, 2]}, {"weight": [3, 4, 5]}], "solve": {**EVIDENCE, "ridge": [1, 2]}},
            "solve.select is evidence, which cannot choose among 12 trials with manifold terms",
        ),
        (
            {"manifold": TERM, "features": {"count": [64, 128]}, "solve": GCV},
            "solve.select is gcv, which cannot choose among 2",
        ),
        (
            {"manifold": TERM, "kernel": [SINGLE, SINGLE], "solve": GCV},
            "solve.select is gcv, which cannot choose among 2 trials",
        ),
        ({"data": {"store": "s", "unlabelled": "m"}}, "data.unlabelled has no effect: only manifold"),
        ({"data": {"store": "s", "unlabelled": "s"}, "manifold": TERM}, "the job must give data.store, data."),
        ({"data": {"store": "s", "unlabelled": "run"}, "manifold": TERM}, "the job must give data.store, data."),
        ({"data": {"store": "s", "labelled": "l", "nan": "drop"}}, "data.nan must be unlabelled where labelled names"),
        ({"data": {"store": "s", "labelled": 3}}, "data.labelled must be the name of an array, came 3"),
        ({"data": {"store": "s", "unlabelled": 3}}, "data.unlabelled must be a path, came 3"),
    ],
)  # fmt: skip
def test_parts_of_a_job_that_do_not_go_together(tmp_path: Path, parts: dict[str, Any], sentence: str) -> None:
    assert problem(tmp_path, **parts).startswith(sentence)


def test_all_of_it_goes_together(tmp_path: Path) -> None:
    load(tmp_path, manifold=TERM, solve={"route": "direct"})
    load(tmp_path, manifold=[{"weight": [1, 2]}, TERM], solve={"select": "kfold", "ridge": [1, 2]})
    load(tmp_path, kernel=VIEWS, manifold=[{**TERM, "view": "coarse"}, {**TERM, "between": True}])
    load(tmp_path, kernel=VIEWS, features={"drawn_for": VIEWS})


@pytest.mark.parametrize(
    ("data", "folds", "by"),
    [
        ({}, None, "auto"),
        ({"nan": "partial"}, {"count": 3}, "auto"),
        ({"nan": "unlabelled"}, None, "rows"),
        ({"labelled": "known"}, {"count": 3}, "rows"),
        ({"nan": "unlabelled"}, {"by": "leaves"}, "leaves"),
        ({"nan": "unlabelled"}, {"by": "trial", "count": 3}, "trial"),
    ],
)
def test_rows_are_dealt_to_folds_where_few_of_them_may_be_labelled(
    data: dict[str, Any], folds: dict[str, Any] | None, by: str
) -> None:
    """Unless the job says what is dealt; whoever writes the job down again says it."""
    solve = {"ridge": 1e-3, "select": "kfold", **({"folds": folds} if folds else {})}
    parts = mapping(data={"store": "digits.zarr", **data}, solve=solve)
    job = Job.model_validate(parts)
    assert job.solve.folds == Folds(count=(folds or {}).get("count", 5), by=by) and job.solve.ridge == 1e-3
    assert Job.model_validate(job.model_dump(mode="json")) == job == Job.model_validate(job.model_dump())
    assert Job.model_validate({**parts, "data": job.data, "solve": Solve(**parts["solve"])}) == job
    assert hash(job) == hash(Job.model_validate(parts))
