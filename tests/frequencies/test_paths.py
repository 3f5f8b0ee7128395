"""Frequencies of skeletons: against a recursive RFSS, merged without bias, sparse; and what else draws with them."""

import json
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from cases import LAW, assert_mean
from hypothesis import given
from hypothesis import strategies as st

from dorff import ORFFRegressor, frequencies, kernels, load_model
from dorff.data import ingest
from dorff.errors import InputError
from dorff.features import FeatureMap, Projected, Recipe, features_from
from dorff.features.recipe import feature_arrays
from dorff.fit import fit
from dorff.frequencies import IID, Paths
from dorff.frequencies.paths import calls_of, characters_of, distinct, rows_of, stacked, thinned
from dorff.frequencies.transforms import Sparse
from dorff.kernels import Angle, Category, ColumnBlock, Decomposable, Layer, Sign, Skeleton, SkeletonNode, Sphere
from dorff.kernels.scalar import median_lengthscale
from dorff.model.weights import operator_weights
from dorff.report.doubt import _reach
from dorff.spec.job import Job
from dorff.spec.reader import load_job

SPACES = [
    Angle([0.5, 2.0], columns=[0, 3]),
    Sign(columns=1),
    Category(5, columns=2),
    ColumnBlock(kernels.Matern(0.7), columns=[4, 5]),
]
SKELETONS = {
    "mixed": Skeleton([Layer()], inputs=SPACES),
    "exponential": Skeleton([Layer(activation={"exponential": 3.0})], inputs=SPACES[:3]),
    "step": Skeleton([Layer(activation="step")], inputs=[*SPACES[:3], ColumnBlock(kernels.Gaussian(1.0), columns=[4])]),
    "deep": Skeleton([Layer(2, 1, "erf"), Layer(2), Layer(activation={"power_series": [0.1, 0.2, 0.7]})], shape=(6, 1)),
    "named": Skeleton(
        nodes={
            "a": SkeletonNode([0, 1, 2], "step"),
            "b": SkeletonNode(["a", 3]),
            "top": SkeletonNode(["a", "b", "b", 5], "erf"),
        }
    ),
}  # fmt: skip


def peak_of(make):
    """What comes, and the most bytes that Python's memory took meanwhile."""
    tracemalloc.start()
    made = make()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return made, peak


def rows(rng, n):
    """Six columns: angles, but a sign and a category."""
    X = rng.uniform(0, 2, (n, 6))
    X[:, 1], X[:, 2] = rng.choice([-1.0, 1.0], n), rng.integers(0, 5, n)
    return X


def naive(graph, rng, number, d):
    """RFSS (algorithm 1) word by word: omega (d,) of a node's feature."""
    omega = np.zeros(d)
    if number < graph.inputs:
        for place, _, local in graph.by_space(np.array([number])):
            space, columns, _ = graph.spaces[place]
            some = space.characters(rng, local, np.array([1]), len(columns))
            omega[columns[some.columns[0]]] += some.values[0]
        return omega
    of, conjugate = graph.nodes[number - graph.inputs]
    for _ in range(int(conjugate.sums(rng, np.array([1]))[0])):
        omega += naive(graph, rng, rng.choice(of), d)
    return omega


def inputs_of(omega, skeleton):
    """How many inputs features have (n,): two turns of a sign, or five of a category of five, are none."""
    rest = omega.copy()
    if len(skeleton.inputs) > 1:
        rest[:, 1] = np.sin(rest[:, 1])
        rest[:, 2] = np.sin(rest[:, 2] / 2)
    return np.count_nonzero(np.abs(rest) > 1e-9, axis=1)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
@pytest.mark.parametrize("calls", [1, 2, 5])
def test_characters_are_unbiased(space, calls):
    """The mean of Re exp(i omega . (x - z)) is the base kernel's power."""
    rng = np.random.default_rng(calls)
    X, Z, columns = rows(rng, 5), rows(rng, 5), np.array(space.columns)
    for node in range(space.nodes(len(columns))):
        some = space.characters(rng, np.full(4000, node), np.full(4000, calls), len(columns))
        phases = sum(
            (X - Z)[:, columns[some.columns[:, one]]].T * some.values[:, one, None]
            for one in range(some.values.shape[1])
        )
        exact = np.diag(space.total(X, Z, columns, np.array([node]))) ** calls
        assert_mean(np.cos(phases), exact)


@pytest.mark.statistical
@pytest.mark.parametrize("skeleton", SKELETONS.values(), ids=SKELETONS)
def test_all_at_once_is_the_recursion(skeleton):
    """Means of cosines at pairs of rows, and shares of features of 0, 1 and 2 inputs, by two-sample errors; and the
    means are the kernel's."""
    rng = np.random.default_rng(0)
    graph, X, Z = skeleton.graph(6), rows(rng, 6), rows(rng, 6)
    together = rows_of(characters_of(graph, rng, 40_000, 6)[0], np.arange(40_000)).dense()
    last = graph.inputs + len(graph.nodes) - 1
    if skeleton is not SKELETONS["step"] and skeleton is not SKELETONS["named"]:  # whose recursion may not end
        one_by_one = np.array([naive(graph, rng, last, 6) for _ in range(3000)])
        many, few = (
            np.concatenate([np.cos(omega @ (X - Z).T), inputs_of(omega, skeleton)[:, None] == [0, 1, 2]], axis=1)
            for omega in (together, one_by_one)
        )
        error = np.sqrt(many.var(axis=0) / len(many) + few.var(axis=0) / len(few))
        np.testing.assert_array_less(np.abs(many.mean(axis=0) - few.mean(axis=0)), 5 * error + 1e-12)
    assert_mean(np.cos(together @ (X - Z).T), np.diag(skeleton.gram(X, Z)))


def test_calls_are_as_many_as_the_complexity_says():
    graph = SKELETONS["exponential"].graph(6)
    features, _, calls = calls_of(graph, np.random.default_rng(0), 20_000)
    assert_mean(np.bincount(features, calls, 20_000), graph.complexity)
    keys = features * graph.inputs + calls_of(graph, np.random.default_rng(0), 20_000)[1]
    assert np.all(np.diff(keys) > 0)  # each place once, in order


@pytest.mark.parametrize("skeleton", SKELETONS.values(), ids=SKELETONS)
def test_frequencies_are_merged_where_equal_or_opposite(skeleton, monkeypatch):
    """What is left differs up to its sign, stands for every frequency drawn, and does not depend on how many are drawn
    at a time but for their order."""
    monkeypatch.setattr("dorff.frequencies.paths._TOGETHER", 1500)
    graph, signs = skeleton.graph(6), [1] if len(skeleton.inputs) > 1 else []
    kept, counts = distinct(graph, np.random.default_rng(1), 4000, 6)
    rng = np.random.default_rng(1)
    every = stacked([characters_of(graph, rng, size, 6)[0] for size in (1500, 1500, 1000)]).dense()
    signed = {row.tobytes(): count for row, count in zip(canonical(kept.dense(), signs), counts, strict=True)}
    assert len(signed) == len(counts) and counts.sum() == 4000
    rows_, came = np.unique(canonical(every, signs), axis=0, return_counts=True)
    assert {row.tobytes(): count for row, count in zip(rows_, came, strict=True)} == signed


def canonical(omega, signs):
    """The rows with the sign that makes their first entry positive; columns of `signs` have pi / 2 or 0."""
    turned = np.delete(omega, signs, axis=1)
    first = np.array([row[np.flatnonzero(row)[0]] if row.any() else 1.0 for row in turned])
    return np.round(np.column_stack([turned * np.sign(first)[:, None], np.abs(omega[:, signs])]), 9) + 0.0


@LAW
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 10**6))
def test_as_many_as_are_wanted_stay(counts, wanted, seed):
    """Those of a count above the threshold surely, and of their own weight; all weights sum to 1 in the mean."""
    counts = np.array(counts)
    kept, weights = thinned(np.random.default_rng(seed), counts, wanted)
    assert len(kept) == len(weights) == wanted and kept.max() < len(counts)
    if wanted >= len(counts):
        np.testing.assert_allclose(np.bincount(kept, weights**2), counts / counts.sum())
        return
    assert len(set(kept)) == wanted
    threshold = np.min(weights**2) * counts.sum()
    assert set(np.flatnonzero(counts > threshold * (1 + 1e-9))) <= set(kept)
    np.testing.assert_allclose(weights**2, np.maximum(counts[kept], threshold) / counts.sum())
    np.testing.assert_allclose(np.minimum(counts / threshold, 1.0).sum(), wanted)


@pytest.mark.statistical
def test_thinning_is_unbiased():
    rng, counts = np.random.default_rng(0), np.array([40, 1, 1, 2, 7, 1, 3, 12, 1, 1])
    draws = np.zeros((4000, len(counts)))
    for row in draws:
        kept, weights = thinned(rng, counts, 4)
        row[kept] = weights**2
    assert_mean(draws, counts / counts.sum())


@pytest.mark.statistical
@pytest.mark.parametrize("skeleton", SKELETONS.values(), ids=SKELETONS)
@pytest.mark.parametrize("draws", [1, 16])
def test_features_are_unbiased(skeleton, draws):
    rng = np.random.default_rng(2)
    X, Z = rows(rng, 4), rows(rng, 4)
    recipe = Recipe.of(skeleton, Paths(draws), d=6, n_features=40)
    assert_mean([recipe.draw(seed).phi.gram(X, Z) for seed in range(400)], skeleton.gram(X, Z))


def test_only_blocks_have_nothing_to_merge():
    assert Paths(16)._draws(SKELETONS["mixed"]) == 16
    assert Paths(16)._draws(Skeleton([Layer()], inputs=ColumnBlock(kernels.Gaussian(1.0)))) == 1


def test_merging_lowers_the_error():
    """At equal m the squared error of the kernel is less by far than that of as many draws; the more draws the less."""
    skeleton = Skeleton([Layer(2, 1, {"exponential": 0.25}), Layer()], shape=(6, 1))
    X = np.random.default_rng(0).uniform(0, 2, (20, 6))
    exact = skeleton.gram(X, X)

    def error(draws):
        recipe = Recipe.of(skeleton, Paths(draws), d=6, n_features=64)
        return np.mean([np.mean((recipe.draw(seed).phi.gram(X, X) - exact) ** 2) for seed in range(20)])

    plain, merged, more = error(1), error(8), error(64)
    assert merged < 0.4 * plain and more < 0.6 * merged


def test_a_block_of_columns_is_plain_random_features():
    """The Gaussian as a skeleton of one node has the variance of as many independent random Fourier features."""
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(2, 6, 3))
    gaussian = kernels.Gaussian(1.3)
    one = Skeleton([Layer(activation="identity")], inputs=ColumnBlock(gaussian))
    ours, theirs = (
        np.array([Recipe.of(kernel, sampler, d=3, n_features=64).draw(seed).phi.gram(X, Z) for seed in range(500)])
        for kernel, sampler in ((one, Paths(1)), (gaussian, IID()))
    )
    assert_mean(ours, gaussian.gram(X, Z))
    np.testing.assert_allclose(ours.var(axis=0).mean(), theirs.var(axis=0).mean(), rtol=0.1)


@LAW
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 12))
def test_a_sparse_product_is_the_dense_one(seed, d, D):
    rng = np.random.default_rng(seed)
    omega = rng.normal(size=(D, d)) * (rng.random((D, d)) < 0.4)
    row, column = np.nonzero(omega)
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=D))])
    transform = Sparse(starts, column.astype(np.int32), omega[row, column], np.array([d]))
    x, wide = rng.normal(size=(7, d + 2))[:, :d], np.full((7, D + 3), np.nan)
    transform.project(x, wide)
    np.testing.assert_allclose(wide[:, :D], x @ omega.T, atol=1e-14)
    assert np.isnan(wide[:, D:]).all() and transform.fits()
    np.testing.assert_array_equal(transform.dense(), omega)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("starts", lambda a: a[1:]),
        ("starts", lambda a: a[::-1].copy()),
        ("starts", lambda a: a + 1),
        ("starts", lambda a: np.maximum(a, 1)),
        ("starts", lambda a: a.astype(np.float64)),
        ("columns", lambda a: a + 6),
        ("columns", lambda a: a - 7),
        ("columns", lambda a: a[1:]),
        ("columns", lambda a: 0 * a),
        ("values", lambda a: a * np.nan),
        ("inputs", lambda a: a - 6),
        ("inputs", lambda a: np.array([6.0])),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name, wrong):
    features = features_of(SKELETONS["mixed"])
    config, arrays = features.phi.config(), feature_arrays(features)
    again = features_from(config, arrays)
    x = rows(np.random.default_rng(0), 3)
    np.testing.assert_array_equal(again.transform(x), features.transform(x))
    with pytest.raises(InputError, match="do not fit each other"):
        features_from(config, {**arrays, name: wrong(arrays[name])})


def features_of(skeleton):
    drawn = Paths().draw(Decomposable(skeleton), d=6, p=1, count=30, seed=0)
    return FeatureMap(Projected.of(drawn, None, centre_column=False), np.zeros(6), np.ones(6))


VECTOR = Skeleton([Layer(activation={"exponential": 1.5})], inputs=Angle([0.8, 1.3]))


def sums_and_views():
    deep, gaussian = SKELETONS["deep"], kernels.Gaussian(1.0)
    A, B = np.array([[1.0, 0.3], [0.3, 1.0]]), np.diag([0.2, 2.0])
    yield "two outputs", Decomposable(deep, A)
    yield "two of a skeleton", Decomposable(deep, A) + Decomposable(deep, B) * 0.5
    yield "two skeletons", Decomposable(deep, A) + Decomposable(SKELETONS["mixed"], B) * 0.5
    yield "with a Gaussian", Decomposable(deep, A) + Decomposable(gaussian, B) * 0.5
    yield "curl-free", kernels.CurlFree(VECTOR)
    yield "divergence-free and more", kernels.DivergenceFree(VECTOR) + Decomposable(gaussian, B) * 0.5
    yield "views", kernels.MultiView([(6, Decomposable(deep, A)), (2, Decomposable(gaussian, B))])


@pytest.mark.statistical
@pytest.mark.parametrize("name, kernel", [*sums_and_views()], ids=lambda one: one if isinstance(one, str) else "")
def test_operator_kernels_of_skeletons_are_unbiased(name, kernel):
    """psi^T psi F F^T, by the weights that a fit takes, has the exact gram as its mean."""
    rng = np.random.default_rng(0)
    d, p = (8, 4) if name == "views" else (2, 2) if "-free" in name else (6, 2)
    X, Z = (np.concatenate([rows(rng, 2), rng.normal(size=(2, 2))], axis=1)[:, :d] for _ in range(2))
    fixed = kernel.fix(d, p)
    recipe = Recipe(fixed, frequencies.default_sampler(fixed), d, p, 60)
    grams = []
    for seed in range(300):
        drawn = recipe.draw(seed)
        psi = operator_weights(fixed, drawn.phi.m, drawn.density).psi
        features = [np.einsum("nm,mrp->nmrp", drawn.phi.transform(one), psi) for one in (X, Z)]
        grams.append(np.einsum("nmrp,kmrq->nkpq", *features))
    assert_mean(grams, fixed.gram(X, Z))


INPUTS = [
    {"type": "angle", "columns": [0, 3], "lengthscale": [0.5, 2.0]},
    {"type": "sign", "columns": [1]},
    {"type": "category", "columns": [2], "values": 5},
    {"type": "block", "columns": [4, 5], "scalar": {"type": "matern", "lengthscale": 0.7}},
]


def job(folder, **scalar):
    body = {"type": "skeleton", "inputs": INPUTS, "layers": [{"activation": {"exponential": 3}}], **scalar}
    return {
        "data": {"store": str(folder / "a.zarr")},
        "kernel": {"type": "decomposable", "scalar": {key: value for key, value in body.items() if value is not None}},
        "features": {"count": 300, "seed": 3},
        "solve": {"ridge": 1e-6},
        "cluster": {"type": "serial"},
        "state": str(folder / "state"),
        "model": str(folder / "model"),
    }


def test_a_job_of_a_skeleton_is_fitted_stored_and_read(tmp_path):
    """It is the estimator of the same kernel; with another output matrix no row is read; a killed copy has its bits."""
    X = rows(np.random.default_rng(0), 600)
    Y = np.stack([np.cos(X[:, 0] - 2 * X[:, 3]) * X[:, 1], (X[:, 2] == 3) + np.sin(X[:, 4])], axis=1)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"], shard_rows=128)
    report = fit(Job.model_validate(job(tmp_path)))
    model = load_model(report.model)
    kernel = Decomposable(Skeleton([Layer(activation={"exponential": 3.0})], inputs=SPACES))
    assert model.kernel.terms()[0][1].scalar == kernel.scalar and model.feature_map.phi.projection.kind == "sparse"
    twin = ORFFRegressor(kernel=kernel, n_features=300, ridge=1e-6, random_state=3).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), twin.predict(X), atol=1e-5)
    assert _reach(SimpleNamespace(model=model)) is None  # no length-scale of its own
    step = 1e-6 * (np.arange(6) == 3)
    slope = (model.predict(X[:5] + step) - model.predict(X[:5] - step)) / 2e-6
    np.testing.assert_allclose(model.jacobian(X[:5])[:, :, 3], slope, atol=1e-6)
    other = job(tmp_path)
    other["kernel"]["output"] = {"matrix": [[1.0, 0.5], [0.5, 1.0]]}
    again = fit(Job.model_validate(other))
    assert again.leaves_computed == 0 and again.leaves_reused == report.leaves_computed
    erf = {**job(tmp_path, layers=[{"activation": "erf"}]), "solve": {"ridge": [1e-6, 1e-4], "select": "kfold"}}
    third = fit(Job.model_validate(erf))
    assert third.leaves_computed > 0 and third.quality is not None
    assert third.quality["by"] is not None and third.quality["half"] is None  # a half's features are no estimate


def test_coded_inputs_are_not_scaled(tmp_path):
    """Signs and categories are values, not lengths; angles may be scaled."""
    X, y = rows(np.random.default_rng(0), 80), np.arange(80.0)
    kernel, angles = Decomposable(SKELETONS["exponential"]), Decomposable(SKELETONS["deep"])
    with pytest.raises(InputError, match="standardize: inputs of sign have values that must stay as they are"):
        ORFFRegressor(kernel=kernel, n_features=40, standardize=True).fit(X, y)
    ORFFRegressor(kernel=angles, n_features=40, ridge=1e-3, standardize=True).fit(X, y)
    np.savez(tmp_path / "a.npz", x=X, y=y)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    body = job(tmp_path)
    body["solve"]["standardize"] = True
    with pytest.raises(InputError, match="standardize: inputs of sign"):
        fit(Job.model_validate(body))


@pytest.mark.parametrize(
    "scalar, message",
    [
        (
            {"layers": [{"activation": "rellu"}]},
            r"kernel.scalar.layers\[0\].activation does not fit: activation must be",
        ),
        ({"layers": [{"size": 0}]}, r"kernel.scalar.layers\[0\].size does not fit: layers: size must be"),
        ({"layers": [{"sise": 3}]}, r"kernel.scalar.layers\[0\].sise is not a known key; did you mean 'size'"),
        ({"layers": None, "nodes": {"a": {}}}, r"kernel.scalar.nodes.a.of is missing"),
        ({"shape": [2, 0]}, r"kernel.scalar.shape does not fit: "),
        ({"layers": None}, "either layers or nodes"),
        (
            {"inputs": "circle"},
            "kernel.scalar.inputs must be one of: .* came 'circle'",
        ),
        ({"inputs": [{"type": "block", "columns": [0], "scalar": {"type": "gausian"}}]}, "did you mean 'gaussian'"),
        (
            {"inputs": {"type": "block", "scalar": {"type": "matern"}}},
            "scalar does not fit: a block's scalar kernel",
        ),
        (
            {"inputs": {"type": "block", "scalar": {"lengthscale": "tune"}}},
            "a block's scalar kernel needs its lengthscale",
        ),
        ({"layers": [{"size": 2, "stride": 0}]}, "stride does not fit: layers: stride must be a whole number"),
        ({"inputs": {"type": "angle", "columns": [6]}}, "angle has column 6, but there are 6, from 0 on"),
    ],
)
def test_words_that_do_not_fit_are_refused_by_their_place(tmp_path, scalar, message):
    np.savez(tmp_path / "a.npz", x=rows(np.random.default_rng(0), 60), y=np.zeros((60, 1)))
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    (tmp_path / "job.yaml").write_text(json.dumps(job(tmp_path, **scalar)))
    with pytest.raises(InputError, match=message):
        fit(load_job(tmp_path / "job.yaml"))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "sampler", [IID(), frequencies.Orthogonal(), frequencies.QMC(), frequencies.Lattice()], ids=repr
)
def test_others_do_not_draw_a_skeleton(sampler):
    with pytest.raises(InputError, match="frequencies of Skeleton are drawn by paths alone"):
        Recipe.of(SKELETONS["deep"], sampler, d=6, n_features=40)


GAUSSIAN = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}}


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda body: body.update(kernel=[body["kernel"], GAUSSIAN]), "fit each in a job of its own"),
        (lambda body: body["features"].update(drawn_for=GAUSSIAN), "than those of Skeleton, which paths draws"),
        (lambda body: body["features"].update(count=[20, 60]), "features.count: several need"),
        (lambda body: body["features"].update(sampler={"type": "qmc"}), "drawn by paths alone, not by qmc"),
    ],
    ids=["list", "drawn_for", "counts", "sampler"],
)
def test_what_a_skeleton_does_not_share_is_refused(tmp_path, change, message):
    np.savez(tmp_path / "a.npz", x=rows(np.random.default_rng(0), 60), y=np.zeros((60, 1)))
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    body = job(tmp_path)
    change(body)
    with pytest.raises(InputError, match=message):
        fit(Job.model_validate(body))


def test_a_block_has_the_median_distance_of_its_columns(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3)) * [1.0, 5.0, 5.0]
    np.savez(tmp_path / "a.npz", x=X, y=X[:, 1])
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    inputs = {"type": "block", "columns": [1, 2], "scalar": {"type": "gaussian", "lengthscale": "median"}}
    model = load_model(fit(Job.model_validate(job(tmp_path, inputs=inputs))).model)
    scalar = model.kernel.terms()[0][1].scalar.inputs[0].scalar
    assert scalar.lengthscale == pytest.approx(median_lengthscale(X[:, 1:]))


@pytest.mark.filterwarnings("always")
def test_what_is_wrong_with_a_fit_names_no_lengthscale_of_a_skeleton():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 40, (300, 2))
    with pytest.warns(match="the kernel does not suit them; try another one"):
        ORFFRegressor(kernel=Decomposable(Skeleton([Layer()])), n_features=60, random_state=0).fit(X, X[:, 0])


COSTS = {
    "deep": (DEEP := Skeleton([Layer(5, 2, {"exponential": 0.25}), Layer(4, 2), Layer()], shape=(24, 24, 3)), 1728, 16),
    "relu": (Skeleton([Layer()]), 5000, 16),
    "few inputs": (Skeleton([Layer()]), 6, 256),
    "step": (Skeleton([Layer(activation="step")]), 1728, 4),
    "block": (Skeleton([Layer(activation="identity")], inputs=ColumnBlock(kernels.Gaussian(1.0))), 50, 64),
    "sphere": (Skeleton([Layer(activation={"exponential": 2.0})], inputs=Sphere()), 1728, 16),
    "curl-free": (CURLY := Skeleton([Layer(activation={"exponential": 1.5})]), 300, 1),
    "many directions": (Skeleton([Layer(activation="identity")], inputs=Sphere("directions")), 900, 1),
    "sum": (Skeleton([Layer(2), Layer()], shape=(60, 1)), 60, 256),
    "directions": (Skeleton([Layer(activation={"exponential": 2.0})], inputs=Sphere("directions")), 300, 2),
}


@pytest.mark.parametrize("skeleton, d, draws", COSTS.values(), ids=COSTS)
def test_the_cost_is_what_is_drawn_or_a_little_more(skeleton, d, draws):
    """The peak of memory of a draw, and the operations of a row; and a draw writes nothing of m x d where it is
    sparse."""
    p = d if skeleton is CURLY else 1
    kernel = kernels.CurlFree(skeleton) if skeleton is CURLY else Decomposable(skeleton)
    plain = skeleton is not COSTS["sum"][0]
    kernel = (kernel if plain else kernel + Decomposable(kernels.Gaussian(1.0))).fix(d, p)
    sampler = Paths(draws)
    cost = sampler.cost(kernel, d=d, p=p, count=2048)
    sampler.draw(kernel, d=d, p=p, count=2048, seed=1)  # tables are made once
    drawn, peak = peak_of(lambda: sampler.draw(kernel, d=d, p=p, count=2048, seed=0))
    assert cost.frequencies == drawn.transform.D == 2048
    assert peak < 8 * cost.numbers < 12 * peak + 2**21
    if not plain:
        return
    real = 2.0 * sum(
        len(value) for name, value in drawn.transform.arrays().items() if name.endswith(("values", "powers"))
    )
    assert 0.9 * real < cost.flops < 8 * real
    assert d < 1000 or (drawn.log_density is None and peak < 8 * 2048 * d)


@pytest.mark.parametrize(
    "space, few", [(Category(5), 3), (Category(4), 3), (Category(2), 2), (Sign(), 1), (Angle(), 1)]
)
def test_opposite_characters_of_one_input_are_one(space, few):
    """Of a category of n there are n / 2 + 1 up to their sign, rounded down."""
    graph = Skeleton([Layer(activation="identity")], inputs=space).graph(1)
    kept, counts = distinct(graph, np.random.default_rng(0), 500, 1)
    assert kept.D == len(counts) == few and counts.sum() == 500


@pytest.mark.parametrize(
    "inputs",
    [{"type": "angle"}, {"type": "sign"}, [{"type": "category", "values": 2}],
     {"type": "block", "scalar": {"type": "gaussian", "lengthscale": 1.0}}, "angle", ["angle"]],
    ids=str,
)  # fmt: skip
def test_one_space_of_all_columns_needs_no_columns(tmp_path, inputs):
    X = np.random.default_rng(0).choice([-1.0, 1.0], (60, 3)) if "sign" in str(inputs) else np.eye(60, 3)
    np.savez(tmp_path / "a.npz", x=X, y=X[:, 0] * X[:, 1])
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    body = {**job(tmp_path, inputs=inputs), "features": {"count": 40}}
    assert fit(Job.model_validate(body)).rows_used == 60
