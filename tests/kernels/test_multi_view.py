"""Multi-view kernels: their features by Monte Carlo, models against dense algebra, single views, files, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cases import assert_mean, every_kernel, moments_of, positive, rows

from dorff import frequencies, kernels
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.exact import ExactRidge
from dorff.features import FeatureMap, Recipe, cut, feature_arrays
from dorff.kernels import CurlFree, Decomposable, DivergenceFree, Gaussian, MultiView, OperatorKernel
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model.calibration import Conformal
from dorff.model.posterior import CoupledBlock, Posterior
from dorff.model.weights import OperatorWeights, operator_weights
from dorff.predict import Uncertainty, predict, score
from dorff.solvers import Setting
from dorff.store import load_model, save_model
from dorff.store.models import build_model

D, P = 5, 2
#: Name: views of columns and kernel, for D inputs and P outputs; columns in any order, some seen twice.
KERNELS: dict[str, MultiView] = {
    "scalars": MultiView([(2, Gaussian(0.8)), (3, Gaussian(1.2))]),
    "weighed": MultiView([(3, Gaussian(0.8)), (2, 2.5 * Decomposable(Gaussian([0.5, 1.5])))], names=["a", "b"]),
    "matrices": MultiView([(4, Decomposable(Gaussian(1.0), positive(P, 2))), ([4], Decomposable(Gaussian(0.5)))]),
    "fields": MultiView([
        (2, CurlFree(Gaussian(0.8))), ([4, 2, 3], 0.5 * Decomposable(Gaussian(1.2)) + Decomposable(Gaussian(0.7))),
        ([1, 0], 0.4 * CurlFree(Gaussian(1.0)) + 0.6 * DivergenceFree(Gaussian(1.0))),
    ]),
    "concatenated": MultiView([
        (2, kernels.Sum([(1.0, CurlFree(Gaussian(1.0))), (0.5, Decomposable(Gaussian(2.0)))], concatenate=True)),
        (3, kernels.Matern(1.0)),
    ]),
}  # fmt: skip


def fixed(name: str) -> MultiView:
    return KERNELS[name].fix(D, KERNELS[name].V * P)


def drawn(kernel: MultiView, sampler: frequencies.Sampler, count: int, seed: int = 0) -> Any:
    """The map and the weights of `count` features."""
    found = Recipe(kernel, sampler, D, kernel.V * P, count).draw(seed)
    return found.phi, operator_weights(kernel, found.phi.m, found.density)


@pytest.mark.parametrize("name", KERNELS)
def test_values_are_those_of_the_views_on_the_diagonal(name: str) -> None:
    kernel, rng = fixed(name), np.random.default_rng(0)
    X, Z = rng.standard_normal((4, D)), rng.standard_normal((3, D))
    values = kernel.gram(X, Z).reshape(4, 3, kernel.V, P, kernel.V, P)
    for v, view in enumerate(kernel.views):
        columns = list(view.columns)
        np.testing.assert_array_equal(values[:, :, v, :, v], view.kernel.gram(X[:, columns], Z[:, columns]))
    assert np.count_nonzero(np.moveaxis(values, 3, 4).any(axis=(0, 1, 4, 5))) == kernel.V
    again = kernels.from_config(kernel.config())
    assert isinstance(again, MultiView) and again.names == kernel.names and again.config() == kernel.config()
    np.testing.assert_array_equal(again.gram(X, Z), kernel.gram(X, Z))
    here = kernel.gram(X[:1], X[:1])[0, 0]
    assert kernel.trace(D, kernel.V * P) == pytest.approx(np.trace(here))


MONTE_CARLO = [(name, frequencies.IID()) for name in KERNELS] + [
    (name, sampler) for name in ("scalars", "fields") for sampler in (frequencies.Orthogonal(), frequencies.QMC())
]


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "sampler"), MONTE_CARLO, ids=lambda one: one if isinstance(one, str) else "")
def test_features_estimate_the_kernel_without_bias(name: str, sampler: frequencies.Sampler) -> None:
    kernel, rng, draws = fixed(name), np.random.default_rng(1), 120
    X, Z = rng.uniform(-1, 1, (2, D)), rng.uniform(-1, 1, (2, D))
    found = []
    for seed in range(draws):
        phi, weights = drawn(kernel, sampler, 50, seed)
        psi = weights.psi
        found.append(np.einsum("na,ka,arp,arq->nkpq", phi.transform(X), phi.transform(Z), psi, psi, optimize=True))
    exact = kernel.gram(X, Z)
    assert_mean(found, exact, errors=4.5)
    assert np.std(found, axis=0).max() / np.sqrt(draws) < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("name", KERNELS)
def test_each_view_has_frequencies_of_its_own_columns_and_outputs(name: str) -> None:
    kernel = fixed(name)
    phi, weights = drawn(kernel, frequencies.IID(), 2 * 23 + 1)
    assert phi.m == 46 and weights.views is not None and weights.count == kernel.V
    sizes = np.bincount(weights.views[:23])
    assert sizes.max() - sizes.min() <= 1 and np.array_equal(weights.views[:23], weights.views[23:])
    for v, view in enumerate(kernel.views):
        own = phi.omega[weights.views[:23] == v]
        assert np.all(own[:, list(view.columns)] != 0)
        assert not np.delete(own, view.columns, axis=1).any()
        others = np.delete(weights.psi.reshape(46, -1, kernel.V, P), v, axis=2)
        assert not others[weights.views == v].any()
        # What a view has of the kernel's share at zero is exact where every frequency has the same.
        if name in ("scalars", "weighed", "matrices"):
            square = (
                weights.sizes[weights.views == v] @ np.repeat([phi.weights[weights.views[:23] == v] ** 2], 2, 0).ravel()
            )
            assert square / 2 == pytest.approx(view.kernel.trace(view.d, P))


def test_views_with_one_matrix_share_the_root_whatever_their_weights() -> None:
    for name, one in (("scalars", True), ("weighed", True), ("matrices", False), ("fields", False)):
        _, weights = drawn(fixed(name), frequencies.IID(), 40)
        assert (len(weights.root) == 1) is one and not weights.separable
    several = fixed("weighed")
    _, weights = drawn(several, frequencies.IID(), 40)
    second = weights.views == 1
    np.testing.assert_allclose(
        weights.psi[second].reshape(-1, P, 2, P)[:, :, 1], np.tile(np.sqrt(2.5) * np.eye(P), (20, 1, 1)), rtol=1e-14
    )


@pytest.mark.parametrize("roots", [1, 7])
def test_weights_of_views_are_their_psi(roots: int) -> None:
    rng = np.random.default_rng(2)
    views = np.array([0, 2, 1, 1, 0, 2, 2])
    weights = OperatorWeights(rng.uniform(0.5, 2.0, 7), rng.standard_normal((roots, 2, P)), views, 3)
    psi = np.zeros((7, 2, 3 * P))
    for a, v in enumerate(views):
        psi[a, :, v * P : (v + 1) * P] = weights.gain[a] * weights.root[a % roots]
    h = rng.standard_normal((7, 2))
    assert weights.shape == psi.shape and not weights.separable
    np.testing.assert_array_equal(weights.psi, psi)
    np.testing.assert_allclose(weights.combined(h), np.einsum("arp,ar->ap", psi, h), rtol=1e-13)
    np.testing.assert_allclose(weights.sizes, np.sum(psi**2, axis=(1, 2)), rtol=1e-13)


def test_the_mean_of_views_and_what_they_differ_by() -> None:
    kernel, rng = fixed("fields"), np.random.default_rng(3)
    f = rng.standard_normal((3, P))
    np.testing.assert_allclose(kernel.average @ f.ravel(), f.mean(axis=0))
    np.testing.assert_allclose(kernel.mean(["view0", 2]) @ f.ravel(), f[[0, 2]].mean(axis=0))
    apart = sum(np.sum((f[v] - f[w]) ** 2) for v in range(3) for w in range(v))
    assert np.trace(f.T @ kernel.between @ f) == pytest.approx(apart)
    assert [list(columns) for columns in kernel.tied(D)] == [[0, 1]] and kernel.vector_field
    curl, plain = CurlFree(Gaussian(1.0)), Gaussian(1.0)
    several = MultiView([([0, 1], curl), ([2, 3], curl), ([5, 4], curl), ([1, 3], curl), ([6], plain)])
    assert sorted(list(columns) for columns in several.tied(7)) == [[0, 1, 2, 3], [4, 5]]
    assert dict(every_kernel(2, 2))["curl trace"].tied(2)[0].tolist() == [0, 1]
    assert Decomposable(Gaussian(1.0)).tied(3) == ()


def fitted(name: str = "fields", m: int = 24, *, uncertain: bool = True, seed: int = 4) -> tuple[Model, FloatArray]:
    """A model of any coefficients, and the covariance (m r + V p, m r + V p) of these and its intercepts."""
    kernel, rng = fixed(name), np.random.default_rng(seed)
    phi, weights = drawn(kernel, frequencies.IID(), m)
    (_, r, Vp), scale = weights.shape, 2.0
    features = FeatureMap(phi, rng.standard_normal(D), rng.uniform(0.5, 2.0, D))
    feature, row = (at.ravel() for at in np.indices((m, r)))
    values, vectors = np.linalg.eigh(positive(m * r, m * r, 1))
    spread = 1.0 / (values + 1.0)
    block = CoupledBlock(
        vectors, spread[:, None], np.array([0.3]), feature, row, scale * weights.psi[feature, row],
        np.zeros((m * r, Vp)),
    )  # fmt: skip
    about = positive(Vp, Vp, 2)
    posterior = Posterior((block,), about, np.diag([0.25, 4.0])) if uncertain else None
    model = Model(
        features, weights, rng.standard_normal((m, r)), rng.standard_normal(Vp), np.full(Vp, scale), kernel,
        {"type": "iid"}, 0, {}, kernel.average, posterior,
    )  # fmt: skip
    covariance = np.zeros((m * r + Vp,) * 2)
    covariance[: m * r, : m * r] = 0.3 * (vectors * spread) @ vectors.T
    covariance[m * r :, m * r :] = about
    return model, covariance


def dense(model: Model, X: FloatArray) -> FloatArray:
    """Phi(x)* and the intercept's I: (n, V p, m r + V p)."""
    F, psi = model.feature_map.transform(X), model.weights
    Phi = model.target_scale[None, :, None] * np.einsum("na,arp->npar", F, psi).reshape(len(X), psi.shape[2], -1)
    return np.concatenate([Phi, np.broadcast_to(np.eye(psi.shape[2]), (len(X), *[psi.shape[2]] * 2))], axis=2)


@pytest.mark.parametrize("name", ["scalars", "weighed", "matrix", "fields"])
def test_a_fit_to_the_mean_of_views_is_the_dense_primal(name: str) -> None:
    """Minh (2016), eq. 74 with gI = 0, and the posterior's inverse; those of one root by columns, others coupled."""
    same = Decomposable(Gaussian(1.0), positive(P, 2))
    both = MultiView([(2, same), (3, 0.5 * same)]).fix(D, 2 * P)
    kernel, (X, Y), m, ridge = both if name == "matrix" else fixed(name), rows(50, D, P), 30, 1e-2
    found = Recipe(kernel, frequencies.IID(), D, kernel.V * P, m).draw(0)
    features, C = FeatureMap(found.phi, X.mean(axis=0), np.ones(D)), kernel.average
    parts = [moments_of(features, X, Y, y0=Y.mean(axis=0))]
    setting = Setting(kernel, D, m, found.density, False, True, C)
    (fit,) = setting.solve(parts, [ridge])
    fit = setting.noised(parts, fit)
    model = Model(
        features, fit.weights, fit.solution.h, fit.bias, fit.scale, fit.kernel, {}, 0, {}, C,
        setting.posterior(parts, fit),
    )  # fmt: skip
    Phi = (C @ dense(model, X)).reshape(50 * P, -1)
    # The intercept enters as what C sees of it; of what it does not the least is taken.
    Phi = np.column_stack([Phi[:, : -kernel.V * P], np.tile(np.eye(P), (50, 1))])
    system = Phi.T @ Phi
    system[np.diag_indices(len(system) - P)] += 50 * ridge
    h = np.linalg.solve(system, Phi.T @ Y.ravel())
    np.testing.assert_allclose(model.predict(X).ravel(), Phi @ h, rtol=1e-9)
    D_, K = np.diag(fit.noise), np.linalg.inv(system)
    if name == "weighed" or name == "scalars":  # outputs that are models of their own
        variance = np.einsum("ia,ab,ib->i", Phi, K, Phi).reshape(50, P) * D_
    else:  # the error of an estimate that knows of one noise
        excess = Phi.T @ (np.tile(D_ - D_.mean(), 50)[:, None] * Phi)
        variance = np.einsum("ia,ab,ib->i", Phi, D_.mean() * K + K @ excess @ K, Phi).reshape(50, P)
    np.testing.assert_allclose(model.std(X) ** 2, variance, rtol=1e-8)


def test_the_exact_dual_takes_its_values() -> None:
    """Views of the same scalar kernel are not one scalar kernel times a matrix."""
    kernel, (X, Y) = MultiView([(2, Gaussian(1.0)), (3, Gaussian(1.0))]).fix(D, 2 * P), rows(20, D, P)
    C = kernel.average
    found = ExactRidge.fit(kernel, X, Y, ridge=0.1, observe=C, intercept=False)
    K = (C @ kernel.gram(X, X) @ C.T).transpose(0, 2, 1, 3).reshape(20 * P, 20 * P)
    direct = K @ np.linalg.solve(K + 20 * 0.1 * np.eye(len(K)), Y.ravel())
    np.testing.assert_allclose((found.predict(X) @ C.T).ravel(), direct, rtol=1e-10)


def blinded(model: Model, X: FloatArray, views: list[str | int] | None) -> FloatArray:
    """X with NaN where these views do not look."""
    assert isinstance(model.kernel, MultiView)
    out = np.full_like(X, np.nan)
    seen = model.kernel.seen(views)
    out[:, seen] = X[:, seen]
    return out


VIEWS: list[list[str | int] | None] = [None, ["view1"], [0, 2]]


@pytest.mark.parametrize("views", VIEWS, ids=str)
@pytest.mark.parametrize("name", ["scalars", "fields"])
def test_models_are_their_dense_algebra(name: str, views: list[str | int] | None) -> None:
    model, covariance = fitted(name)
    if model.kernel.V == 2 and views == [0, 2]:
        views = [0, 1]
    kernel, X = fixed(name), np.random.default_rng(5).standard_normal((6, D))
    blind, Phi = blinded(model, X, views), dense(model, X)
    C, h = kernel.mean(views), np.append(model.coefficients.ravel(), model.intercept)
    f = Phi @ h
    assert (model.p, model.d, model.views) == (P, D, kernel.names)
    np.testing.assert_allclose(model.predict(blind, views=views), f @ C.T, rtol=1e-11)
    np.testing.assert_allclose(model.predict_views(X).reshape(6, -1), f, rtol=1e-11)
    np.testing.assert_array_equal(model.observed(model.predict(X)), model.predict(X))
    of_f = C @ (Phi @ covariance @ Phi.transpose(0, 2, 1)) @ C.T
    noise = np.diag([0.25, 4.0])
    for added, noisy in ((0.0, False), (noise, True)):
        np.testing.assert_allclose(
            model.covariance(blind, noise=noisy, views=views), of_f + added, rtol=1e-9, atol=1e-12
        )
        std = np.sqrt(np.diagonal(of_f + added, axis1=1, axis2=2))
        np.testing.assert_allclose(model.std(blind, noise=noisy, views=views), std, rtol=1e-9)
        low, high = model.band(blind, 0.9, noise=noisy, views=views)
        np.testing.assert_allclose((high - low) / 2, 1.6448536269514722 * std, rtol=1e-9)
        np.testing.assert_allclose((high + low) / 2, f @ C.T, rtol=1e-9)


@pytest.mark.parametrize("views", VIEWS, ids=str)
def test_jacobians_are_derivatives_of_the_mean_of_views(views: list[str | int] | None) -> None:
    model, _ = fitted()
    X, step = np.random.default_rng(6).standard_normal((5, D)), 1e-5
    numeric = [model.predict(X + e, views=views) - model.predict(X - e, views=views) for e in step * np.eye(D)]
    J = model.jacobian(blinded(model, X, views), views=views)
    assert J.shape == (5, P, D)
    np.testing.assert_allclose(J, np.stack(numeric, axis=2) / (2 * step), atol=1e-8 * np.abs(J).max())


def test_samples_have_the_law_of_the_posterior() -> None:
    model, _ = fitted("scalars")
    X, count = np.random.default_rng(7).standard_normal((3, D)), 4000
    draws = np.array([one.predict(X, views=[1]) for one in model.sample(count, seed=1)])
    std = model.std(X, views=[1])
    assert np.all(np.abs(draws.mean(axis=0) - model.predict(X, views=[1])) < 4.5 * std / np.sqrt(count))
    assert np.all(np.abs(draws.var(axis=0) / std**2 - 1) < 4.5 * np.sqrt(2 / count))


def test_the_store_gives_back_the_model_to_the_bit(tmp_path: Path) -> None:
    X = np.random.default_rng(8).standard_normal((9, D))
    for name in ("scalars", "weighed", "fields"):
        model, _ = fitted(name)
        again = load_model(save_model(model, tmp_path / name))
        assert again.views == model.views and again.kernel.config() == model.kernel.config()
        assert np.array_equal(again.weights, model.weights) and again.operator_weights.count == model.kernel.V
        for views in (None, [0]):
            assert np.array_equal(again.predict(X, views=views), model.predict(X, views=views))
            assert np.array_equal(again.std(X, views=views), model.std(X, views=views))


def pieces(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and words as they lie in a file."""
    arrays = {
        **feature_arrays(model.feature_map), "coefficients": model.coefficients, "intercept": model.intercept,
        "target_scale": model.target_scale, "gain": model.operator_weights.gain, "root": model.operator_weights.root,
        "views": model.operator_weights.views,
    }  # fmt: skip
    words = {
        "kernel": model.kernel.config(), "sampler": {}, "seed": 0, "info": {},
        "features": model.feature_map.phi.config(),
    }  # fmt: skip
    return arrays, words


def unlike(arrays: dict[str, Any], words: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Ways to make them lie, by what is said of it."""
    views, kernel = arrays["views"], words["kernel"]
    return {
        "KeyError": lambda: arrays.pop("views"),
        "array views should be int64 of shape": lambda: arrays.update(views=views[:-1]),
        "got float64": lambda: arrays.update(views=views.astype(float)),
        "should number the 3 views": lambda: arrays.update(views=views + 1),
        "cosines as of sines": lambda: arrays.update(views=np.concatenate([views[:12], views[11::-1]])),
        "see columns that it does not": lambda: arrays.update(omega=np.ones_like(arrays["omega"])),
        "no part of such a model": lambda: (
            words.update(kernel=Decomposable(Gaussian(1.0)).config()),
            arrays.update(intercept=np.zeros(P), target_scale=np.ones(P)),
        ),
        "array intercept should be": lambda: words.update(kernel=fixed("scalars").config()),
        "leaves out column 4": lambda: kernel["views"][1].update(columns=[2, 3]),
        "sees column": lambda: kernel["views"][1].update(columns=[2, 3, 2**70]),
        "columns must be a list": lambda: kernel["views"][1].update(columns=10**12),
        "outputs have 3 targets": lambda: arrays.update(observe=np.ones((3, 6))),
        "frequencies that are written out": lambda: words["features"].update(centre_column=True, centre=1.0),
    }  # fmt: skip


@pytest.mark.parametrize("said", unlike(*pieces(fitted(uncertain=False)[0])))
def test_files_that_do_not_fit_their_views_are_refused(said: str) -> None:
    arrays, words = pieces(fitted(uncertain=False)[0])
    assert build_model(arrays, words).views == ("view0", "view1", "view2")
    if said == "array intercept should be":
        arrays["views"] = np.minimum(arrays["views"], 1)
        arrays["omega"] = np.where(np.arange(D) < 2, arrays["omega"], 0.0)
        arrays["omega"][arrays["views"][: len(arrays["omega"])] == 1] = 0.0
    unlike(arrays, words)[said]()
    with pytest.raises(InputError, match=said):
        build_model(arrays, words)


def described(model: Model) -> Model:
    """As a fit publishes it: a view of array a, one of b and c, the third of a again."""
    names = ["a_0", "a_1", "b_0", "b_1", "c"]
    views = [
        {"name": "view0", "inputs": ["a"], "columns": [0]}, {"name": "view1", "inputs": ["c", "b"], "columns": [4, 2]},
        {"name": "view2", "inputs": ["a"], "columns": [0]},
    ]  # fmt: skip
    return replace(model, info={"data": {"inputs": names, "targets": ["u", "v"], "views": views}})


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model, FloatArray, FloatArray, Path]:
    """A model, inputs, targets, and a store of them in arrays a, b, c and y."""
    folder, rng = tmp_path_factory.mktemp("views"), np.random.default_rng(9)
    model, X = described(fitted()[0]), rng.standard_normal((700, D))
    Y = model.predict(X) + rng.standard_normal((700, P))
    group = zarr.open_group(str(folder / "data.zarr"), mode="w")
    for name, values in (("a", X[:, :2]), ("b", X[:, 2:4]), ("c", X[:, 4]), ("y", Y)):
        group.create_array(name, data=values, chunks=(256, *values.shape[1:]))
    save_model(model, folder / "model")
    return folder / "model", model, X, Y, folder / "data.zarr"


def read(path: Path, name: str) -> FloatArray:
    return np.asarray(zarr.open_array(str(path / name), mode="r")[...])


def test_predictions_of_some_views_open_their_arrays_alone(published: Any, tmp_path: Path) -> None:
    place, model, X, Y, whole = published
    engine, asked = SerialEngine(), Uncertainty(std=True, bands=(0.9,))
    assert predict(place, whole, tmp_path / "all.zarr", engine=engine, uncertainty=asked) == 700
    np.testing.assert_array_equal(read(tmp_path / "all.zarr", "y"), model.predict(X))
    for views, arrays in ((["view0"], ["a"]), (["view1"], ["b", "c"]), (["view2", "view1"], ["a", "b", "c"])):
        part = tmp_path / f"{views[0]}.zarr"
        group = zarr.open_group(str(part), mode="w")
        for name in [*arrays, "y"]:
            group.create_array(name, data=read(whole, name), chunks=(256,) + (2,) * (name != "c"))
        out = tmp_path / f"{views[0]}-out.zarr"
        predict(place, part, out, engine=engine, views=views, uncertainty=asked)
        np.testing.assert_array_equal(read(out, "y"), model.predict(X, views=views))
        np.testing.assert_array_equal(read(out, "std"), model.std(X, views=views))
        low, high = model.band(X, 0.9, views=views)
        np.testing.assert_allclose(read(out, "low_90"), low, rtol=1e-12)
        np.testing.assert_allclose(read(out, "high_90"), high, rtol=1e-12)
        assert zarr.open_group(str(out), mode="r").attrs["dorff"]["views"] == sorted(views)
        found = score(place, part, engine=engine, views=views, coverage=[0.9])
        error = model.predict(X, views=views) - Y
        assert found.rmse == pytest.approx(np.sqrt(np.mean(error**2))) and found.coverage is not None
        inside = np.mean((low <= Y) & (high >= Y))
        assert found.coverage["0.9"]["plain"] == pytest.approx(inside)
        with pytest.raises(InputError, match="has no array" if len(arrays) < 3 else "is there already"):
            predict(place, part, out if len(arrays) == 3 else tmp_path / "none.zarr", engine=engine)
    assert score(place, whole, engine=engine).rmse == pytest.approx(np.sqrt(np.mean((model.predict(X) - Y) ** 2)))


def test_arrays_of_other_names_are_named_in_order(published: Any, tmp_path: Path) -> None:
    place, model, X, _, whole = published
    group = zarr.open_group(str(tmp_path / "other.zarr"), mode="w")
    for name, array in (("first", "b"), ("second", "c")):
        group.create_array(name, data=read(whole, array), chunks=(700, *read(whole, array).shape[1:]))
    names = ["first", "second"]
    predict(place, tmp_path / "other.zarr", tmp_path / "y", engine=SerialEngine(), views=["view1"], inputs=names)
    np.testing.assert_array_equal(read(tmp_path / "y", "y"), model.predict(X, views=["view1"]))


def test_conformal_factors_are_of_all_views_together(published: Any, tmp_path: Path) -> None:
    _, model, X, Y, whole = published
    factors = Conformal.fit(np.abs(Y - model.predict(X)) / model.std(X, noise=True)).config()
    corrected = replace(model, info={**model.info, "conformal": factors})
    save_model(corrected, tmp_path / "model")
    told = {}
    for name, views in (("all", None), ("one", ["view0"])):
        predict(tmp_path / "model", whole, tmp_path / name, engine=SerialEngine(), views=views,
                uncertainty=Uncertainty(bands=(0.9,)))  # fmt: skip
        told[name] = zarr.open_group(str(tmp_path / name), mode="r").attrs["dorff"]["uncertainty"]["bands"]["kind"]
        covered = score(tmp_path / "model", whole, engine=SerialEngine(), views=views, coverage=[0.9]).coverage
        assert covered is not None and (covered["0.9"]["conformal"] is None) is (views is not None)
    assert told == {"all": "conformal", "one": "plain"}
    np.testing.assert_array_equal(corrected.band(X, 0.9, views=[0])[0], model.band(X, 0.9, views=[0])[0])
    with pytest.raises(InputError, match="all views together"):
        corrected.band(X, 0.9, views=[0], conformal=True)


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ([], "each once"), (["view0", "view0"], "each once"), (["pixels"], "no view 'pixels'; name some of view0"),
        ([3], "no view 3"), ([True], "no view True"), ([-1], "no view -1"),
    ],
)  # fmt: skip
def test_views_that_are_not_there_are_refused(published: Any, views: list[Any], said: str, tmp_path: Path) -> None:
    place, model, X, _, whole = published
    for ask in (model.predict, model.std, model.covariance, model.jacobian):
        with pytest.raises(InputError, match=said):
            ask(X, views=views)
    with pytest.raises(InputError, match=said):
        predict(place, whole, tmp_path / "out", engine=SerialEngine(), views=views)


def test_models_that_do_not_say_their_views_and_other_arrays_are_refused(published: Any, tmp_path: Path) -> None:
    _, model, X, _, whole = published
    engine = SerialEngine()
    plain_kernel = Decomposable(Gaussian(1.0)).fix(D, P)
    found = Recipe(plain_kernel, frequencies.IID(), D, P, 10).draw(0)
    weights = operator_weights(plain_kernel, 10, found.density)
    features = FeatureMap(found.phi, np.zeros(D), np.ones(D))
    plain = Model(features, weights, np.ones((10, P)), np.zeros(P), np.ones(P), plain_kernel, {}, 0)
    with pytest.raises(InputError, match="not multi-view"):
        plain.predict(X, views=[0])
    with pytest.raises(InputError, match="not multi-view"):
        plain.predict_views(X)
    save_model(plain, tmp_path / "plain")
    with pytest.raises(InputError, match="not multi-view"):
        score(tmp_path / "plain", whole, engine=engine, inputs=["a", "b", "c"], views=["view0"])
    model = replace(model, posterior=None)
    mute = replace(model, info={})
    save_model(mute, tmp_path / "mute")
    with pytest.raises(InputError, match="does not say which arrays"):
        predict(tmp_path / "mute", whole, tmp_path / "out", engine=engine, views=["view0"])
    views = model.info["data"]["views"]
    for number, lie in enumerate([[{}], [{**views[0], "columns": [10**12]}, *views[1:]], "a", views[:2]]):
        save_model(replace(model, info={"data": {"views": lie}}), tmp_path / f"{number}")
        with pytest.raises(InputError, match="model's views say"):
            predict(tmp_path / f"{number}", whole, tmp_path / "out", engine=engine, views=["view2"])
    with pytest.raises(InputError, match=r"has 1 input columns, but the model was fitted to 2 \(a_0, a_1\) in these"):
        predict(published[0], whole, tmp_path / "out", engine=engine, views=["view0"], inputs="c")


def multi(*views: Any, names: Any = None) -> MultiView:
    return MultiView(list(views), names)


G = Gaussian(1.0)
WRONG: dict[str, Callable[[], Any]] = {
    "two views or more": lambda: multi((2, G)),
    "one for each of the 2 views, got 1": lambda: multi((2, G), (3, G), names=["a"]),
    "another text for each view, got 'a'": lambda: multi((2, G), (3, G), names=["a", "a"]),
    "another text for each view, got ''": lambda: multi((2, G), (3, G), names=["", "a"]),
    "a count of at least 1, got 0": lambda: multi((2, G), (0, G)),
    "whole numbers of 0 or more": lambda: multi(([0, 0], G), (3, G)),
    "not multi-view itself": lambda: multi((2, G), (3, KERNELS["scalars"])),
    "must be shift-invariant": lambda: multi((2, G), (3, kernels.ArcCosine(1))),
    "output 'covariance'": lambda: multi((2, G), (3, Decomposable(G, "covariance"))),
    "output 'learned'": lambda: multi((2, G), (3, Decomposable(G, "learned"))),
    "no multiples and no sums": lambda: 2.0 * KERNELS["scalars"],
    "fit a multi-view one alone": lambda: kernels.mixture([KERNELS["scalars"], Decomposable(G)], D, 4),
    "sees column 4, but the inputs have 4": lambda: KERNELS["scalars"].fix(4, 4),
    "leaves out column 5": lambda: KERNELS["scalars"].fix(6, 4),
    "2 times as many outputs as targets, not 3": lambda: KERNELS["scalars"].fix(D, 3),
    "needs as many targets as inputs": lambda: KERNELS["fields"].fix(D, 9),
    "known only with the targets": lambda: KERNELS["scalars"].average,
    "sorf is no rule for the views": lambda: Recipe(fixed("scalars"), frequencies.SORF(), D, 4, 40),
    "2 views need at least one each; raise n_features to 4": lambda: Recipe(
        fixed("scalars"), frequencies.IID(), D, 4, 3
    ),
    "needs at least one for each": lambda: Recipe(fixed("concatenated"), frequencies.IID(), D, 4, 5).draw(0),
}  # fmt: skip


@pytest.mark.parametrize("said", WRONG)
def test_what_cannot_be_is_refused(said: str) -> None:
    with pytest.raises(InputError, match=said):
        WRONG[said]()


def test_parts_of_the_features_are_refused() -> None:
    """The first ones are those of the first view."""
    found = Recipe(fixed("scalars"), frequencies.IID(), D, 4, 40).draw(0)
    with pytest.raises(InputError, match="give one count"):
        cut(FeatureMap(found.phi, np.zeros(D), np.ones(D)), found.density, 10)
    with pytest.raises(InputError, match="multi-view"):
        operator_weights(fixed("scalars"), 40, found.density, normalize=True)


def test_the_kernel_is_one_for_the_rest_of_the_code() -> None:
    several: OperatorKernel = KERNELS["fields"]
    assert several.V == 3 and several.concatenated and Decomposable(G).V == 1
    assert len(several.terms()) == 5
    omega, fix = np.random.default_rng(0).standard_normal((3, D)), several.fix(D, 3 * P)
    for (weight, base), (_, again) in zip(several.terms(), fix.terms(), strict=True):
        np.testing.assert_array_equal(base.fix(D, 3 * P).root(omega), again.root(omega))
        assert np.count_nonzero(np.any(again.root(omega).reshape(3, -1, 3, P), axis=(0, 1, 3))) == 1
        assert again.trace(D, 3 * P) == pytest.approx(np.trace(again.gram(omega[:1], omega[:1])[0, 0])) and weight > 0
    assert isinstance(frequencies.default_sampler(KERNELS["scalars"]), frequencies.Orthogonal)
    assert isinstance(frequencies.default_sampler(KERNELS["weighed"]), frequencies.Orthogonal)
