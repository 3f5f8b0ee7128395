"""Butterflies, simplices and rules against their dense products and the paper's printed matrix."""

import numpy as np
import pytest
from dense_butterfly import butterfly_matrix
from hypothesis import given, settings
from hypothesis import strategies as st

from dorff.errors import InputError
from dorff.loops import butterfly_rules, simplex_vertices

EPS = np.finfo(float).eps
UNTOUCHED = 7.0


def strides(d):
    return [2**k for k in range(20) if 2**k < d]


def groups(d, stride):
    """For each group of the stage, its pairs: i and i + stride, both below d."""
    found = []
    for start in range(0, d, 2 * stride):
        pairs = [(i, i + stride) for i in range(start, start + stride) if i + stride < d]
        if pairs:
            found.append(pairs)
    return found


def factors(cosines, sines):
    """The butterfly's factors, stride 1 first, written out from the definition."""
    d, angle = len(cosines) + 1, 0
    for stride in strides(d):
        factor = np.eye(d)
        for pairs in groups(d, stride):
            c, s = cosines[angle], sines[angle]
            angle += 1
            for i, j in pairs:
                factor[i, i], factor[i, j], factor[j, i], factor[j, j] = c, -s, s, c
        yield factor


def angles(seed, *shape):
    theta = np.random.default_rng(seed).uniform(0, 2 * np.pi, shape)
    return np.cos(theta), np.sin(theta)


def test_there_are_d_minus_1_angles_for_every_d():
    for d in range(1, 600):
        assert sum(len(groups(d, stride)) for stride in strides(d)) == d - 1


def test_agrees_with_the_printed_matrix():
    """Munkhoeva et al. (2018), section 2.4, d = 4; its theta_1, theta_3, theta_2 are our angles 0, 1, 2."""
    (c1, c3, c2), (s1, s3, s2) = angles(0, 3)
    printed = [
        [c1 * c2, -s1 * c2, -c1 * s2, s1 * s2],
        [s1 * c2, c1 * c2, -s1 * s2, -c1 * s2],
        [c3 * s2, -s3 * s2, c3 * c2, -s3 * c2],
        [s3 * s2, c3 * s2, s3 * c2, c3 * c2],
    ]
    assert np.allclose(butterfly_matrix(np.array([c1, c3, c2]), np.array([s1, s3, s2])), printed, rtol=0, atol=1e-15)


@pytest.mark.parametrize("d", [*range(1, 36), 63, 64, 65, 100])
def test_matrix_is_the_product_of_its_factors_and_orthogonal(d):
    c, s = angles(d, d - 1)
    B = butterfly_matrix(c, s)
    product = np.eye(d)
    for factor in factors(c, s):
        product = product @ factor
    assert np.allclose(B, product, rtol=0, atol=1e-14)
    assert np.allclose(B @ B.T, np.eye(d), rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 40, 300])
def test_vertices_are_a_regular_simplex(d):
    V = simplex_vertices(d)
    assert V.shape == (d + 1, d)
    assert np.allclose(V @ V.T, (1 + 1 / d) * np.eye(d + 1) - 1 / d, rtol=0, atol=1e-14)
    assert np.allclose(V.sum(axis=0), 0, rtol=0, atol=1e-12)
    assert np.allclose(V.T @ V, (d + 1) / d * np.eye(d), rtol=0, atol=1e-13)
    with pytest.raises(InputError, match="d must be 1 or more"):
        simplex_vertices(0)


def butterfly(x, cosines, sines, out):
    """The rotation alone: a rule of one factor, nothing permuted."""
    d = x.shape[1]
    order = np.arange(d, dtype=np.int32).reshape(1, 1, d)
    butterfly_rules(x, np.ones(d), order, cosines[None, None], sines[None, None], False, np.arange(d), np.ones(d), out)


def simplex_product(x, out):
    """The products with a simplex's vertices alone: a rule of one factor that turns nothing."""
    d = x.shape[1]
    order, still = np.arange(d, dtype=np.int32).reshape(1, 1, d), np.zeros((1, 1, d - 1))
    butterfly_rules(x, np.ones(d), order, still + 1, still, True, np.arange(d + 1), np.ones(d + 1), out)


def wide(loop, x, columns, *arguments, extra=2):
    """The loop into a wider buffer, with a check that nothing else of it was written."""
    out = np.full((len(x), columns + extra), UNTOUCHED)
    loop(x, *arguments, out)
    assert np.all(out[:, columns:] == UNTOUCHED)
    return out[:, :columns]


def close(got, expected, x, steps):
    """Within so many roundings of each row's length."""
    bound = steps * EPS * np.linalg.norm(x, axis=1, keepdims=True)
    return np.all(np.abs(got - expected) <= bound)


@settings(max_examples=40)
@given(b=st.integers(0, 20), d=st.integers(1, 150), extra=st.integers(0, 2), seed=st.integers(0, 2**32 - 1))
def test_rows_agree_with_the_dense_products(b, d, extra, seed):
    x = np.random.default_rng(seed).normal(size=(b, d))
    c, s = angles(seed, d - 1)
    exact = x @ butterfly_matrix(c, s).T
    assert close(wide(butterfly, x, d, c, s, extra=extra), exact, x, 2 * d.bit_length() + 2)
    exact = x @ simplex_vertices(d).T
    assert close(wide(simplex_product, x, d + 1, extra=extra), exact, x, 8 + d)


@pytest.mark.parametrize("d", [511, 512, 513, 784, 1025, 3072])
def test_large_butterflies_agree_with_the_dense_product(d):
    x = np.random.default_rng(d).normal(size=(9, d))
    c, s = angles(d, d - 1)
    turned = x.T.copy()
    angle = d - 1
    for stride in reversed(strides(d)):
        found = groups(d, stride)
        angle -= len(found)
        for k, pairs in enumerate(found):
            i, j = np.array(pairs).T
            p, q = turned[i], turned[j]
            turned[i] = c[angle + k] * p - s[angle + k] * q
            turned[j] = s[angle + k] * p + c[angle + k] * q
    assert close(wide(butterfly, x, d, c, s), turned.T, x, 30)


# Rules


def draw(seed, *, d, B, K, simplex, share):
    rng = np.random.default_rng(seed)
    stretch = rng.uniform(0.5, 2, d)
    order = [[rng.permutation(d) for _ in range(K)] for _ in range(B)]
    end = B * (d + simplex)
    rows = np.sort(rng.choice(end, int(share * end), replace=False))
    gains = rng.uniform(-2, 2, len(rows))
    permutations = np.array(order, np.int32).reshape(B, K, d)
    return stretch, permutations, *angles(seed, B, K, d - 1), simplex, rows, gains


def dense(x, stretch, permutations, cosines, sines, simplex, rows, gains):
    rules = [np.empty((len(x), 0))]
    for order, c, s in zip(permutations, cosines, sines, strict=True):
        y = x * stretch
        for f in range(len(order)):
            y = y[:, order[f]] @ butterfly_matrix(c[f], s[f]).T
        rules.append(y @ simplex_vertices(x.shape[1]).T if simplex else y)
    return np.hstack(rules)[:, rows] * gains


@settings(max_examples=40)
@given(
    b=st.integers(0, 20),
    d=st.integers(1, 60),
    B=st.integers(0, 3),
    K=st.integers(1, 3),
    simplex=st.booleans(),
    share=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    extra=st.integers(0, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_rules_agree_with_the_dense_product(b, d, B, K, simplex, share, extra, seed):
    arguments = draw(seed, d=d, B=B, K=K, simplex=simplex, share=share)
    x = np.random.default_rng(seed + 1).normal(size=(b, d))
    got = wide(butterfly_rules, x, len(arguments[-1]), *arguments, extra=extra)
    assert close(got, dense(x, *arguments), 4 * x, (2 * K * d.bit_length() + 8 + d))


@pytest.mark.parametrize("d", [1, 2, 3, 21, 50, 785])
def test_a_row_has_the_same_bits_in_any_block(d):
    arguments = draw(d, d=d, B=2, K=2, simplex=True, share=0.8)
    for array in arguments:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    x = np.random.default_rng(d).normal(size=(37, d))
    D = len(arguments[-1])
    loops = {
        butterfly_rules: (D, *arguments),
        butterfly: (d, arguments[2][0, 0], arguments[3][0, 0]),
        simplex_product: (d + 1,),
    }
    for loop, rest in loops.items():
        whole = wide(loop, x, *rest)
        for start, stop in [(0, 1), (36, 37), (3, 20), (5, 13), (30, 37)]:
            assert np.array_equal(wide(loop, x[start:stop], *rest), whole[start:stop])
        strided = np.zeros((37, d + 4))
        strided[:, 1 : d + 1] = x
        assert np.array_equal(wide(loop, strided[:, 1 : d + 1], *rest), whole)


X = np.zeros((4, 6))
FITS = dict(
    x=X,
    stretch=np.ones(6),
    permutations=np.zeros((2, 3, 6), np.int32),
    cosines=np.ones((2, 3, 5)),
    sines=np.ones((2, 3, 5)),
    simplex=True,
    rows=np.arange(9, 14),
    gains=np.ones(5),
    out=np.zeros((4, 5)),
)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("x", X.astype(int), "x must be a float64 matrix"),
        ("x", X[:, :0], "permutations must be .* with at least one column"),
        ("stretch", np.ones(5), r"stretch must be C-contiguous float64 of shape \(6,\)"),
        ("permutations", np.zeros((2, 3, 5), np.int32), r"permutations must be of shape \(rules, 1 or more, 6\)"),
        ("permutations", np.zeros((2, 0, 6), np.int32), r"permutations must be of shape \(rules, 1 or more, 6\)"),
        ("permutations", np.zeros((2, 3, 6), int), "permutations must be C-contiguous int32"),
        ("permutations", np.full((2, 3, 6), 6, np.int32), r"permutations must lie in \[0, 6\)"),
        ("permutations", np.full((2, 3, 6), -1, np.int32), r"permutations must lie in \[0, 6\)"),
        ("cosines", np.ones((2, 3, 6)), r"cosines must be C-contiguous float64 of shape \(2, 3, 5\)"),
        ("sines", np.ones((2, 3, 5), np.float32), r"sines must be C-contiguous float64 of shape \(2, 3, 5\)"),
        ("simplex", False, r"rows must ascend within \[0, 12\)"),
        ("rows", np.arange(10, 15), r"rows must ascend within \[0, 14\)"),
        ("rows", np.array([0, 2, 1, 3, 4]), r"rows must ascend within \[0, 14\)"),
        ("gains", np.ones(4), r"gains must be C-contiguous float64 of shape \(5,\)"),
        ("out", np.zeros((4, 4)), r"out must be float64 of shape \(4, 5 or more\)"),
        ("out", X, "out must not overlap x"),
    ],
)
def test_rules_refuse_what_does_not_fit(name, value, words):
    butterfly_rules(**FITS)
    with pytest.raises(InputError, match=words):
        butterfly_rules(**FITS | {name: value})
