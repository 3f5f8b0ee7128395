"""Every scalar kernel, sampler and measure inside every operator kernel: the feature gram has the right mean, or an
InputError says why there is none.

The right mean is the exact gram, or for samplers that are biased what their formulas give, worked out over all signs
or nodes; its distance from the exact gram is then the bias that is told of them. Draws are as close to it as their
own standard error says, which is `CLOSE` at most. As a script it prints the page's tables.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.linalg import hadamard

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.features.recipe import Drawn
from dorff.kernels import BaseKernel, Decomposable, GaussianWeighted, Measure, OperatorKernel, ScalarKernel, Spectral
from dorff.kernels.scalar import FloatArray
from dorff.model.weights import operator_weights

MARKS = ("<!-- combinations -->", "<!-- /combinations -->")
SEVERAL = (0.9, 1.1, 1.4)
A, B = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 0.4]]), np.diag([1.0, 0.2, 0.5])

#: Rows of the table; where there are two kernels both are tried.
SCALARS: dict[str, tuple[ScalarKernel, ...]] = {
    "Gaussian": (kernels.Gaussian(1.0), kernels.Gaussian(SEVERAL)),
    "Matern, nu > 1": (kernels.Matern(1.0, nu=3.5), kernels.Matern(SEVERAL, nu=3.5)),
    "Matern, nu <= 1": (kernels.Matern(1.0, nu=0.5), kernels.Matern(SEVERAL, nu=1.0)),
    "rational quadratic": (kernels.RationalQuadratic(1.0, alpha=2.5), kernels.RationalQuadratic(SEVERAL, alpha=2.5)),
    "Cauchy": (kernels.Cauchy(1.5), kernels.Cauchy(SEVERAL)),
    "Laplacian": (kernels.Laplacian(1.5), kernels.Laplacian(SEVERAL)),
    "arc-cosine": (kernels.ArcCosine(0), kernels.ArcCosine(1)),
    "pointwise": (kernels.Pointwise("erf"), kernels.Pointwise("softplus")),
    "polynomial": (kernels.Polynomial(2, scale=0.5),),
    "Mercer": (kernels.Mercer.named("brownian", 60),),
}
#: Those with vector fields.
SMOOTH = ("Gaussian", "Matern, nu > 1", "rational quadratic", "Cauchy")
SAMPLERS: dict[str, frequencies.Sampler] = {
    "iid": frequencies.IID(),
    "orthogonal": frequencies.Orthogonal(),
    "sorf": frequencies.SORF(),
    "rom": frequencies.ROM(),
    "fastfood": frequencies.Fastfood(),
    "qmc": frequencies.QMC(),
    "gauss_quadrature": frequencies.GaussQuadrature(),
    "quadrature": frequencies.Quadrature(),
    "lattice": frequencies.Lattice(0.1),
}


def wider(scalar: ScalarKernel) -> ScalarKernel:
    """Another kernel of the kind: of longer length-scales where it has any, and so of a narrower spectrum."""
    if isinstance(scalar, Spectral):
        config = scalar.config()
        return kernels.scalar_from_config({**config, "lengthscale": np.multiply(config["lengthscale"], 1.3).tolist()})
    return kernels.ArcCosine(1) if scalar == kernels.ArcCosine(0) else kernels.ArcCosine(0)


def two(scalar: ScalarKernel, *, concatenate: bool = False) -> OperatorKernel:
    parts: list[tuple[float, BaseKernel]] = [
        (1.0, kernels.Decomposable(scalar, A)),
        (0.5, kernels.Decomposable(wider(scalar), B)),
    ]
    return kernels.Sum(parts, concatenate=concatenate)


def density(scalar: ScalarKernel) -> OperatorKernel:
    """The spectral density of `two`, drawn by the spectrum of its first scalar kernel."""
    if not isinstance(scalar, Spectral):
        return kernels.SpectralDensity(lambda omega: omega, scalar, p=3)  # type: ignore[arg-type]
    other = wider(scalar)
    assert isinstance(other, Spectral)

    def mu(omega: FloatArray) -> FloatArray:
        first, second = (np.exp(k.log_density(omega, kernels.Measure.UNBOUNDED)) for k in (scalar, other))
        return first[:, None, None] * A + 0.5 * second[:, None, None] * B

    def signature(delta: FloatArray) -> FloatArray:
        flat = delta.reshape(-1, delta.shape[-1])
        return two(scalar).gram(flat, np.zeros((1, flat.shape[1]))).reshape(*delta.shape[:-1], 3, 3)

    return kernels.SpectralDensity(mu, scalar, p=3, signature=signature)


#: The letters of the table's cells.
OPERATORS: dict[str, tuple[str, Callable[[ScalarKernel], OperatorKernel]]] = {
    "D": ("decomposable", lambda scalar: kernels.Decomposable(scalar, A)),
    "C": ("curl-free", kernels.CurlFree),
    "V": ("divergence-free", kernels.DivergenceFree),
    "H": ("Helmholtz", lambda scalar: 0.4 * kernels.CurlFree(scalar) + 0.6 * kernels.DivergenceFree(scalar)),
    "S": ("a sum of two scalar kernels", two),
    "T": ("the same, concatenated", lambda scalar: two(scalar, concatenate=True)),
    "M": ("a spectral density", density),
}
#: The letters of the second table's cells: measures of vector fields; and the kernels that are tried under each.
MEASURES: dict[str, tuple[str, tuple[Measure, ...]]] = {
    "u": ("unbounded", (Measure.UNBOUNDED,)),
    "t": ("trace", (Measure.TRACE,)),
    "d": ("defensive", (Measure.DEFENSIVE,)),
    "b": ("bounded, with any split", (Measure.bounded(), Measure.bounded(0.3))),
}
FIELDS: dict[str, Callable[[ScalarKernel, Measure], OperatorKernel]] = {
    "C": kernels.CurlFree,
    "V": kernels.DivergenceFree,
    "sum": lambda scalar, law: (
        kernels.CurlFree(scalar, law) * 0.5
        + kernels.DivergenceFree(scalar, "unbounded") * 0.3
        + kernels.Decomposable(wider(scalar), A)
    ),
}
#: Why a letter is missing: what the error says, and what the tables' notes say. Every error has one of them.
REASONS = {
    "second moment": "The scalar kernel is not twice differentiable: its frequencies have no second moments, which "
    "vector fields and quadrature of degree (3,3) are made of (degree (1,3) serves the other operator kernels).",
    "no rotation changes": "Rotations change the spectrum of a product over the inputs, and the trace measure of "
    "unequal length-scales.",
    "normal frequencies only": "Gauss-Hermite nodes are for normal frequencies.",
    "shift-invariant|kernel with a spectrum": "The scalar kernel has no spectrum, and so no vector fields; a sum of "
    "decomposable ones needs the same scalar kernel in all of its terms.",
    "features of its own": "The scalar kernel brings features of its own: there are no frequencies to draw.",
    "no bounded measure": "The bounded measure is the Gaussian's alone.",
    "rule for a spectrum itself": "A rule for the spectrum itself, which it takes where `measure` is left out.",
    "die off too slowly": "The kernel's derivatives die off too slowly: their copies, a period apart, would not.",
}
DRAWS, COLUMNS, CLOSE = 8, 2048, 0.05
#: How far at d = 3 the mean of what is biased may be off (see the docstrings), relative to the gram; a step is no
#: smooth function, which a grid is for.
BIASED = {"sorf": 0.22, "rom": 0.22, "gauss_quadrature": 1e-3}
STEP = 0.08
#: How far a lattice, for which nothing is drawn, may be off: twice its error, as spectra with heavy tails are cut.
CUT = 0.2


def inputs(d: int) -> tuple[FloatArray, FloatArray]:
    X, Z = np.random.default_rng(5).uniform(0.05, 0.95, (2, 3, d))
    return X, Z


#: Draws by what they depend on, which is what `Recipe.question` says and the seed.
DRAWN: dict[tuple[str, int], Drawn] = {}


def feature_gram(kernel: OperatorKernel, column: str, d: int, seed: int) -> FloatArray:
    """Phi(x)* Phi(z) with the centre, (n, k, p, p), by the code of a fit; InputError where it cannot be drawn."""
    sampler, (X, Z) = SAMPLERS[column], inputs(d)
    recipe = Recipe(kernel, sampler, d, 3, COLUMNS, column != "lattice").over(np.outer([0.05, 0.95], np.ones(d)))
    key = json.dumps(recipe.question()), seed
    drawn = DRAWN[key] = DRAWN[key] if key in DRAWN else recipe.draw(seed)
    phi = drawn.phi
    weights = operator_weights(kernel, phi.m, drawn.density)
    products = (phi.transform(X)[:, None] * phi.transform(Z)).reshape(-1, phi.m) * weights.gain**2
    psi = replace(weights, gain=np.ones_like(weights.gain)).psi
    squared = np.einsum("arp,arq->apq", psi, psi)
    gram = (products @ squared.reshape(phi.m, -1)).reshape(len(X), len(Z), 3, 3)
    if sampler.centred:  # what is left to the free intercept
        zero = np.zeros((1, d))
        found = sampler.draw(kernel, d=d, p=3, count=recipe.frequencies, seed=seed)
        centre = float(phi.gram(zero, zero)[0, 0] - np.sum(phi.transform(zero) ** 2))
        for number, (weight, base) in enumerate(kernel.terms()):
            root = base.root(zero)[0]
            gram += weight * (centre if found.centres is None else found.centres[number]) * root.T @ root
    return gram


# The means of what is biased, by hand


def mean_over(base: BaseKernel, points: FloatArray, mass: FloatArray) -> FloatArray:
    """sum_i mass_i k(x, z; omega_i), (n, k, p, p), over the points (N, d) of a law of unit length-scale."""
    X, Z = inputs(points.shape[1])
    scalar = base.scalar
    if isinstance(scalar, GaussianWeighted):
        near, far = (scalar.scale * scalar.activation.function(x @ points.T) for x in (X, Z))
        waves = near[:, None] * far[None]
        omega = points[:1]
    else:
        assert isinstance(scalar, Spectral)
        omega = points * scalar.stretch(points.shape[1])
        waves = np.cos((X[:, None] - Z[None]) @ omega.T)
    root = base.root(omega if not isinstance(base, Decomposable) else omega[:1])
    squared = np.broadcast_to(np.swapaxes(root, 1, 2) @ root, (len(points), *[root.shape[2]] * 2))
    return ((waves * mass).reshape(-1, len(mass)) @ squared.reshape(len(mass), -1)).reshape(3, 3, 3, 3)


@cache
def signed_rows() -> tuple[FloatArray, FloatArray]:
    """All rows that H D3 H D2 H D1 / 8 may have in R^4, up to their sign, and how often each comes."""
    H = hadamard(4) / 2
    signs = np.array(list(product((-1.0, 1.0), repeat=4)))
    first = H * signs[:, None, :]
    rows = np.einsum("aij,bjk,ckl->abcil", first, first, first).reshape(-1, 4)
    rows *= np.where(rows[np.arange(len(rows)), np.argmax(rows != 0, axis=1)] < 0, -1, 1)[:, None]
    unique, counts = np.unique(np.round(rows, 12), axis=0, return_counts=True)
    return unique, counts / counts.sum()


def radial(scalar: Spectral, dimension: int) -> tuple[FloatArray, FloatArray]:
    """Radii and their mass, of the law of unit length-scale in R^dimension: Gauss-Legendre on 0 to 1000."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    edges = np.concatenate([[0.0], np.geomspace(0.1, 10.0, 20), np.arange(15.0, 1001.0, 15.0)])
    half = np.diff(edges)[:, None] / 2
    radii, steps = (edges[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()
    unit = kernels.scalar_from_config({**scalar.config(), "lengthscale": 1.0})
    assert isinstance(unit, Spectral)
    points = np.zeros((len(radii), dimension))
    points[:, 0] = radii
    sphere = 2 * math.pi ** (dimension / 2) / math.gamma(dimension / 2)
    return radii, steps * sphere * radii ** (dimension - 1) * np.exp(unit.log_density(points, Measure.UNBOUNDED))


def mean_of_signs(base: BaseKernel) -> FloatArray:
    """Of SORF and ROM for 3 inputs, padded to 4. The measure is not in it: law and weight cancel.

    Where psi is one matrix: rows of R^4, restricted, at the Gaussian's fixed radius 2 or the law's own. Where it is
    not: their directions in R^3, at radii of the law in R^3.
    """
    rows, often = signed_rows()
    rows = rows[:, :3]
    fixed = isinstance(base.scalar, GaussianWeighted | kernels.Gaussian)
    if isinstance(base, Decomposable) and fixed:
        return (mean_over(base, 2 * rows, often) + mean_over(base, -2 * rows, often)) / 2
    assert isinstance(base.scalar, Spectral)
    radii, mass = radial(base.scalar, 4 if isinstance(base, Decomposable) else 3)
    if not isinstance(base, Decomposable):
        lengths = np.linalg.norm(rows, axis=1)
        seen = lengths > 1e-9
        rows, often = rows[seen] / lengths[seen, None], often[seen] / often[seen].sum()
    return sum(share * mean_over(base, radii[:, None] * row, mass) for row, share in zip(rows, often, strict=True))


def mean_of_nodes(base: BaseKernel) -> FloatArray:
    """Of GaussQuadrature's grid of 8 nodes an axis, which is taken whole."""
    nodes, mass = hermegauss(8)
    cube = np.array(list(product(mass / mass.sum(), repeat=3)))
    return mean_over(base, np.array(list(product(nodes, repeat=3))), cube.prod(axis=1))


def right_mean(kernel: OperatorKernel, column: str, d: int) -> tuple[FloatArray, float]:
    """The mean that draws must have, and how far it may be from the exact gram, relative to that."""
    if column not in BIASED or d == 1:
        return kernel.gram(*inputs(d)), 0.0
    by_hand = mean_of_nodes if column == "gauss_quadrature" else mean_of_signs
    step = column == "gauss_quadrature" and kernel.terms()[0][1].scalar == kernels.ArcCosine(0)
    mean = sum(weight * by_hand(base) for weight, base in kernel.terms())
    return mean, STEP if step else BIASED[column]


def judged(make: Callable[[], OperatorKernel], column: str, d: int, of: tuple[object, ...]) -> str:
    """ "" where draws have the right mean, else why there are none: the error up to its remedy."""
    try:
        kernel = make().fix(d, 3)
        grams = np.array([feature_gram(kernel, column, d, seed) for seed in range(DRAWS)])
    except InputError as error:
        (reason,) = (key for key in REASONS if re.search(key, str(error)))
        return reason
    exact, (mean, bias) = kernel.gram(*inputs(d)), right_mean(kernel, column, d)
    size = np.linalg.norm(exact)
    error = np.linalg.norm(grams.std(axis=0, ddof=1)) / np.sqrt(len(grams))
    off = np.linalg.norm(grams.mean(axis=0) - mean)
    assert off < 4 * error + (CUT if column == "lattice" else 1e-9) * size, (*of, column, off / size, error / size)
    assert error < CLOSE * size, (*of, column, error / size)
    assert np.linalg.norm(mean - exact) <= bias * size, (*of, column, np.linalg.norm(mean - exact) / size)
    return ""


@cache
def outcome(row: str, letter: str, column: str) -> str:
    """ "" where all kernels of a row of the first table are served, else why they are not."""
    d = 1 if row == "Mercer" else 3
    errors = {
        judged(lambda scalar=scalar: OPERATORS[letter][1](scalar), column, d, (row, letter, scalar))
        for scalar in SCALARS[row]
    }
    assert len(errors) == 1, f"{row}: one kernel of the row is served, the other is not"
    return errors.pop()


@cache
def measured(row: str, number: int, law: str, column: str) -> str:
    """ "" where fields of a scalar kernel are served under a measure, else why they are not: the second table."""
    scalar = SCALARS[row][number]
    errors = {
        judged(lambda make=make, one=one: make(scalar, one), column, 3, (scalar, one, name))
        for name, make in FIELDS.items()
        for one in MEASURES[law][1]
    }
    assert len(errors) == 1, f"{row}: one kernel of the row is served under {law}, the other is not"
    return errors.pop()


def table() -> str:
    """The two tables of docs/kernels.md and their notes."""
    head = [f"| | {' | '.join(f'`{column}`' for column in SAMPLERS)} |", "|---" * (len(SAMPLERS) + 1) + "|"]
    first, second = list(head), list(head)
    for row in SCALARS:
        first.append(line(row, OPERATORS, lambda key, column, row=row: outcome(row, key, column)))
    for row in SMOOTH:
        for number, words in enumerate(("one length-scale", "several")):
            ask = lambda key, column, row=row, number=number: measured(row, number, key, column)  # noqa: E731
            second.append(line(f"{row}, {words}", MEASURES, ask))
    legend = "; ".join(f"{letter} {words}" for letter, (words, _) in OPERATORS.items())
    numbered = [f"{number}. {words}" for number, words in enumerate(REASONS.values(), 1)]
    laws = "; ".join(f"{letter} {words}" for letter, (words, _) in MEASURES.items())
    between = f"The `measure` that curl-free and divergence-free kernels, and sums with them, may have ({laws}):"
    return "\n".join([*first, "", f"{legend}. {between}", "", *second, "", "Why some are missing:", "", *numbered])


def line(name: str, keys: Iterable[str], ask: Callable[[str, str], str]) -> str:
    """A line of a table: in each column the keys that are served, and the numbers of why others are not."""
    notes, cells, keys = list(REASONS), [], list(keys)
    for column in SAMPLERS:
        reasons = {key: ask(key, column) for key in keys}
        served = [key for key, reason in reasons.items() if not reason]
        marks = sorted({f"[{notes.index(reason) + 1}]" for reason in reasons.values() if reason})
        cells.append("all" if not marks else f"{' '.join(served)} {''.join(marks)}".strip())
    return f"| {name} | {' | '.join(cells)} |"


@pytest.mark.statistical
@pytest.mark.parametrize("column", SAMPLERS)
@pytest.mark.parametrize("row", SCALARS)
def test_the_feature_gram_is_the_exact_one_or_an_error_says_why_not(row: str, column: str) -> None:
    served = "".join(letter for letter in OPERATORS if not outcome(row, letter, column))
    # What must be there, whatever the table says.
    spectral = isinstance(SCALARS[row][0], Spectral)
    if column in ("iid", "qmc") and spectral:
        assert served == ("DCVHSTM" if row in SMOOTH else "DSTM")
    if row == "Gaussian":
        assert served == "DCVHSTM"
    if not spectral:
        assert set(served) <= {"D"} and (column != "iid" or served)


@pytest.mark.statistical
@pytest.mark.parametrize("column", SAMPLERS)
@pytest.mark.parametrize("row", SMOOTH)
def test_the_feature_gram_is_the_exact_one_under_every_measure(row: str, column: str) -> None:
    for number in (0, 1):
        served = "".join(law for law in MEASURES if not measured(row, number, law, column))
        # What must be there, whatever the table says.
        had = "utdb" if row == "Gaussian" else "utd"
        if column in ("iid", "qmc"):
            assert served == had
        elif row == "Cauchy":
            assert not served
        elif column == "lattice":
            assert served == had
        elif column in ("orthogonal", "sorf", "rom", "fastfood"):
            assert served == (had.replace("t", "") if number == 1 else had)
        else:
            assert served == ("u" if column == "quadrature" or row == "Gaussian" else "")


@pytest.mark.statistical
@pytest.mark.parametrize("sampler", [frequencies.SORF(), frequencies.ROM(), frequencies.ROM(blocks=1)], ids=repr)
@pytest.mark.parametrize("d", [3, 5, 8, 12, 16, 64])
def test_weights_have_the_right_mean_where_rows_of_a_block_share_a_length(sampler: frequencies.Sampler, d: int) -> None:
    """tr K(0), by the standard error of many frequencies: on a sphere no weight that depends on the radius has it.

    At d = 64 a half split has weights of infinite use (their relative variance is 10^4), so a smaller one is tried.
    """
    gaussian, split = kernels.Gaussian(0.7), 0.5 if d < 20 else 0.1
    narrow, wide = kernels.Gaussian(0.7), kernels.Gaussian(0.75)

    def mu(omega: FloatArray) -> FloatArray:
        return np.exp(wide.log_density(omega, Measure.UNBOUNDED))[:, None, None] * np.eye(1)

    laws = [Measure.UNBOUNDED, Measure.TRACE, Measure.DEFENSIVE, Measure.bounded(split)]
    kinds = (kernels.CurlFree, kernels.DivergenceFree) if d < 20 else (kernels.CurlFree,)
    fields = [kind(gaussian, law) for law in laws for kind in kinds]
    for kernel in (*fields, kernels.SpectralDensity(mu, narrow, p=1)):
        p = 1 if isinstance(kernel, kernels.SpectralDensity) else d
        drawn = sampler.draw(kernel.fix(d, p), d=d, p=p, count=2**14, seed=1)
        assert drawn.log_density is not None
        ratio = np.exp(gaussian.log_density(drawn.omega, Measure.UNBOUNDED) - drawn.log_density)
        if isinstance(kernel, kernels.SpectralDensity):
            sizes, exact = np.exp(wide.log_density(drawn.omega, Measure.UNBOUNDED) - drawn.log_density), 1.0
        else:
            rank = 1 if isinstance(kernel, kernels.CurlFree) else d - 1
            sizes, exact = rank * np.sum(drawn.omega**2, axis=1) * ratio, rank * d / 0.7**2
        error = sizes.std() / np.sqrt(len(sizes))
        assert abs(sizes.mean() - exact) < 4 * error + 1e-9 * exact and error < 0.05 * exact
        weights = operator_weights(kernel, 2 * len(sizes), (drawn.omega, drawn.log_density, None)).sizes
        np.testing.assert_allclose(weights[: len(sizes)], sizes, rtol=1e-9)


def test_the_bias_that_is_told_of_sorf_at_three_inputs() -> None:
    """Its docstring's figures."""
    for kernel, told in (
        (kernels.Decomposable(kernels.Gaussian(1.0)), 0.02),
        (kernels.CurlFree(kernels.Gaussian(1.0)), 0.12),
        (kernels.CurlFree(kernels.Matern(1.0, nu=3.5)), 0.21),
    ):
        exact = kernel.fix(3, 3).gram(*inputs(3))
        found = np.linalg.norm(mean_of_signs(kernel.fix(3, 3).terms()[0][1]) - exact) / np.linalg.norm(exact)
        assert found == pytest.approx(told, abs=0.005)


@pytest.mark.statistical
def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert page.count(MARKS[0]) == page.count(MARKS[1]) == 1, "the page lost the marks of the table of combinations"
    written = page.split(MARKS[0])[1].split(MARKS[1])[0].strip()
    assert written == table(), "run this file as a script, and paste what it prints between the marks"


if __name__ == "__main__":
    print(table())
