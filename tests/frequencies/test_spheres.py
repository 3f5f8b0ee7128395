"""Skeletons over spheres: products of linear forms, against the schemes as printed and a recursive RFSS."""

import json
import math

import numpy as np
import pytest
from cases import assert_mean
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff import ORFFRegressor, load_model
from dorff.bounds import least_norm
from dorff.data import ingest
from dorff.errors import InputError
from dorff.features import Recipe, features_from
from dorff.features.base import FeatureMap
from dorff.features.recipe import feature_arrays
from dorff.fit import fit
from dorff.frequencies import Paths
from dorff.frequencies.paths import _hashed, distinct
from dorff.kernels import Angle, Decomposable, Gaussian, Layer, Skeleton, SkeletonNode, Sphere
from dorff.spec.job import Job

SCHEMES = ("pairs", "coordinates", "directions")
ACTIVATIONS = ("identity", {"exponential": 0.7}, {"polynomial": 2}, {"power_series": [0.2, 0.3, 0.0, 0.5]})


def over(scheme, activation="identity", angle=True):
    """Two spheres, and an angle: six columns."""
    spheres = [Sphere(scheme, columns=[2, 0, 3]), Sphere(scheme, columns=[4, 5])]
    return Skeleton([Layer(activation=activation)], inputs=[*spheres, *[Angle(columns=1)] * angle])


TWO_LAYERS = Skeleton(
    nodes={
        "a": SkeletonNode([0, 1], {"polynomial": 2}),
        "top": SkeletonNode(["a", "a", 2, 0], {"exponential": 0.5}),
    },
    inputs=over("pairs").inputs,
)


def drawn(skeleton, seed=0, draws=1, n_features=40):
    return Recipe.of(skeleton, Paths(draws), d=6, n_features=n_features).draw(seed).phi


def forms_of(t):
    """Real parts of all forms, and imaginary ones, (2 E, d)."""
    forms = np.zeros((len(t.form_starts) - 1, t.d))
    forms[np.repeat(np.arange(len(forms)), np.diff(t.form_starts)), t.form_columns] = t.form_values
    return forms


@pytest.mark.statistical
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("draws", [1, 16])
def test_features_over_spheres_are_unbiased(scheme, activation, draws):
    rng = np.random.default_rng(1)
    X, Z = rng.standard_normal((2, 4, 6))
    skeleton = over(scheme, activation)
    grams = [drawn(skeleton, seed, draws).gram(X, Z) for seed in range(600)]
    assert_mean(grams, skeleton.gram(X, Z))


@pytest.mark.statistical
@pytest.mark.parametrize("skeleton", [over("pairs", {"exponential": 1.0}), TWO_LAYERS], ids=["one", "two"])
def test_all_at_once_is_the_recursion(skeleton):
    """RFSS word by word, by complex products of example 5 as it is printed: means of the features' products and of
    their squared sizes, by two-sample errors."""
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((2, 5, 6))
    graph = skeleton.graph(6)

    def feature(number):
        if number >= graph.inputs:
            of, conjugate = graph.nodes[number - graph.inputs]
            value = np.ones(10, complex)
            for _ in range(int(conjugate.sums(rng, np.array([1]))[0])):
                value = value * feature(int(rng.choice(of)))
            return value
        space, columns, _ = graph.spaces[number]
        at = np.concatenate([X, Z])[:, columns]
        if isinstance(space, Angle):
            return np.exp(1j * rng.choice([-1, 1]) * at[:, 0])
        at, d = at / np.linalg.norm(at, axis=1)[:, None], len(columns)
        j, b = rng.integers(d), rng.choice([-1, 1])
        return math.sqrt(d / 2) * (at[:, j] + 1j * b * at[:, (j + 1) % d])

    last = graph.inputs + len(graph.nodes) - 1
    few = np.array([feature(last) for _ in range(4000)])
    phi = drawn(skeleton, n_features=40_000)
    D = phi.m // 2
    F = phi.transform(np.concatenate([X, Z])) * math.sqrt(D)
    many = (F[:, :D] + 1j * F[:, D:]).T
    pairs = [np.concatenate([(one[:, :5] * one[:, 5:].conj()).real, np.abs(one) ** 2], axis=1) for one in (few, many)]
    error = np.sqrt(sum(one.var(axis=0) / len(one) for one in pairs))
    np.testing.assert_array_less(np.abs(pairs[0].mean(axis=0) - pairs[1].mean(axis=0)), 5 * error)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SCHEMES), st.sampled_from(ACTIVATIONS))
def test_features_are_products_of_powers(seed, scheme, activation):
    """The dense twin: complex powers of forms, and waves, multiplied one by one."""
    phi = drawn(over(scheme, activation), seed, 4, 20)
    t, rng = phi.projection, np.random.default_rng(seed)
    X = rng.standard_normal((5, 6))
    X[0, [2, 0, 3]], X[1, 4] = 0.0, 0.0
    forms = forms_of(t)
    z = X @ (forms[:5] + 1j * forms[5:]).T
    for sphere in ([2, 0, 3], [4, 5]):
        at, length = slice(0, 3) if len(sphere) == 3 else slice(3, 5), np.linalg.norm(X[:, sphere], axis=1)
        size = np.sqrt(np.mean(np.abs(z[:, at]) ** 2, axis=1))
        np.testing.assert_allclose(size, length * (1 if scheme == "pairs" else 2**-0.5) * (2 / len(sphere)) ** 0.5)
        z[:, at] /= np.where(size == 0, 1.0, size)[:, None]
    F = np.ones((5, t.D), complex) * phi.weights
    for j in range(t.D):
        for e in range(t.starts[j], t.starts[j + 1]):
            if t.columns[e] < 6:
                F[:, j] *= np.exp(1j * t.values[e] * X[:, t.columns[e]])
                continue
            form, turns, power = z[:, t.columns[e] - 6], int(t.values[e]), int(t.powers[e])
            assert power > 0 and abs(turns) <= power and (turns - power) % 2 == 0
            F[:, j] *= form ** ((power + turns) // 2) * form.conj() ** ((power - turns) // 2)
    np.testing.assert_allclose(phi.transform(X), np.hstack([F.real, F.imag]), atol=1e-12)
    if scheme != "pairs":
        np.testing.assert_allclose(
            np.abs(drawn(over(scheme, activation, angle=False), seed).transform(X)[:, 20:]), 0, atol=1e-13
        )


@pytest.mark.parametrize("d", [2, 3, 8])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_feature_is_as_large_as_its_scheme_says(scheme, d):
    """sqrt(d / 2), which theorem 6 says is the least, or sqrt(d): at most, and there is a point that reaches it."""
    identity = Skeleton([Layer(activation="identity")], inputs=Sphere(scheme))
    phi = Recipe.of(identity, Paths(1), d=d, n_features=200).draw(0).phi
    forms = forms_of(phi.projection)[:d]
    X = np.concatenate([np.random.default_rng(0).standard_normal((200, d)), forms])
    F = phi.transform(X) / np.tile(phi.weights, 2)
    size = np.sqrt(F[:, :100] ** 2 + F[:, 100:] ** 2).max()
    assert size == pytest.approx(least_norm(d) if scheme == "pairs" else math.sqrt(d))
    if scheme == "directions":
        np.testing.assert_allclose(forms @ forms.T, np.eye(d), atol=1e-14)


def test_directions_are_uniform():
    """Their mean is 0 and their covariance I / d, whatever the seed; no two draws have the same."""
    skeleton = Skeleton([Layer(activation="identity")], inputs=Sphere("directions"))
    recipe = Recipe.of(skeleton, Paths(1), d=3, n_features=4)
    w = np.array([recipe.draw(seed).phi.projection.form_values[:3] for seed in range(500)])
    assert_mean(w, np.zeros(3))
    assert_mean(w[:, :, None] * w[:, None, :], np.eye(3) / 3)
    assert_mean(w**4, np.full(3, 3 / 15))


@pytest.mark.parametrize("scheme, few", [("pairs", 3), ("coordinates", 3), ("directions", 3)])
def test_equal_and_conjugate_features_are_merged(scheme, few):
    """One factor: as many as there are columns; of two: squares of forms, sizes, and products."""
    graph = Skeleton([Layer(activation="identity")], inputs=Sphere(scheme)).graph(3)
    kept, counts = distinct(graph, np.random.default_rng(0), 500, 3)
    assert few == kept.D and counts.sum() == 500
    squares = Skeleton([Layer(activation={"power_series": [0, 0, 1.0]})], inputs=Sphere(scheme)).graph(3)
    kept, counts = distinct(squares, np.random.default_rng(0), 4000, 3)
    assert (12 if scheme == "pairs" else 6) == kept.D and counts.sum() == 4000
    by_feature = {}
    for j in range(kept.D):
        at = slice(kept.starts[j], kept.starts[j + 1])
        values = kept.values[at] * [np.sign(next((v for v, _ in kept.values[at] if v), 1.0)), 1]
        values = values if scheme == "pairs" else np.abs(values)
        by_feature[(*kept.columns[at], *values.ravel())] = counts[j]
    assert len(by_feature) == kept.D
    if scheme == "coordinates":
        single = [count for key, count in by_feature.items() if len(key) == 3]
        assert_mean(np.repeat([1.0, 0.0], [sum(single), 4000 - sum(single)]), 1 / 3)


def test_many_calls_are_dealt_out_to_forms():
    """Codes come so many times as the powers say."""
    rng = np.random.default_rng(0)
    some = Sphere().characters(rng, np.array([0, 0]), np.array([2000, 3]), 2)
    np.testing.assert_array_equal(np.bincount(some.of, some.powers), [2000, 3])
    nodes = np.zeros(len(some.of), np.int64)
    once, times = _hashed(nodes, some.codes, None), some.powers.astype(np.uint64)[:, None]
    np.testing.assert_array_equal(_hashed(nodes, some.codes, some.powers), once * times)
    assert len(np.unique(once)) == len(np.unique(some.codes))


def test_rows_of_length_0_and_gaps():
    """A row of zeros has the features of degree 0 alone; one with a gap has none."""
    skeleton = over("pairs", {"polynomial": 2}, angle=False)
    X = np.random.default_rng(0).standard_normal((3, 6))
    X[0] = 0.0
    X[1, 4] = np.nan
    F = drawn(skeleton).transform(X)
    phi = drawn(skeleton)
    constant = np.diff(phi.projection.starts) == 0
    np.testing.assert_allclose(F[0], np.concatenate([phi.weights * constant, np.zeros(20)]))
    assert constant.any() and not constant.all()
    assert np.isnan(F[1]).any() and np.isfinite(F[[0, 2]]).all()
    assert skeleton.gram(X[:1], X[2:])[0, 0] == pytest.approx(0.25) and np.isnan(skeleton.gram(X[1:2], X)).all()
    for length in (7.3, 1e-200, 1e200):
        np.testing.assert_allclose(drawn(skeleton).transform(length * X[2:]), F[2:], atol=1e-13)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("powers", lambda a: a[1:]),
        ("powers", lambda a: a + 1.0),
        ("powers", lambda a: -a),
        ("powers", lambda a: a * np.nan),
        ("powers", lambda a: 0 * a),
        ("powers", lambda a: np.where(a == 0, -1.0, a)),
        ("form_starts", lambda a: np.append(a, a[-1])),
        ("spheres", lambda a: np.concatenate([[1], a[1:]])),
        ("columns", lambda a: a + 3),
        ("form_starts", lambda a: a[1:]),
        ("form_columns", lambda a: a + 6),
        ("form_values", lambda a: a * np.inf),
        ("spheres", lambda a: a[:-1]),
        ("spheres", lambda a: a[::-1].copy()),
        ("spheres", lambda a: np.insert(a, 1, 0)),
        ("spheres", lambda a: a + 1),
        ("spheres", lambda a: a.astype(float)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name, wrong):
    phi = drawn(over("pairs", {"exponential": 1.0}))
    features = FeatureMap(phi, np.zeros(6), np.ones(6))
    config, arrays = json.loads(json.dumps(phi.config())), feature_arrays(features)
    X = np.random.default_rng(0).standard_normal((3, 6))
    np.testing.assert_array_equal(features_from(config, arrays).transform(X), features.transform(X))
    with pytest.raises(InputError, match="do not fit each other"):
        features_from(config, {**arrays, name: wrong(arrays[name])})


INPUTS = [{"type": "sphere", "columns": [2, 0, 3], "scheme": "coordinates"}, {"type": "sphere", "columns": [4, 5, 1]}]


def test_a_job_over_spheres_is_fitted_stored_and_read(tmp_path):
    """Inputs are not centred; it is the estimator of the same kernel; another output matrix reads no row; and what has
    no frequencies says so."""
    rng = np.random.default_rng(0)
    X = 3.0 + rng.standard_normal((700, 6))
    u = X[:, [2, 0, 3]] / np.linalg.norm(X[:, [2, 0, 3]], axis=1)[:, None]
    Y = np.stack([u[:, 0] * u[:, 1], np.sin(3 * u[:, 2])], axis=1)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"], shard_rows=128)
    scalar = {"type": "skeleton", "inputs": INPUTS, "layers": [{"activation": {"exponential": 3}}]}
    job = {
        "data": {"store": str(tmp_path / "a.zarr")},
        "kernel": {"type": "decomposable", "scalar": scalar},
        "features": {"count": 200, "seed": 3},
        "solve": {"ridge": 1e-6, "standardize": False},
        "cluster": {"type": "serial"},
        "state": str(tmp_path / "state"),
        "model": str(tmp_path / "model"),
    }
    report = fit(Job.model_validate(job))
    model = load_model(report.model)
    assert not model.feature_map.center.any() and model.feature_map.phi.projection.kind == "products"
    kernel = Decomposable(
        Skeleton(
            [Layer(activation={"exponential": 3.0})],
            inputs=[Sphere("coordinates", columns=[2, 0, 3]), Sphere(columns=[4, 5, 1])],
        )
    )
    assert model.kernel.terms()[0][1].scalar == kernel.scalar
    twin = ORFFRegressor(
        kernel=kernel, n_features=200, sampler=Paths(), ridge=1e-6, random_state=3, standardize=False
    ).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), twin.predict(X), atol=1e-5)
    assert twin.score(X, Y) > 0.99
    for use in (lambda: model.frequencies, lambda: model.jacobian(X[:2])):
        with pytest.raises(InputError, match="spheres"):
            use()
    job["kernel"]["output"] = {"matrix": [[1.0, 0.5], [0.5, 1.0]]}
    again = fit(Job.model_validate(job))
    assert again.leaves_computed == 0 and again.leaves_reused == report.leaves_computed
    job["features"]["count"] = [20, 60]
    fewer = fit(Job.model_validate(job))
    assert fewer.m == 60 and load_model(fewer.model).feature_map.m == 60


@pytest.mark.statistical
def test_operator_kernels_over_spheres_are_unbiased():
    """Several terms of one scalar kernel share its features."""
    A, B = np.array([[1.0, 0.3], [0.3, 1.0]]), np.diag([0.2, 2.0])
    scalar = over("pairs", {"exponential": 0.5})
    kernel = (Decomposable(scalar, A) + Decomposable(scalar, B) * 0.5).fix(6, 2)
    X, Z = np.random.default_rng(0).standard_normal((2, 3, 6))
    recipe = Recipe(kernel, Paths(), 6, 2, 40)
    grams = [recipe.draw(seed).phi.gram(X, Z) for seed in range(500)]
    np.testing.assert_allclose(kernel.gram(X, Z), np.einsum("ab,pq->abpq", scalar.gram(X, Z), A + 0.5 * B), atol=1e-12)
    assert_mean(grams, scalar.gram(X, Z))
    with pytest.raises(InputError, match="needs this one scalar kernel"):
        (Decomposable(scalar) + Decomposable(Gaussian(1.0))).fix(6, 2)
