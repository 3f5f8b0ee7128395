"""The model: its derivatives, its artifact, and what it refuses."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import every_kernel, moments_of, rows, trig_map, weights_of

from dorff import ORFFRegressor, frequencies, kernels
from dorff.errors import InputError
from dorff.features import feature_arrays
from dorff.model.model import BLOCK_ROWS, Model
from dorff.solvers import Problem, solve
from dorff.store import load_model, save_model

ARRAYS = ("omega", "feature_weights", "center", "scale", "gain", "root", "coefficients", "intercept", "target_scale")


def fit(kernel, d, p, *, scale=None, target_scale=None, n=60, count=15, seed=7):
    """A model of n rows, its inputs centred and scaled, its targets scaled."""
    X, Y = rows(n, d, p)
    kernel = kernel.fix(d, p)
    found = frequencies.Orthogonal().draw(kernel, d=d, p=p, count=count, seed=seed)
    features = trig_map(found.omega, X.mean(axis=0), np.full(d, 1.7) if scale is None else scale)
    targets = np.full(p, 0.6) if target_scale is None else target_scale
    weights = weights_of(kernel, found)
    problem = Problem.of(moments_of(features, X, Y, y0=Y[0]), weights, scale=targets)
    (solution,) = solve(problem, [1e-4])
    return Model(
        feature_map=features, operator_weights=weights, coefficients=solution.h,
        intercept=problem.bias(weights.combined(solution.h)),
        target_scale=targets, kernel=kernel, sampler=frequencies.Orthogonal().config(), seed=seed,
        info={"fit": {"rows_used": n, "note": "Grüße"}, "targets": ["u", "v"]},
    )  # fmt: skip


def numeric_jacobian(model, X, step=1e-3):
    """Five-point central differences, (n, p, d)."""
    columns = []
    for axis in np.eye(model.d) * step:
        far, near = model.predict(X - 2 * axis) - model.predict(X + 2 * axis), model.predict(X + axis)
        columns.append((far + 8 * (near - model.predict(X - axis))) / (12 * step))
    return np.stack(columns, axis=2)


CASES = [(name, d, p) for d, p in [(2, 2), (3, 3), (1, 2), (3, 2)] for name, _ in every_kernel(d, p)
         if not (d == 1 and ("div" in name or "helm" in name or "sum" in name or "mixed" in name))]  # fmt: skip


@pytest.mark.parametrize(("name", "d", "p"), CASES, ids=[f"{n} {d}->{p}" for n, d, p in CASES])
def test_jacobian_is_the_derivative_of_predict(name, d, p):
    kernel = dict(every_kernel(d, p))[name]
    apart = not kernel.vector_field
    model = fit(kernel, d, p, scale=np.linspace(0.5, 2.0, d) if apart else None,
                target_scale=np.linspace(1.0, 3.0, p) if apart else None)  # fmt: skip
    X, _ = rows(20, d, p, seed=3)
    J = model.jacobian(X)
    assert J.shape == (20, p, d)
    np.testing.assert_allclose(J, numeric_jacobian(model, X), atol=1e-8 * np.abs(J).max())


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("measure", ["trace", "unbounded", "bounded"])
def test_fields_have_no_divergence_and_no_curl_to_rounding(d, measure):
    X, _ = rows(50, d, d, seed=4)
    div_free = fit(kernels.DivergenceFree(kernels.Gaussian(0.7), measure), d, d).jacobian(X)
    curl_free = fit(kernels.CurlFree(kernels.Gaussian(0.7), measure), d, d).jacobian(X)
    divergence = np.trace(div_free, axis1=1, axis2=2)
    curl = curl_free - curl_free.transpose(0, 2, 1)
    assert np.abs(divergence).max() < 1e-12 * np.abs(div_free).max()
    assert np.abs(curl).max() < 1e-12 * np.abs(curl_free).max()
    # The other of each is there: the fields are not constant.
    assert np.abs(np.trace(curl_free, axis1=1, axis2=2)).max() > 0.1
    assert np.abs(div_free - div_free.transpose(0, 2, 1)).max() > 0.1


def test_predict_is_the_sum_the_design_states():
    model = fit(dict(every_kernel(2, 2))["sum trace"], 2, 2)
    X, _ = rows(5, 2, 2, seed=1)
    angles = ((X - model.feature_map.center) / 1.7) @ model.frequencies.T
    phi = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(15)
    expected = np.array([sum(value * psi.T @ h for value, psi, h in zip(row, model.weights, model.coefficients,
                                                                       strict=True)) for row in phi])  # fmt: skip
    np.testing.assert_allclose(model.predict(X), model.intercept + 0.6 * expected, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(X.tolist()), model.predict(X))
    np.testing.assert_array_equal(model.predict(np.asfortranarray(X)), model.predict(X))


def test_predict_goes_by_blocks():
    model = fit(kernels.CurlFree(kernels.Gaussian(0.7)), 2, 2)
    X, _ = rows(2 * BLOCK_ROWS + 3, 2, 2)
    chosen = [0, BLOCK_ROWS - 1, BLOCK_ROWS, 2 * BLOCK_ROWS, 2 * BLOCK_ROWS + 2]
    np.testing.assert_allclose(model.predict(X)[chosen], model.predict(X[chosen]), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(model.jacobian(X)[chosen], model.jacobian(X[chosen]), rtol=1e-12, atol=1e-13)
    assert model.predict(np.empty((0, 2))).shape == (0, 2)
    assert model.jacobian(np.empty((0, 2))).shape == (0, 2, 2)


@pytest.mark.parametrize("X", [np.zeros(2), np.zeros((4, 3)), np.zeros((4, 1)), np.zeros((2, 2, 2)), 1.0])
def test_inputs_of_another_shape_are_refused(X):
    model = fit(kernels.CurlFree(kernels.Gaussian(0.7)), 2, 2)
    for method in (model.predict, model.jacobian):
        with pytest.raises(InputError, match=r"\(rows, 2\)"):
            method(X)


@pytest.mark.parametrize("name", ["lengthscales", "deficient", "helmholtz bounded", "sum trace"])
def test_saved_and_loaded_is_the_same_to_the_bit(tmp_path, name):
    model = fit(dict(every_kernel(3, 3))[name], 3, 3)
    version = save_model(model, tmp_path / "m")
    X, _ = rows(20, 3, 3, seed=8)
    for path in (tmp_path / "m", str(tmp_path / "m"), version):
        again = load_model(path)
        same(again, model)
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        np.testing.assert_array_equal(again.jacobian(X), model.jacobian(X))


def test_the_artifact_says_how_its_frequencies_came_about(tmp_path):
    save_model(fit(dict(every_kernel(2, 2))["sum bounded"], 2, 2), tmp_path)
    again = load_model(tmp_path)
    sampler = frequencies.from_config(again.sampler)
    drawn = sampler.draw(again.kernel, d=2, p=2, count=len(again.frequencies), seed=again.seed)
    np.testing.assert_array_equal(drawn.omega, again.frequencies)
    np.testing.assert_array_equal(weights_of(again.kernel, drawn).psi, again.weights)


def test_versions_follow_one_another_and_current_names_the_last(tmp_path):
    first, second = (fit(kernels.CurlFree(kernels.Gaussian(s)), 2, 2) for s in (0.7, 0.9))
    paths = [save_model(first, tmp_path), save_model(second, tmp_path)]
    assert [path.name for path in paths] == ["v000001", "v000002"]
    same(load_model(tmp_path), second)
    same(load_model(paths[0]), first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "v000001", "v000002"]


def arrays(model):
    """Every array of a model, by name."""
    solved = ("weights", "coefficients", "intercept", "target_scale")
    return {**feature_arrays(model.feature_map), **{name: getattr(model, name) for name in solved}}


def same(found, wanted):
    """Equal in every array, to the bit, and in every word."""
    for name, value in arrays(wanted).items():
        np.testing.assert_array_equal(arrays(found)[name], value, err_msg=name)
    assert found.kernel.config() == wanted.kernel.config()
    assert (found.sampler, found.seed, found.info) == (wanted.sampler, wanted.seed, wanted.info)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """A model and its version directory; tests damage copies."""
    model = fit(kernels.DivergenceFree(kernels.Gaussian(0.7)), 2, 2, count=4)
    return model, save_model(model, tmp_path_factory.mktemp("artifact"))


def chunks(version: Path, name: str):
    return [path for path in sorted((version / name).rglob("*")) if path.is_file() and path.name != "zarr.json"]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_missing_short_or_flipped_array_is_refused(artifact, tmp_path, name):
    _, version = artifact

    def damaged(change):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(version, copy)
        (chunk,) = chunks(copy, name)
        change(chunk)
        return copy

    def flip(position):
        def change(chunk):
            raw = bytearray(chunk.read_bytes())
            raw[position] ^= 0x10
            chunk.write_bytes(raw)

        return change

    changes = [lambda c: c.unlink(), lambda c: c.write_bytes(c.read_bytes()[:-1]), lambda c: c.write_bytes(b""),
               lambda c: c.write_bytes(c.read_bytes() + b"\0"), lambda c: c.write_bytes(bytes(c.stat().st_size)),
               lambda c: shutil.rmtree(tmp_path / "copy" / name), flip(0), flip(3), flip(-1)]  # fmt: skip
    for number, change in enumerate(changes):
        with pytest.raises(InputError) as caught:
            load_model(damaged(change))
        assert str(tmp_path / "copy") in str(caught.value), number


def test_a_flipped_byte_in_any_description_is_refused_or_harmless(artifact, tmp_path):
    """Each is an InputError, or leaves a model equal to the bit (a blank, a field that dorff does not read)."""
    model, version = artifact
    rng, refused = np.random.default_rng(0), 0
    for file in sorted(version.rglob("zarr.json")):
        raw = file.read_bytes()
        for position in rng.choice(len(raw), size=12, replace=False):
            copy = tmp_path / "copy"
            shutil.copytree(version, copy)
            changed = bytearray(raw)
            changed[position] ^= 1 << int(rng.integers(0, 8))
            (copy / file.relative_to(version)).write_bytes(changed)
            try:
                same(load_model(copy), model)
            except InputError:
                refused += 1
            shutil.rmtree(copy)
    assert refused > 40


def test_a_changed_description_is_refused(artifact, tmp_path):
    _, version = artifact
    copy = tmp_path / "copy"

    def change(key, value):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(version, copy)
        node = json.loads((copy / "zarr.json").read_text())
        node["attributes"][key] = value(node["attributes"][key])
        (copy / "zarr.json").write_text(json.dumps(node))
        with pytest.raises(InputError, match="description"):
            load_model(copy)

    change("description", lambda text: text.replace("0.7", "0.8"))
    change("description", lambda text: text.replace('"seed": 7', '"seed": 8'))
    change("crc32", lambda value: value + 1)
    change("format", lambda _: "dorff-model-1")


def test_what_is_no_model_is_refused(artifact, tmp_path):
    model, version = artifact
    with pytest.raises(InputError, match="no model here"):
        load_model(tmp_path / "nowhere")
    save_model(model, tmp_path / "m")
    for pointer in ("../../etc", "v000009", "", "v1/../../x"):
        (tmp_path / "m" / "current").write_text(pointer)
        with pytest.raises(InputError):
            load_model(tmp_path / "m")
    for gone in ("zarr.json", "omega/zarr.json"):
        copy = tmp_path / "copy"
        shutil.copytree(version, copy)
        (copy / gone).unlink()
        with pytest.raises(InputError):
            load_model(copy)
        shutil.rmtree(copy)


@pytest.mark.process
def test_loading_uses_no_pickle(artifact):
    _, version = artifact
    program = f"""
import pickle, _pickle
from dorff.store import load_model
import dorff.store.models
def refuse(*args, **kwargs):
    raise AssertionError("pickle was used")
for module in (pickle, _pickle):
    module.load = module.loads = module.Unpickler = refuse
pickle._Unpickler = pickle._loads = pickle._load = refuse
model = load_model({str(version)!r})
print(model.weights.shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(8, 1, 2)"
    for file in version.rglob("*"):  # and there is none in the files
        assert file.suffix not in (".pkl", ".pickle", ".npy")


def test_two_models_that_differ_in_coefficients_alone_have_other_descriptions(tmp_path):
    """What names a model elsewhere is the hash of its description."""
    model = fit(dict(every_kernel(2, 2))["identity"], 2, 2)
    save_model(model, tmp_path / "a")
    save_model(replace(model, coefficients=2.0 * model.coefficients), tmp_path / "b")
    first, second = (tmp_path / name / "v000001" / "zarr.json" for name in "ab")
    assert first.read_bytes() != second.read_bytes()


def test_weights_that_are_all_the_same_are_written_once(tmp_path):
    """psi of a decomposable kernel: r p numbers on disk, whatever m."""
    q, m = 40, 400
    X, Y = np.random.default_rng(0).standard_normal((50, 2)), np.random.default_rng(1).standard_normal((50, q))
    fitted = ORFFRegressor(kernels.Gaussian(1.0), m).fit(X, Y).model_
    version = save_model(fitted, tmp_path / "m")
    assert sum(file.stat().st_size for file in version.rglob("*")) < 8 * m * q * 4 < 8 * m * q * q
    again = load_model(version)
    same(again, fitted)
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
