"""Skeletons: conjugate activations against their series, kernels against a recursion, and what is refused."""

import json
import math
import re
from itertools import product

import numpy as np
import pytest
from cases import LAW, assert_mean
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import dblquad
from scipy.linalg import subspace_angles
from scipy.special import erf

from dorff import ORFFRegressor, kernels
from dorff.errors import InputError
from dorff.kernels import Angle, Category, ColumnBlock, Layer, Sign, Skeleton, SkeletonNode, Sphere
from dorff.kernels.conjugates import FEW_CALLS, TABLE, Heaviside, Relu, Series, conjugate_of
from dorff.kernels.spaces import space_of

WORDS = (
    "relu", "step", "erf", "identity", "exponential", {"exponential": 0.25}, {"polynomial": 3},
    {"power_series": [0.2, 0.0, 1.8]},
)  # fmt: skip
DEEP = Skeleton([Layer(5, 2, {"exponential": 0.25}), Layer(4, 2), Layer()], shape=(24, 24, 3))
MIXED = Skeleton(
    [Layer(activation="erf")],
    inputs=[Angle([0.5, 2.0], columns=[0, 3]), Sign(columns=1), Category(5, columns=2),
            ColumnBlock(kernels.Matern(0.7), columns=[4, 5])],
)  # fmt: skip
MIXED_SPHERE = Skeleton([Layer(activation="identity")], inputs=[Angle(columns=0), Sphere(columns=[1, 2])])
SPHERE = kernels.Decomposable(Skeleton([Layer(activation="identity")], inputs=Sphere()))
NAMED = Skeleton(
    nodes={
        "left": SkeletonNode([0, 1, 2], {"polynomial": 2}),
        "right": SkeletonNode([2, 3]),
        "top": SkeletonNode(["left", "right", "right", 4], "step"),
    }
)


@pytest.mark.parametrize("word", WORDS, ids=str)
def test_a_conjugate_is_its_series_and_its_words(word):
    f = conjugate_of(word)
    assert f(np.array([1.0, 1.0 + 1e-15])) == pytest.approx([1.0, 1.0], abs=1e-7)
    assert conjugate_of(json.loads(json.dumps(f.config()))) == f
    rho = np.array([-0.9, -0.3, 0.0, 0.4, 0.8])
    if isinstance(f, Series):
        np.testing.assert_allclose(np.polynomial.polynomial.polyval(rho, f.table), f(rho), atol=1e-15)
        assert np.all(f.table >= 0) and f.table.sum() <= 1 + 1e-14
    if math.isfinite(f.slope):
        step = 1e-6
        inside = np.array([1.0 - 2 * step, 1.0])
        assert np.diff(f(inside))[0] / (2 * step) == pytest.approx(f.slope, rel=2e-3)


@pytest.mark.parametrize("word", WORDS, ids=str)
def test_a_conjugate_has_derivatives(word):
    f, rho, step = conjugate_of(word), np.array([-0.9, -0.3, 0.0, 0.4, 0.95]), 1e-4
    low, middle, high = f(rho - step), f(rho), f(rho + step)
    first, second = f.derivatives(rho)
    np.testing.assert_allclose(first, (high - low) / (2 * step), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(second, (high - 2 * middle + low) / step**2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("word", WORDS, ids=str)
def test_a_conjugate_grows_as_its_series(word):
    """Beyond 1 it is infinite where the series diverges: f(1.2), by more and more of its terms."""
    f = conjugate_of(word)
    assert f.growth(1.0) == pytest.approx(1.0)
    if word in ("relu", "step"):
        assert math.isinf(f.growth(1.0 + 1e-9))
    elif isinstance(f, Series):
        assert f.growth(1.2) == pytest.approx(math.fsum(a * 1.2**n for n, a in enumerate(f.table)))
        assert math.isinf(f.growth(1.6)) == (word == "erf")
    else:
        assert f.growth(1.2) == pytest.approx(math.exp(f.rate * 0.2)) and math.isfinite(f.growth(1e6))


@pytest.mark.parametrize(
    "word, activation",
    [
        ("relu", lambda x: math.sqrt(2) * max(x, 0.0)),
        ("step", lambda x: math.sqrt(2) * (x > 0)),
        ("erf", lambda x: erf(x) / math.sqrt(2 / math.pi * math.asin(2 / 3))),
        ({"exponential": 1.0}, lambda x: math.exp(x - 1.0)),
    ],
    ids=["relu", "step", "erf", "exponential"],
)
def test_a_conjugate_is_the_mean_of_its_activation(word, activation):
    """E s(x) s(z), x and z normal of correlation 0.6, by integration."""
    rho, f = 0.6, conjugate_of(word)

    def integrand(v, u):
        return activation(u) * activation(rho * u + 0.8 * v) * math.exp(-(u * u + v * v) / 2) / (2 * math.pi)

    low = 0.0 if word in ("relu", "step") else -8.0
    kink = (lambda u: -rho * u / 0.8) if word in ("relu", "step") else (lambda u: -8.0)
    mean = dblquad(integrand, low, 8.0, kink, lambda u: 8.0, epsabs=1e-7)[0]
    assert mean == pytest.approx(float(f(np.array([rho]))[0]), abs=1e-5)


@pytest.mark.parametrize("word", WORDS, ids=str)
@pytest.mark.parametrize("calls", [1, 3, 60, FEW_CALLS, FEW_CALLS + 1])
def test_sums_of_degrees_are_drawn_by_the_series(word, calls):
    """E rho^l over the sum l of so many degrees is f(rho)^calls, at any rho."""
    f = conjugate_of(word)
    degrees = f.sums(np.random.default_rng(calls), np.full(4000 if calls < FEW_CALLS else 1500, calls))
    rho = np.array([-0.7, 0.3, 0.9, 0.999, 1 - 1e-4, 1 - 1e-6, 1 - 1e-8])
    likely = f(rho) ** calls
    rho = rho[(np.abs(likely) > 1e-3) & (likely < 0.98)]  # of what hardly ever happens a sample says nothing
    assert degrees.dtype == np.int64 and degrees.min() >= 0
    assert_mean(rho ** degrees[:, None].astype(float), f(rho) ** calls)


class Bent(Heaviside):
    """Coefficients whose first ones beyond the table are three times what their tail says."""

    def falling(self, u):
        return super().falling(u) * (1 + 4000 * u)


@pytest.mark.parametrize("f", [Heaviside(), Relu(), Bent()], ids=["step", "relu", "bent"])
def test_degrees_beyond_the_table_have_the_series_law(f):
    """P(l >= 4 TABLE) and P(l >= 64 TABLE), given that l is beyond the table, by the coefficients themselves."""
    degrees = f.tail(np.random.default_rng(3), 200_000)
    assert degrees.min() >= TABLE and np.all((degrees - f.first) % 2 == 0)
    k = np.arange((TABLE - f.first + 1) // 2, 4 * 10**6, dtype=float)
    a = f.falling(1 / k) * k ** (-f.power - 1)
    rest = a[-1] * k[-1] / f.power  # the integral of what is left
    for times in (4, 64):
        share = (a[2 * k + f.first >= times * TABLE].sum() + rest) / (a.sum() + rest)
        assert_mean(degrees >= times * TABLE, share)


def test_the_coefficients_go_on_as_they_fall():
    """What the table ends with is what the tail begins with."""
    for f in (Heaviside(), Relu()):
        k = np.array([1000.0, 1500.0, 2040.0])
        table = f.table[(2 * k + f.first).astype(int)]
        falling = f.falling(1 / k) * k ** (-f.power - 1)
        np.testing.assert_allclose(table / falling, table[0] / falling[0], rtol=1e-12)


def recursive(skeleton, number, x, z, d):
    """The kernel at a node by the recurrence, one pair at a time; base kernels by their formulas."""
    graph = skeleton.graph(d)
    if number < graph.inputs:
        for space, columns, first in graph.spaces:
            if first <= number < first + space.nodes(len(columns)):
                at = number - first
                if isinstance(space, Angle):
                    s = np.broadcast_to(space.lengthscale, len(columns))[at]
                    return math.cos((x[columns[at]] - z[columns[at]]) / s)
                if isinstance(space, Sign):
                    return x[columns[at]] * z[columns[at]]
                if isinstance(space, Category):
                    return float(x[columns[at]] == z[columns[at]])
                if isinstance(space, Sphere):
                    return math.cos(subspace_angles(x[columns, None], z[columns, None])[0]) * np.sign(
                        x[columns] @ z[columns]
                    )
                return float(space.scalar.gram(x[None, columns], z[None, columns])[0, 0])
    of, conjugate = graph.nodes[number - graph.inputs]
    mean = np.mean([recursive(skeleton, one, x, z, d) for one in of])
    return float(conjugate(np.array([mean]))[0])


def rows(rng, n):
    """Six columns: angles, but a sign and a category."""
    X = rng.uniform(0, 2, (n, 6))
    X[:, 1], X[:, 2] = rng.choice([-1.0, 1.0], n), rng.integers(0, 5, n)
    return X


ROUND = Skeleton(
    [Layer(activation={"exponential": 2.0})],
    inputs=[Sphere(columns=[1, 0, 3]), Angle(columns=2), Sphere("directions", columns=[4, 5])],
)


@pytest.mark.parametrize(
    "skeleton", [MIXED, NAMED, ROUND, Skeleton([Layer(2), Layer(activation="identity")], shape=(3, 2))]
)
def test_a_kernel_is_its_recurrence(skeleton):
    rng = np.random.default_rng(0)
    X, Z = rows(rng, 4), rows(rng, 3)
    graph = skeleton.graph(6)
    last = graph.inputs + len(graph.nodes) - 1
    exact = [[recursive(skeleton, last, x, z, 6) for z in Z] for x in X]
    np.testing.assert_allclose(skeleton.gram(X, Z), exact, atol=1e-13)
    np.testing.assert_allclose(np.diag(skeleton.gram(X, X)), 1.0, atol=1e-7)


def test_a_kernel_of_many_rows_is_made_of_a_few_at_a_time(monkeypatch):
    X, Z = np.random.default_rng(0).uniform(0, 2, (2, 9, 3))
    smooth = SMOOTH["windows"]
    whole = smooth.gram(X, Z), smooth.hessian(X, Z)
    monkeypatch.setattr("dorff.kernels.skeleton._NUMBERS", 50)
    np.testing.assert_allclose(smooth.gram(X, Z), whole[0], rtol=1e-13)
    np.testing.assert_allclose(smooth.hessian(X, Z), whole[1], rtol=1e-12, atol=1e-14)


@LAW
@given(st.data())
def test_layers_are_their_windows(data):
    """A convolution of one axis, a pooling and a full layer, against loops over places and channels."""
    length, channels = data.draw(st.integers(2, 9)), data.draw(st.integers(1, 3))
    size, stride = data.draw(st.integers(1, length)), data.draw(st.integers(1, 4))
    skeleton = Skeleton([Layer(size, stride, "erf"), Layer(1, 1, "identity"), Layer()], shape=(length, channels))
    rng = np.random.default_rng(0)
    X, Z = rng.uniform(0, 2, (2, 2, length, channels))
    waves = np.cos(X[:, None] - Z[None])
    first = [
        conjugate_of("erf")(waves[:, :, at : at + size].mean(axis=(2, 3))) for at in range(0, length - size + 1, stride)
    ]
    exact = conjugate_of("relu")(np.mean(first, axis=0))
    np.testing.assert_allclose(skeleton.gram(X.reshape(2, -1), Z.reshape(2, -1)), exact, atol=1e-13)


def test_images_have_as_many_nodes_as_windows():
    """Of 24 x 24 pixels 10 x 10, 4 x 4 and 1 node; a window sees all channels; C(S) is a product (eq. 11)."""
    graph = DEEP.graph(24 * 24 * 3)
    assert len(graph.nodes) == 100 + 16 + 1
    pixels = np.arange(24 * 24 * 3).reshape(24, 24, 3)
    np.testing.assert_array_equal(graph.nodes[11][0], pixels[2:7, 2:7].ravel())  # the second row, second place
    assert DEEP.complexity(24 * 24 * 3) == pytest.approx(0.25)
    wide = Skeleton([Layer((2, 3), (1, 2), "identity"), Layer()], shape=(3, 5, 1))
    np.testing.assert_array_equal(wide.graph(15).nodes[3][0], [7, 8, 9, 12, 13, 14])


SMOOTH = {
    "exponential": Skeleton([Layer(activation={"exponential": 2.0})]),
    "windows": Skeleton([Layer(2, 1, "erf"), Layer()], shape=(3, 1), inputs=Angle([0.5, 1.0, 2.0])),
    "block": Skeleton(
        [Layer(activation={"polynomial": 3})],
        inputs=[Angle(columns=[1]), ColumnBlock(kernels.Gaussian([0.7, 1.2]), columns=[2, 0])],
    ),
    "both": Skeleton(
        [Layer()], inputs=[Angle(columns=0), ColumnBlock(kernels.Gaussian(0.7), columns=[0, 1]), Angle(columns=2)]
    ),
    "named": Skeleton(
        nodes={
            "a": SkeletonNode([0, 1, 1], "relu"),
            "top": SkeletonNode(["a", "a", 2], {"power_series": [0.1, 0.3, 0.6]}),
        }
    ),
}  # fmt: skip


@pytest.mark.parametrize("skeleton", SMOOTH.values(), ids=SMOOTH)
def test_the_hessian_is_that_of_the_values(skeleton):
    """By central differences, in which relu has an error of their step at x = z; there it is minus the moments."""
    X, Z = np.random.default_rng(0).uniform(0, 2, (2, 3, 3))
    X[0] = Z[0]
    H, steps = skeleton.hessian(X, Z), 1e-4 * np.eye(3)
    for i, j in product(range(3), repeat=2):
        signs = ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))
        values = sum(sign * skeleton.gram(X + a * steps[i] + b * steps[j], Z) for a, b, sign in signs)
        np.testing.assert_allclose(H[..., i, j], values / 4e-8, atol=1e-4)
    moments = np.diag(skeleton.second_moments(3))
    np.testing.assert_allclose(-H[0, 0], moments, atol=1e-12)
    np.testing.assert_allclose(skeleton.hessian(X[:1], X[:1] + 1e-9)[0, 0], -moments, atol=1e-6)
    assert np.isfinite(skeleton.hessian(X, X + np.pi)).all()


def test_a_node_over_a_block_of_columns_is_its_kernel():
    """With activation identity the Gaussian kernel itself."""
    X, Z = np.random.default_rng(0).normal(size=(2, 5, 3))
    gaussian = kernels.Gaussian([0.5, 1.0, 2.0])
    one = Skeleton([Layer(activation="identity")], inputs=ColumnBlock(gaussian))
    np.testing.assert_allclose(one.gram(X, Z), gaussian.gram(X, Z), rtol=1e-14)


def test_a_circle_of_many_is_a_gaussian_of_chords():
    """exp((rho - 1) n / s^2) over circles is exp(-|x - z|^2 / (2 s^2)) of the points on them (section 5)."""
    X, Z = np.random.default_rng(0).uniform(0, 6, (2, 5, 4))
    over = Skeleton([Layer(activation={"exponential": 4 / 0.9**2})]).gram(X, Z)
    chords = [np.concatenate([np.cos(one), np.sin(one)], axis=1) for one in (X, Z)]
    np.testing.assert_allclose(over, kernels.Gaussian(0.9).gram(*chords), rtol=1e-12)


@pytest.mark.parametrize("skeleton", [DEEP, MIXED, NAMED, ROUND], ids=["deep", "mixed", "named", "round"])
def test_a_skeleton_is_its_configuration(skeleton):
    written = json.loads(json.dumps(skeleton.config()))
    again = kernels.scalar_from_config(written)
    assert again == skeleton and hash(again) == hash(skeleton) and again.config() == skeleton.config()


@pytest.mark.parametrize("skeleton", [DEEP, MIXED, NAMED, ROUND], ids=["deep", "mixed", "named", "round"])
def test_a_skeleton_takes_its_own_parameters(skeleton):
    """As scikit-learn's searches set one of them."""
    given = skeleton.__class__(
        skeleton.layers, inputs=skeleton.inputs, shape=skeleton.shape, nodes=skeleton.nodes
    )  # fmt: skip
    assert given == skeleton
    regressor = ORFFRegressor(kernel=kernels.Decomposable(skeleton))
    turned = regressor.set_params(kernel__scalar__inputs=Sphere()).kernel.scalar
    assert turned.inputs == (Sphere(),) and (turned.layers, turned.nodes) == (skeleton.layers, skeleton.nodes)


def test_what_has_a_mean_square_is_taken():
    """A feature's squares grow with the mean of its node's factors; far beyond what numbers hold they are cut."""
    for activation, inputs, d in (
        ("erf", Sphere(), 3),
        ("relu", Sphere(), 2),
        ("erf", [Sphere(columns=[0, 1, 2, 3]), Angle(columns=4)], 5),
        ("exponential", Sphere(), 3000),
    ):
        Skeleton([Layer(activation=activation)], inputs=inputs).check_random_features(d)
    Skeleton(
        [Layer(activation="exponential"), Layer(activation={"polynomial": 2})], inputs=Sphere()
    ).check_random_features(3000)
    assert not ROUND.shift_invariant and MIXED.shift_invariant
    assert SkeletonNode([np.int64(0), 1]) == SkeletonNode([0, 1])


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_length_of_a_sphere_has_no_effect(scale):
    X, Z = np.random.default_rng(0).normal(size=(2, 4, 3))
    np.testing.assert_allclose(SPHERE.scalar.gram(X * scale, Z), SPHERE.scalar.gram(X, Z), atol=1e-14)


ROWS = np.array([[0.3, 1.0, 0.0, 2.0, 0.1, 0.2], [0.1, -1.0, 1.0, np.nan, 0.0, 0.5]])
CODED = Skeleton([Layer()], inputs=Category(3))


def test_rows_that_fit_are_taken():
    """Signs, whole numbers less than `values` apart, gaps; and angles that are scaled."""
    MIXED.check_rows(ROWS, scaled=False)
    CODED.check_rows(np.array([[7.0], [np.nan], [9.0]]), scaled=False)
    CODED.check_rows(np.full((2, 1), np.nan), scaled=False)
    NAMED.check_rows(ROWS, scaled=True)


def test_categories_are_equal_or_not_whatever_they_are_centred_by():
    X = np.array([[0.0], [1.0], [2.0], [5.0]])
    exact = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    identity = Skeleton([Layer(activation="identity")], inputs=Category(3))
    np.testing.assert_array_equal(identity.gram(X, X), exact)
    np.testing.assert_array_equal(identity.gram(X - 1.7, X - 1.7), exact)


def test_power_series_are_read_again_as_they_are():
    rng = np.random.default_rng(0)
    for size in range(2, 200):
        f = conjugate_of({"power_series": rng.uniform(0, 1, size).tolist()})
        assert conjugate_of(f.config()) == f
    assert conjugate_of({"power_series": [1e308, 1e308]}).config() == {"power_series": [0.5, 0.5]}


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Skeleton(), "either layers or nodes"),
        (lambda: Skeleton([Layer()], nodes={"a": {"of": [0]}}), "either layers or nodes"),
        (lambda: Skeleton([Layer()], shape=(4,)), "shape must be a list of places along each axis, then channels"),
        (lambda: Skeleton(nodes={"a": {"of": [0]}}, shape=(2, 2)), "shape is of inputs that have layers"),
        (lambda: Skeleton([Layer(activation="tanh")]), "activation must be one of relu, step, .* not 'tanh'"),
        (lambda: conjugate_of({"power_series": [1.0, 0.0]}), "not all of them 0 beyond the first"),
        (lambda: conjugate_of({"power_series": [0.5, -0.5]}), "numbers of 0 or more"),
        (lambda: conjugate_of({"exponential": 0}), "activation exponential must be a positive"),
        (lambda: conjugate_of({"polynomial": 0}), "activation polynomial must be a whole number from 1 to 64"),
        (lambda: conjugate_of({"power_series": {"a": 1}}), "power_series must be a list of 2 to"),
        (lambda: conjugate_of({"power_series": ["a", "b"]}), "power_series must be a list of 2 to"),
        (lambda: conjugate_of({"power_series": [[1], [1, 2]]}), "power_series must be a list of 2 to"),
        (lambda: conjugate_of({"power_series": [True, True]}), "power_series must be a list of 2 to"),
        (lambda: conjugate_of({"exponential": 1e19}), "activation exponential must be 10000 at most"),
        (
            lambda: Skeleton([Layer(activation={"exponential": 1e3})] * 2).check_random_features(2),
            "may have 1e.06 factors on average",
        ),
        (lambda: Skeleton(5), r"layers must be a list of layers, such as .*, not 5"),
        (lambda: Skeleton(nodes=5), "nodes must be a mapping of nodes by name, not 5"),
        (lambda: Skeleton([5]), "layers: a layer must be a mapping of size, stride, activation, not 5"),
        (lambda: Skeleton([{"foo": 1}]), "layers: a layer: foo is not known, .* it takes size, stride, activation"),
        (lambda: Skeleton(nodes={"a": 3}), "nodes: a node must be a mapping of of, activation, not 3"),
        (lambda: Skeleton(nodes={"a": {}}), "nodes: a node: of is missing"),
        (lambda: Layer("step"), "size must be a whole number of 1 or more, not 'step'"),
        (lambda: Angle(columns=1.5), "a column of angle must be a whole number of 0 or more, not 1.5"),
        (lambda: MIXED_SPHERE.check_rows(ROWS, scaled=True), "standardize: inputs of sphere have values"),
        (lambda: Skeleton([Layer()], inputs=[]), "inputs: an empty list"),
        (lambda: SkeletonNode([1.0, 0]), "`of` must be a list"),
        (lambda: ColumnBlock(DEEP), "block needs a shift-invariant scalar kernel"),
        (lambda: MIXED.check_rows(ROWS + 0.5 * (np.arange(6) == 1), scaled=False), "columns of sign must be -1 or 1"),
        (lambda: MIXED.check_rows(ROWS + 0.5 * (np.arange(6) == 2), scaled=False), "category must be whole numbers"),
        (lambda: MIXED.check_rows(ROWS * (1 + 4 * (np.arange(6) == 2)), scaled=False), "numbers that are 5 apart"),
        (lambda: MIXED.check_rows(ROWS, scaled=True), "standardize: inputs of sign have values"),
        (lambda: CODED.check_rows(ROWS[:, 2:3], scaled=True), "standardize: inputs of category have values"),
        (lambda: Layer(None, 2), "a layer without a size has no stride"),
        (lambda: Layer(0), "layers: size must be a whole number of 1"),
        (lambda: SkeletonNode("a"), "`of` must be a list"),
        (lambda: Skeleton([Layer()], inputs=["angle", "sign"]), "of several spaces each needs its columns"),
        (lambda: space_of("circle"), "a base space is one of angle, sign, category, sphere, block"),
        (
            lambda: space_of({"type": "category"}),
            "inputs: category: values is missing, in {}; it takes values, columns",
        ),
        (lambda: Category(1), "category: values must be a whole number from 2"),
        (lambda: Sign(columns=[1, 1]), "columns of sign must be whole numbers, each once"),
        (lambda: Sphere("pair"), "scheme of sphere is pairs, coordinates or directions, not 'pair'"),
        (
            lambda: Skeleton([Layer()], inputs=Sphere()).check_random_features(3),
            "relu, step or erf over a sphere are products",
        ),
        (
            lambda: Skeleton([Layer(), Layer(activation="identity")], inputs=Sphere()).check_random_features(3),
            "relu, step or erf",
        ),
        (
            lambda: Skeleton([Layer(), Layer(activation={"exponential": 1.0})], inputs=Sphere()).check_random_features(
                3
            ),
            "relu, step",
        ),
        (
            lambda: Skeleton([Layer()], inputs=[Sphere(columns=0), Sphere(columns=[1, 2, 3])]).check_random_features(4),
            "relu, step",
        ),
        (
            lambda: Skeleton([Layer()], inputs=Sphere("coordinates")).check_random_features(2),
            "relu, step or erf over a sphere",
        ),
        (
            lambda: Skeleton([Layer(activation="erf")], inputs=Sphere()).check_random_features(4),
            "relu, step or erf over a sphere",
        ),
        (lambda: kernels.MultiView([(3, SPHERE), (3, SPHERE)]), r"must be shift-invariant, .* which Skeleton has not"),
        (
            lambda: (SPHERE + kernels.Decomposable(kernels.Gaussian(1.0))).fix(3, 2),
            "Skeleton, which is not shift-invariant, needs this one",
        ),
        (lambda: ColumnBlock(kernels.ArcCosine(1)), "block needs a shift-invariant scalar kernel"),
        (lambda: Skeleton([Layer(3)], shape=(4, 1)).check(4), "the last one has .2. places"),
        (lambda: Skeleton([Layer(5)], shape=(4, 1)).check(4), "window of .5. is larger than the layer below, of .4."),
        (lambda: Skeleton([Layer((2, 2))], shape=(4, 1)).check(4), "size has 2 numbers, but places lie along 1 axes"),
        (lambda: Skeleton([Layer()], shape=(4, 1)).check(5), "shape: .4, 1. holds 4 inputs, but there are 5"),
        (lambda: MIXED.check(5), "block has column 5, but there are 5"),
        (lambda: Skeleton([Layer()], inputs=Angle([1.0, 2.0])).gram(*np.zeros((2, 1, 3))), "2 length-scales for 3"),
        (lambda: NAMED.check(4), "top is over 4, which is not an input node, 0 to 3"),
        (lambda: Skeleton(nodes={"a": {"of": ["b"]}, "b": {"of": [0]}}).check(1), "a is over 'b', which is not"),
        (lambda: Skeleton(nodes={"a": {"of": [0]}, "b": {"of": [0]}}).check(1), "no node is over 'a'"),
        (
            lambda: Skeleton([Layer(activation="step"), Layer(activation="step")]).check_random_features(2),
            "step is over another step",
        ),
        (
            lambda: Skeleton([Layer(activation="step")], inputs=MIXED.inputs).check_random_features(6),
            "a block that is not gaussian",
        ),
        (lambda: Skeleton([Layer(1), Layer()], shape=(100_001, 1)).check(100_001), "more than 100000 nodes"),
        (lambda: kernels.CurlFree(MIXED), "over angles and blocks of a gaussian, but here is an input of sign"),
        (lambda: kernels.CurlFree(SPHERE.scalar), "but here is an input of sphere"),
        (lambda: kernels.CurlFree(NAMED), "but here is a step"),
        (lambda: kernels.DivergenceFree(Skeleton([Layer()], inputs=MIXED.inputs[3])), "but here is an input of block"),
        (lambda: kernels.scalar_from_config({"type": "skeleton", "layer": []}), "kernel.scalar.layer is not known"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InputError) as raised:
        make()
    assert re.search(message, str(raised.value)), raised.value
