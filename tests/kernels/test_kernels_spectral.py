"""Kernels given by a density or by a signature."""

import itertools
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dorff import ORFFRegressor, kernels
from dorff.errors import InputError
from dorff.frequencies import IID, QMC, Sampler, default_sampler
from dorff.frequencies.base import spectrum
from dorff.kernels import FromSignature, Measure, OperatorKernel, SpectralDensity, Tabulated
from dorff.kernels.scalar import FloatArray

INDEPENDENT = IID()
COUPLING = np.array([[2.0, 0.5], [0.5, 1.0]])


def curl_density(omega: FloatArray) -> FloatArray:
    """omega omega^T rho_0, of a Gaussian of length-scale 0.8."""
    rho = np.exp(kernels.Gaussian(0.8).log_density(omega, Measure.UNBOUNDED))
    return rho[:, None, None] * omega[:, :, None] * omega[:, None, :]


def signature_of(kernel: OperatorKernel, d: int) -> Callable[[FloatArray], FloatArray]:
    """K0 of a kernel for d inputs."""

    def values(delta: FloatArray) -> FloatArray:
        found = kernel.gram(delta.reshape(-1, d), np.zeros((1, d)))[:, 0]
        return found.reshape(*delta.shape[:-1], *found.shape[1:])

    return values


def bell(delta: FloatArray) -> FloatArray:
    """A Gaussian of unit length-scale, as 1 x 1 matrices."""
    return np.exp(-0.5 * np.sum(delta**2, axis=-1))[..., None, None]


def assert_given_back(
    kernel: OperatorKernel, exact: OperatorKernel, d: int, p: int, *, D: int = 2000, sampler: Sampler = INDEPENDENT
) -> None:
    """The features' kernel is the exact one, within five standard errors of each of its entries."""
    found = sampler.draw(kernel, d=d, p=p, count=D, seed=3)
    assert found.log_density is not None
    A = np.zeros((D, p, p))  # mu over the density drawn from
    for weight, term in kernel.terms():
        ratio = np.exp(spectrum(term.scalar).log_density(found.omega, Measure.UNBOUNDED) - found.log_density)
        root = term.root(found.omega)
        A += weight * ratio[:, None, None] * np.swapaxes(root, 1, 2) @ root
    delta = np.random.default_rng(1).uniform(-1.5, 1.5, (10, d))
    delta[0] = 0.0
    terms = np.cos(found.omega @ delta.T)[:, :, None, None] * A[:, None]
    error = terms.std(axis=0) / np.sqrt(D)
    wanted = exact.gram(delta, np.zeros((1, d)))[:, 0]
    assert np.all(np.abs(terms.mean(axis=0) - wanted) <= 5 * error + 1e-6 * np.abs(wanted).max())
    assert error.max() < 0.06 * np.abs(wanted).max()  # else anything would pass


class TestSpectralDensity:
    @pytest.mark.parametrize("proposal", [kernels.Gaussian(0.5), kernels.Matern(0.7, nu=1.5)])
    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_curl_free_density_is_curl_free_kernel(self, d: int, proposal: kernels.Spectral) -> None:
        kernel, exact = SpectralDensity(curl_density, proposal, p=d), kernels.CurlFree(kernels.Gaussian(0.8))
        assert_given_back(kernel.fix(d, d), exact, d, d)
        assert kernel.trace(d, d) == pytest.approx(exact.trace(d, d), rel=0.05)

    def test_root_is_of_rank_and_gives_density_back(self) -> None:
        kernel = SpectralDensity(curl_density, kernels.Gaussian(0.5), p=3)
        omega = np.random.default_rng(0).standard_normal((50, 3))
        omega[0] = 0.0
        root = kernel.root(omega)
        rho = np.exp(kernels.Gaussian(0.5).log_density(omega, Measure.UNBOUNDED))
        assert root.shape == (50, 1, 3)
        assert np.allclose(np.einsum("arp,arq,a->apq", root, root, rho), curl_density(omega), rtol=1e-12, atol=1e-15)

    def test_root_is_zero_and_not_nan_where_both_densities_vanish(self) -> None:
        kernel = SpectralDensity(curl_density, kernels.Gaussian(0.5), p=2)
        assert not np.any(kernel.root(np.array([[1e4, 0.0], [60.0, 50.0]])))

    def test_sum_with_a_kernel_of_its_own_spectrum(self) -> None:
        kernel = 0.5 * SpectralDensity(curl_density, kernels.Gaussian(0.5), p=2)
        other = kernels.Decomposable(kernels.Gaussian(0.1), COUPLING)
        exact = 0.5 * kernels.CurlFree(kernels.Gaussian(0.8)) + other
        assert_given_back(kernel + other, exact, 2, 2, D=4000)

    def test_exact_values_need_the_signature(self) -> None:
        exact, X = kernels.CurlFree(kernels.Gaussian(0.8)), np.random.default_rng(0).standard_normal((4, 2))
        kernel = SpectralDensity(curl_density, kernels.Gaussian(0.5), p=2, signature=signature_of(exact, 2))
        assert np.allclose(kernel.gram(X, X[:3]), exact.gram(X, X[:3]), rtol=1e-13)
        assert kernel.trace(2, 2) == exact.trace(2, 2)
        with pytest.raises(InputError, match="signature: a SpectralDensity has exact values only"):
            SpectralDensity(curl_density, kernels.Gaussian(0.5), p=2).gram(X, X)

    def test_signature_that_does_not_fit_mu(self) -> None:
        def without_constant(omega: FloatArray) -> FloatArray:
            return (2 * np.pi) ** 2 * curl_density(omega)

        exact = signature_of(kernels.CurlFree(kernels.Gaussian(0.8)), 2)
        kernel = SpectralDensity(without_constant, kernels.Gaussian(0.5), p=2, signature=exact)
        with pytest.raises(InputError, match=r"signature: its trace at 0 is 3\.125, but mu integrates to .*2 pi"):
            kernel.fix(2, 2)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda m, w: m - 0.1 * np.eye(2) * (w[:, :1, None] > 2.0), "positive semi-definite, but at omega = "),
            (lambda m, w: m + [[0, 1e-3], [0, 0]] * (w[:, :1, None] > 2.0), "not symmetric at omega = "),
            (lambda m, w: m + [[0, 1e-3j], [-1e-3j, 0]] * (w[:, :1, None] > 2.0), "delays"),
            (lambda m, w: m / (w[:, :1, None] <= 2.0), "mu must be finite, but is not at omega = "),
        ],
    )
    def test_bad_matrices_are_refused_with_the_place(self, change: Callable[..., Any], words: str) -> None:
        def mu(omega: FloatArray) -> FloatArray:
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.asarray(change(curl_density(omega), omega))

        with pytest.raises(InputError, match=words) as caught:
            SpectralDensity(mu, kernels.Gaussian(0.5), p=2).fix(2, 2)
        place = re.search(r"omega = \(([-\d.e]+), ([-\d.e]+)\)", str(caught.value))
        assert place is not None and float(place[1]) > 2.0

    def test_bad_shapes_and_sizes(self) -> None:
        kernel = SpectralDensity(lambda omega: omega, kernels.Gaussian(0.5), p=2)
        with pytest.raises(InputError, match=r"mu must give numbers of shape \(8192, 2, 2\) for omega of shape"):
            kernel.fix(2, 2)
        with pytest.raises(InputError, match="has matrices of 2 x 2, but there are 3 targets"):
            kernel.fix(2, 3)
        with pytest.raises(InputError, match="p must be a whole number"):
            SpectralDensity(curl_density, kernels.Gaussian(0.5), p=0)
        with pytest.raises(InputError, match="proposal must be a kernel with a spectrum"):
            SpectralDensity(curl_density, kernels.ArcCosine(), p=2)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="mu and signature must be functions"):
            SpectralDensity(3.0, kernels.Gaussian(0.5), p=2)  # type: ignore[arg-type]

    @pytest.mark.parametrize("lengthscale", [1.3, 2.5, 0.02])
    def test_proposal_that_does_not_serve(self, lengthscale: float) -> None:
        with pytest.raises(InputError, match=r"proposal: of 8192 frequencies .* only .* count for mu"):
            SpectralDensity(curl_density, kernels.Gaussian(lengthscale), p=2).fix(2, 2)

    def test_proposal_without_frequencies_where_mu_has_some(self) -> None:
        narrow = Tabulated(np.ones((3, 3)), (0.5, 0.5))
        kernel = SpectralDensity(curl_density, narrow, p=2)
        with pytest.raises(InputError, match=r"proposal: Tabulated has no frequencies near omega = \(1, 0\)"):
            kernel.root(np.array([[1.0, 0.0]]))

    def test_density_of_zero(self) -> None:
        kernel = SpectralDensity(lambda omega: np.zeros((len(omega), 1, 1)), kernels.Gaussian(0.5), p=1)
        with pytest.raises(InputError, match="mu / proposal is zero"):
            kernel.fix(1, 1)

    def test_hash_pickle_and_config(self) -> None:
        kernel = SpectralDensity(curl_density, kernels.Gaussian(0.5), p=2)
        again = pickle.loads(pickle.dumps(kernel.fix(2, 2)))
        assert again == kernel and len({kernel, again}) == 1 and again.trace(2, 2) == kernel.trace(2, 2)
        with pytest.raises(InputError, match="SpectralDensity kernel of a Python function cannot be stored"):
            kernel.config()


class TestFromSignature:
    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_curl_free(self, d: int) -> None:
        exact = kernels.CurlFree(kernels.Gaussian(0.7))
        kernel = FromSignature(signature_of(exact, d), 5.0, d=d)
        assert_given_back(kernel.fix(d, d), exact, d, d)
        omega = np.random.default_rng(0).standard_normal((20, d))
        assert kernel.root(omega).shape == (20, 1, d)  # its rank is found
        rho = np.exp(exact.scalar.log_density(omega, Measure.UNBOUNDED))
        wanted = rho[:, None, None] * omega[:, :, None] * omega[:, None, :]
        assert np.allclose(kernel.density(omega), wanted, rtol=0, atol=1e-9)
        assert kernel.trace(d, d) == pytest.approx(exact.trace(d, d), rel=1e-12)

    @pytest.mark.parametrize("d", [2, 3])
    def test_divergence_free(self, d: int) -> None:
        exact = kernels.DivergenceFree(kernels.Gaussian(0.7))
        kernel = FromSignature(signature_of(exact, d), 5.0, d=d).fix(d, d)
        assert_given_back(kernel, exact, d, d)
        assert_given_back(kernel, exact, d, d, sampler=QMC())
        assert isinstance(default_sampler(kernel), IID)

    @pytest.mark.parametrize(("d", "nu", "box"), [(1, 0.5, 7.0), (1, 1.5, 6.0), (2, 2.5, 5.0), (3, 3.5, 4.5)])
    def test_decomposable_matern(self, d: int, nu: float, box: float) -> None:
        exact = kernels.Decomposable(kernels.Matern(0.5, nu=nu), COUPLING)
        kernel = FromSignature(signature_of(exact, d), [box] * d)
        assert_given_back(kernel.fix(d, 2), exact, d, 2, D=1000)

    def test_box_and_grid_of_each_input(self) -> None:
        exact = kernels.Decomposable(kernels.Gaussian([0.2, 1.5]), COUPLING)
        kernel = FromSignature(signature_of(exact, 2), (1.2, 9.0), points=(30, 41))
        assert kernel.scalar.masses.shape == (31, 41)
        assert_given_back(kernel, exact, 2, 2)
        grown = FromSignature(signature_of(exact, 2), (9.0, 9.0)).scalar.masses.shape
        assert grown[0] > 100 > grown[1]

    def test_spectrum_beyond_the_first_grid_is_found(self) -> None:
        def beats(delta: FloatArray) -> FloatArray:
            return bell(delta) * np.cos(16.7 * delta)[..., None]  # folded to near zero on the first grid

        kernel = FromSignature(beats, [6.0])
        assert abs(kernel.scalar.second_moments(1)[0] - 16.7**2 - 1) < 2.0

    def test_sum_with_other_kernels_by_densities(self) -> None:
        curl, other = kernels.CurlFree(kernels.Gaussian(0.7)), kernels.Decomposable(kernels.Gaussian(0.1), COUPLING)
        kernel = 0.3 * FromSignature(signature_of(curl, 2), 5.0, d=2) + 2.0 * other
        assert_given_back(kernel, 0.3 * curl + 2.0 * other, 2, 2, D=4000)

    def test_exact_values_are_the_signature(self) -> None:
        exact, X = kernels.CurlFree(kernels.Gaussian(0.7)), np.random.default_rng(0).standard_normal((4, 2))
        kernel = FromSignature(signature_of(exact, 2), 5.0, d=2)
        assert np.allclose(kernel.gram(X, X[:3]), exact.gram(X, X[:3]), rtol=1e-13)

    def test_not_positive(self) -> None:
        def box(delta: FloatArray) -> FloatArray:
            return (np.abs(delta) <= 1.0).astype(float)[..., None]

        with pytest.raises(InputError, match="not that of a positive kernel: at omega = ") as caught:
            FromSignature(box, 3.0, d=1)
        found = re.search(r"omega = \(([-\d.]+)\).* of ([-\d.]+) times", str(caught.value))
        assert found is not None and abs(abs(float(found[1])) - 4.49) < 0.6  # the lowest point of sin(w) / w
        assert -0.3 < float(found[2]) < -0.15  # -0.217, but for the coarse grid

    @pytest.mark.parametrize(("factor", "words"), [(-1.0, r"eigenvalue of -1 times"), (0.0, "zero at delta = 0")])
    def test_negative_and_zero(self, factor: float, words: str) -> None:
        with pytest.raises(InputError, match=words):
            FromSignature(lambda delta: factor * bell(delta), 8.0, d=1)

    def test_not_positive_as_a_matrix_only(self) -> None:
        def dip(delta: FloatArray) -> FloatArray:  # no entry of the diagonal is at fault
            return bell(delta) * np.eye(2) + 0.8 * bell(1.5 * delta) * [[0.0, 1.0], [1.0, 0.0]]

        with pytest.raises(InputError, match="not that of a positive kernel: at omega = "):
            FromSignature(dip, 7.0, d=1)

    def test_not_positive_between_the_frequencies_of_the_grid(self) -> None:
        a = 1.5 * 2 * np.pi * 20 / (41 * 8.0)  # half way between two of them

        def narrow(delta: FloatArray) -> FloatArray:  # spectrum ((w^2 - a^2)^2 - 0.02) exp(-w^2 / 2)
            t = delta[..., None] ** 2
            return ((t**2 - 6 * t + 3) - 2 * a**2 * (1 - t) + a**4 - 0.02) * np.exp(-t / 2)

        kernel = FromSignature(narrow, 8.0, d=1, points=41)
        with pytest.raises(InputError, match="not that of a positive kernel: at omega = ") as caught:
            kernel.root(kernel.scalar.draw(np.random.default_rng(0), 500, 1, Measure.UNBOUNDED))
        found = re.search(r"omega = \(([-\d.]+)\)", str(caught.value))
        assert found is not None and abs(abs(float(found[1])) - a) < 0.1

    def test_delays_are_refused_with_the_place(self) -> None:
        def delayed(delta: FloatArray) -> FloatArray:
            shift = np.array([[0.0, 0.5], [-0.5, 0.0]])
            return np.exp(-0.5 * (delta[..., None] - shift) ** 2)

        with pytest.raises(InputError, match=r"signature is complex or not symmetric at delta = \(.*delays"):
            FromSignature(delayed, 8.0, d=1)

    def test_not_even(self) -> None:
        with pytest.raises(InputError, match="same at delta and -delta, but differs at delta = "):
            FromSignature(lambda delta: bell(delta - 0.1), 8.0, d=1)

    def test_box_too_small(self) -> None:
        with pytest.raises(InputError, match=r"box: .* at delta = \(-3, 0\) it is 0\.0111, and 1 at zero") as caught:
            FromSignature(bell, (3.0, 8.0))
        assert "make the box wider" in str(caught.value)

    def test_too_rough(self) -> None:
        with pytest.raises(InputError, match=r"too rough for its box: on a grid of .*smaller box"):
            FromSignature(lambda delta: np.maximum(1 - np.abs(delta) / 1e-4, 0.0)[..., None], 30.0, d=1)

    @pytest.mark.parametrize(
        ("box", "options", "words"),
        [
            (3.0, {}, "box must be a number with d"),
            ([3.0] * 4, {}, "one for each of 1 to 3 inputs"),
            ([3.0, 3.0], {"d": 3}, "got .* d = 3"),
            ([3.0, -3.0], {}, "box must hold positive numbers"),
            ("wide", {"d": 1}, "box must be"),
            (9.0, {"d": 1, "points": 1}, "points must be 2 or more"),
            (9.0, {"d": 1, "points": [20, 20]}, "points must be 2 or more, one number or one for each of 1"),
            (9.0, {"d": 1, "points": 2.5}, "points must be a whole number"),
        ],
    )
    def test_bad_box_or_points(self, box: Any, options: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            FromSignature(bell, box, **options)

    def test_bad_functions(self) -> None:
        with pytest.raises(InputError, match="signature must be a function"):
            FromSignature(np.eye(2), 3.0, d=1)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"signature must give \(n, p, p\) .* for \(1, 2\) it gives \(1, 2\)"):
            FromSignature(lambda delta: delta, 3.0, d=2)
        with pytest.raises(InputError, match="signature must be finite, but is not at delta = "):
            FromSignature(lambda delta: np.where(delta > 1, np.nan, bell(delta)[..., 0])[..., None], 9.0, d=1)

    def test_other_data_pickle_and_config(self) -> None:
        kernel = FromSignature(bell, 7.0, d=2)
        with pytest.raises(InputError, match="a grid over 2 inputs, but the data have 3"):
            kernel.fix(3, 1)
        with pytest.raises(InputError, match="matrices of 1 x 1, but there are 2 targets"):
            kernel.fix(2, 2)
        with pytest.raises(InputError, match="FromSignature kernel of a Python function cannot be stored"):
            kernel.config()
        omega = np.random.default_rng(0).standard_normal((5, 2))
        again = pickle.loads(pickle.dumps(kernel))
        assert np.array_equal(again.root(omega), kernel.root(omega)) and again.scalar == kernel.scalar

    def test_fit_is_that_of_the_kernel_it_stands_for(self) -> None:
        rng, exact = np.random.default_rng(0), kernels.CurlFree(kernels.Gaussian(0.7))
        X = rng.uniform(-1.5, 1.5, (600, 2))
        Y = np.stack([np.cos(X[:, 0]) * np.sin(X[:, 1]), np.sin(X[:, 0]) * np.cos(X[:, 1])], axis=1)
        Y += 0.1 * rng.standard_normal(Y.shape)
        errors = []
        for kernel in (exact, FromSignature(signature_of(exact, 2), 5.0, d=2)):
            model = ORFFRegressor(kernel, n_features=400, sampler=IID(), ridge=1e-4).fit(X[:400], Y[:400])
            errors.append(float(np.mean((model.predict(X[400:]) - Y[400:]) ** 2)))
        assert errors[1] == pytest.approx(errors[0], rel=0.05) and errors[0] < 0.012


class TestTabulated:
    def law(self, d: int) -> Tabulated:
        masses = np.random.default_rng(d).random((5, 3, 7)[:d])
        masses[(0,) * d] = 0.0
        return Tabulated(masses * np.flip(masses), (0.5, 1.0, 0.3)[:d])

    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_draws_follow_the_density(self, d: int) -> None:
        law = self.law(d)
        omega = law.draw(np.random.default_rng(0), 20000, d, Measure.UNBOUNDED)
        cells = np.rint(omega / np.array(law.widths)).astype(int) + np.array(law.masses.shape) // 2
        counts = np.zeros(law.masses.shape)
        np.add.at(counts, tuple(cells.T), 1)
        assert stats.chisquare(counts.ravel(), 20000 * law.masses.ravel()).pvalue > 1e-3
        density = law.masses[tuple(cells.T)] / np.prod(law.widths)
        assert np.allclose(np.exp(law.log_density(omega, Measure.UNBOUNDED)), density, rtol=1e-12)
        inside = omega / np.array(law.widths) - np.rint(omega / np.array(law.widths)) + 0.5
        assert all(stats.kstest(column, "uniform").pvalue > 1e-3 for column in inside.T)
        assert np.allclose(np.mean(omega**2, axis=0), law.second_moments(d), rtol=0.03)

    def test_density_integrates_to_one_and_ends_at_the_edge(self) -> None:
        law, w = self.law(1), np.linspace(-1.25, 1.25, 5001)[1::2, None]  # middles of 2500 steps
        assert np.exp(law.log_density(w, Measure.UNBOUNDED)).mean() * 2.5 == pytest.approx(1.0, rel=1e-12)
        assert law.log_density(np.array([[1.26]]), Measure.UNBOUNDED)[0] == -np.inf

    def test_quantiles_rise_and_reach_the_ends(self) -> None:
        law, uniforms = self.law(1), np.linspace(1e-12, 1 - 1e-12, 1001)[:, None]
        omega = law.quantiles(uniforms, 1, Measure.UNBOUNDED)[:, 0]
        assert np.all(np.diff(omega) > 0) and np.allclose(omega[[0, -1]], [-1.25, 1.25], atol=1e-6)
        assert np.allclose(omega, -omega[::-1], atol=1e-8)  # the law is even

    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_gram_and_hessian(self, d: int) -> None:
        law, rng = self.law(d), np.random.default_rng(5)
        X, Z = rng.standard_normal((4, d)), rng.standard_normal((3, d))
        X[0] = Z[0]
        centres = (np.indices(law.masses.shape).reshape(d, -1).T - np.array(law.masses.shape) // 2) * law.widths
        delta = X[:, None] - Z
        spread = np.prod(np.sinc(delta * law.widths / (2 * np.pi)), axis=-1)
        exact = spread * (np.cos(delta @ centres.T) @ law.masses.ravel())
        assert np.allclose(law.gram(X, Z), exact, rtol=0, atol=1e-13)
        assert np.allclose(np.diag(law.hessian(X[:1], Z[:1])[0, 0]), -law.second_moments(d), rtol=1e-12)
        step, eye = 1e-4, np.eye(d)
        for i, j in itertools.product(range(d), repeat=2):
            ends = [
                law.gram(X + step * (a * eye[i] + b * eye[j]), Z) * a * b
                for a, b in itertools.product((-1, 1), repeat=2)
            ]
            assert np.allclose(law.hessian(X, Z)[:, :, i, j], np.sum(ends, axis=0) / (4 * step**2), atol=1e-6)

    def test_as_the_scalar_kernel_of_an_operator_kernel(self) -> None:
        kernel = kernels.Decomposable(self.law(2), COUPLING)
        assert_given_back(kernel, kernel, 2, 2)
        curl = kernels.CurlFree(self.law(2))
        assert_given_back(curl, curl, 2, 2)
        assert curl.trace(2, 2) == pytest.approx(float(self.law(2).second_moments(2).sum()))

    def test_equal_by_value(self) -> None:
        assert self.law(2) == self.law(2) and hash(self.law(2)) == hash(self.law(2))
        assert self.law(2) != Tabulated(self.law(2).masses, (0.5, 1.1)) and self.law(1) != self.law(2)

    def test_refusals(self) -> None:
        for masses, widths, words in (
            (np.ones(4), (1.0,), "odd number of cells"),
            (np.ones((3, 3)), (1.0,), "one width for each"),
            (-np.ones(3), (1.0,), "zero or positive"),
            (np.zeros(3), (1.0,), "not all zero"),
            (np.array([1.0, 2.0, 3.0]), (1.0,), "the same at omega and -omega"),
            (np.ones(3), (0.0,), "widths must be positive"),
        ):
            with pytest.raises(InputError, match=words):
                Tabulated(masses, widths)
        law = self.law(2)
        with pytest.raises(InputError, match="has no trace measure; use unbounded"):
            law.draw(np.random.default_rng(0), 1, 2, Measure.TRACE)
        with pytest.raises(InputError, match="a grid over 2 inputs"):
            law.check(3)
        with pytest.raises(InputError, match="cannot be stored"):
            law.config()
