"""Every scalar kernel and sampler inside every operator kernel: the feature gram is the exact one, or an InputError.

`python tests/test_combinations.py` prints README's table of them.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.kernels import BaseKernel, OperatorKernel, ScalarKernel, Spectral
from dorff.kernels.scalar import FloatArray
from dorff.weights import operator_weights

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
SAMPLERS: dict[str, frequencies.Sampler] = {
    "iid": frequencies.IID(),
    "orthogonal": frequencies.Orthogonal(),
    "sorf": frequencies.SORF(),
    "rom": frequencies.ROM(),
    "fastfood": frequencies.Fastfood(),
    "qmc": frequencies.QMC(),
    "gauss_quadrature": frequencies.GaussQuadrature(),
    "quadrature": frequencies.Quadrature(),
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
#: Why a letter is missing: what the error says, and what the table's notes say. Every error has one of them.
REASONS = {
    "second moment": "The scalar kernel is not twice differentiable: its frequencies have no second moments, which "
    "vector fields and quadrature of degree (3,3) are made of (degree (1,3) serves the other operator kernels).",
    "no rotation changes": "Rotations change the spectrum of a product over the inputs.",
    "normal frequencies only": "Gauss-Hermite nodes are for normal frequencies.",
    "shift-invariant|kernel with a spectrum": "The scalar kernel has no spectrum, and so no vector fields; a sum of "
    "decomposable ones needs the same scalar kernel in all of its terms.",
    "features of its own": "The scalar kernel brings features of its own: there are no frequencies to draw.",
}
#: What is biased at d = 3 (their docstrings), with how far the mean of many draws may be off, relative to the gram.
BIASED = {"sorf": 0.3, "rom": 0.3, "gauss_quadrature": 0.1, "quadrature": 0.1}


def inputs(d: int) -> tuple[FloatArray, FloatArray]:
    X, Z = np.random.default_rng(5).uniform(0.05, 0.95, (2, 3, d))
    return X, Z


def feature_gram(kernel: OperatorKernel, sampler: frequencies.Sampler, d: int, seed: int) -> FloatArray:
    """Phi(x)* Phi(z) with the centre, (n, k, p, p), by the code of a fit; InputError where it cannot be drawn."""
    recipe = Recipe(kernel, sampler, d, 3, 192)
    drawn = recipe.draw(seed)
    phi, (X, Z) = drawn.phi, inputs(d)
    psi = operator_weights(kernel, phi.m, drawn.density).psi
    squared = np.einsum("arp,arq->apq", psi, psi)
    gram = np.einsum("na,ka,apq->nkpq", phi.transform(X), phi.transform(Z), squared)
    if sampler.centred:  # what is left to the free intercept
        zero = np.zeros((1, d))
        found = sampler.draw(kernel, d=d, p=3, count=recipe.frequencies, seed=seed)
        centre = float(phi.gram(zero, zero)[0, 0] - np.sum(phi.transform(zero) ** 2))
        for number, (weight, base) in enumerate(kernel.terms()):
            root = base.root(zero)[0]
            gram += weight * (centre if found.centres is None else found.centres[number]) * root.T @ root
    return gram


@cache
def outcome(row: str, letter: str, column: str) -> str:
    """ "" where the mean of draws is the exact gram, else why there are none: the error up to its remedy."""
    sampler, errors = SAMPLERS[column], []
    for scalar in SCALARS[row]:
        d = 1 if row == "Mercer" else 3
        try:
            kernel = OPERATORS[letter][1](scalar).fix(d, 3)
            grams = np.array([feature_gram(kernel, sampler, d, seed) for seed in range(6)])
        except InputError as error:
            (reason,) = (key for key in REASONS if re.search(key, str(error)))
            errors.append(reason)
            continue
        exact = kernel.gram(*inputs(d))
        size = np.linalg.norm(exact)
        error = np.linalg.norm(grams.std(axis=0, ddof=1)) / np.sqrt(len(grams))
        off = np.linalg.norm(grams.mean(axis=0) - exact)
        assert off < 3 * error + BIASED.get(column, 1e-9) * size, (row, letter, column, off / size, error / size)
        assert error < 0.3 * size, (row, letter, column)
    assert len(errors) in (0, len(SCALARS[row])), f"{row}: one kernel of the row is served, the other is not"
    return errors[0] if errors else ""


def table() -> str:
    """README's table and its notes."""
    notes = list(REASONS)
    lines = [f"| | {' | '.join(f'`{column}`' for column in SAMPLERS)} |", "|---" * (len(SAMPLERS) + 1) + "|"]
    for row in SCALARS:
        cells = []
        for column in SAMPLERS:
            reasons = {letter: outcome(row, letter, column) for letter in OPERATORS}
            served = [letter for letter, reason in reasons.items() if not reason]
            marks = sorted({f"[{notes.index(reason) + 1}]" for reason in reasons.values() if reason})
            cells.append("all" if not marks else f"{' '.join(served)} {''.join(marks)}".strip())
        lines.append(f"| {row} | {' | '.join(cells)} |")
    legend = "; ".join(f"{letter} {words}" for letter, (words, _) in OPERATORS.items())
    numbered = [f"{number}. {words}" for number, words in enumerate(REASONS.values(), 1)]
    return "\n".join([*lines, "", f"{legend}. Why some are missing:", "", *numbered])


@pytest.mark.parametrize("column", SAMPLERS)
@pytest.mark.parametrize("row", SCALARS)
def test_the_feature_gram_is_the_exact_one_or_an_error_says_why_not(row: str, column: str) -> None:
    served = "".join(letter for letter in OPERATORS if not outcome(row, letter, column))
    # What must be there, whatever the table says.
    spectral = isinstance(SCALARS[row][0], Spectral)
    smooth = spectral and row not in ("Matern, nu <= 1", "Laplacian")
    if column in ("iid", "qmc") and spectral:
        assert served == ("DCVHSTM" if smooth else "DSTM")
    if row == "Gaussian":
        assert served == "DCVHSTM"
    if not spectral:
        assert set(served) <= {"D"} and (column != "iid" or served)


def test_readme_has_the_table() -> None:
    page = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    assert page.count(MARKS[0]) == page.count(MARKS[1]) == 1, "README lost the marks of the table of combinations"
    written = page.split(MARKS[0])[1].split(MARKS[1])[0].strip()
    assert written == table(), "run python tests/test_combinations.py, and paste what it prints between the marks"


if __name__ == "__main__":
    print(table())
