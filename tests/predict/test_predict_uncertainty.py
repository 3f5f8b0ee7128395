"""Deviations and bands from the command line: what is written, resumed after a kill, and held against targets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from cases import plain_map, weights_of
from command_line import DORFF, INDEPENDENT, call, write_csv, write_job

from dorff import frequencies, kernels
from dorff.data import ingest, verify
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model.calibration import Conformal, scores
from dorff.model.posterior import Posterior, SeparableBlock
from dorff.predict import Uncertainty, predict, score
from dorff.store import save_model

ROWS, D, M = 20_000, 2, 40
C = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, -1.0]])


def fitted(observe: FloatArray | None = None) -> Model:
    kernel = kernels.Decomposable(kernels.Gaussian(0.7), np.eye(2)).fix(D, 2)
    found = frequencies.Orthogonal().draw(kernel, d=D, p=2, count=M // 2, seed=1)
    weights, rng = weights_of(kernel, found), np.random.default_rng(2)
    root = rng.standard_normal((M, M))
    values, vectors = np.linalg.eigh(root @ root.T)
    block = SeparableBlock(
        vectors, 1.0 / (values[:, None] + 1.0), np.array([0.2]) * np.ones(2), weights.gain, np.zeros(M), np.eye(2),
        np.eye(2),
    )  # fmt: skip
    noise = np.diag([0.25, 4.0]) if observe is None else np.diag([0.25, 16.0, 0.3])
    return Model(
        plain_map(found.omega), weights, rng.standard_normal((M, 2)), np.array([1.0, -2.0]), np.ones(2), kernel,
        {"type": "orthogonal"}, 1, {"data": {"targets": ["u", "v"] if observe is None else ["f0", "f1"]}}, observe,
        Posterior((block,), 0.01 * np.eye(2), noise),
    )  # fmt: skip


def targets(model: Model, X: FloatArray, seed: int) -> FloatArray:
    """New targets of a function that the posterior could have drawn, with noise twice as wide where x0 > 0."""
    (function,) = model.sample(1, seed=7)
    assert model.posterior is not None
    noise = np.random.default_rng(seed).standard_normal((len(X), len(model.posterior.noise)))
    wide = np.where(X[:, :1] > 0, 2.0, 0.5)
    return model.observed(function.predict(X)) + wide * noise * np.sqrt(np.diag(model.posterior.noise))


def corrected(model: Model, rows: int = 4000) -> Model:
    """With factors from rows of its own."""
    X = np.random.default_rng(11).standard_normal((rows, D))
    found = scores(targets(model, X, 12), model.observed(model.predict(X)), model.std(X, noise=True))
    return replace(model, info={**model.info, "conformal": Conformal.fit(found).config()})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FloatArray, FloatArray]:
    X = np.random.default_rng(3).standard_normal((ROWS, D))
    Y, folder = targets(fitted(), X, 4), tmp_path_factory.mktemp("data")
    np.savez(folder / "a.npz", x=X, y=Y)
    ingest([folder / "a.npz"], folder / "a.zarr", inputs=["x"], targets=["y"], shard_rows=1024)
    return folder / "a.zarr", X, Y


def array(path: Path, name: str) -> FloatArray:
    return np.asarray(zarr.open_array(str(path / name), mode="r")[...])


@pytest.mark.parametrize("observe", [None, C], ids=["all", "observed"])
@pytest.mark.parametrize("conformal", [False, True])
@pytest.mark.parametrize("noise", [False, True])
def test_arrays_are_the_models(data, tmp_path, observe, conformal, noise):
    store, X, _ = data
    model = corrected(fitted(observe)) if conformal else fitted(observe)
    save_model(model, tmp_path / "m")
    words = ["--std", *(["--noise"] if noise else []), "--bands", "0.5,0.95", "--workers", 1]
    done = call("predict", tmp_path / "m", store, tmp_path / "o.zarr", *words)
    assert done.exit_code == 0 and "rows of y, std, bands" in done.output
    np.testing.assert_allclose(array(tmp_path / "o.zarr", "y"), model.predict(X), rtol=1e-12)
    np.testing.assert_allclose(array(tmp_path / "o.zarr", "std"), model.std(X, noise=noise), rtol=1e-10)
    for level in (0.5, 0.95):
        low, high = model.band(X, level)
        np.testing.assert_allclose(array(tmp_path / "o.zarr", f"low_{100 * level:g}"), low, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(array(tmp_path / "o.zarr", f"high_{100 * level:g}"), high, rtol=1e-10, atol=1e-12)
    attributes = dict(zarr.open_group(str(tmp_path / "o.zarr"), mode="r").attrs)
    bands = {"levels": [0.5, 0.95], "kind": "conformal" if conformal else "plain", "noise": True}
    assert attributes["dorff"]["uncertainty"] == {"std": {"noise": noise}, "bands": bands}
    named = ["u", "v"] if observe is None else ["f0", "f1"]
    of_targets = named if observe is None else ["y0", "y1", "y2"]
    columns = attributes["columns"]
    assert columns["y"] == [f"{name}_predicted" for name in named]
    assert columns["low_50"] == [f"{name}_low_50" for name in of_targets]
    assert columns["high_95"] == [f"{name}_high_95" for name in of_targets]
    assert columns["std"] == [f"{name}_std" for name in (of_targets if noise else named)]
    assert verify(tmp_path / "o.zarr") == []


class Interrupted(Exception):
    """Stands for whatever ends a driver."""


def test_a_stopped_prediction_goes_on_and_never_mixes_questions(data, tmp_path):
    store, X, _ = data
    model, asked = fitted(), Uncertainty(std=True, bands=(0.8,))
    save_model(model, tmp_path / "m")

    def stop(done: int, _total: int) -> None:
        if done > ROWS // 2:
            raise Interrupted

    out, seen = tmp_path / "o.zarr", []
    with pytest.raises(Interrupted):
        predict(tmp_path / "m", store, out, engine=SerialEngine(), uncertainty=asked, progress=stop)
    (staging,) = tmp_path.glob(".o.zarr.*.partial")
    assert not out.exists() and {path.name for path in staging.iterdir()} == {"y", "std", "low_80", "high_80"}
    (staging / "std" / "c" / "1" / "0").unlink()  # a shard counts when all of its arrays are there
    predict(tmp_path / "m", store, out, engine=SerialEngine(), uncertainty=asked,
            progress=lambda done, _: seen.append(done))  # fmt: skip
    assert ROWS // 3 < seen[0] < ROWS
    np.testing.assert_allclose(array(out, "std"), model.std(X), rtol=1e-12)

    with pytest.raises(Interrupted):
        predict(tmp_path / "m", store, tmp_path / "b.zarr", engine=SerialEngine(), uncertainty=asked, progress=stop)
    other = Uncertainty(std=True, noise=True)
    predict(tmp_path / "m", store, tmp_path / "b.zarr", engine=SerialEngine(), uncertainty=other)
    np.testing.assert_allclose(array(tmp_path / "b.zarr", "std"), model.std(X, noise=True), rtol=1e-12)
    assert {path.name for path in (tmp_path / "b.zarr").iterdir()} == {"y", "std", "zarr.json"}
    assert not list(tmp_path.glob(".b.zarr*"))


@pytest.mark.process
def test_killed_and_run_again_is_the_same_to_the_bit(data, tmp_path):
    store, _, _ = data
    save_model(corrected(fitted()), tmp_path / "m")
    words = ["predict", str(tmp_path / "m"), str(store)]
    more = ["--std", "--bands", "0.5,0.9", "--workers", "1"]
    running = subprocess.Popen([DORFF, *words, str(tmp_path / "killed.zarr"), *more], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob(".killed.zarr.*.partial/std/c/0/0")) and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert call(*words, tmp_path / "whole.zarr", *more).exit_code == 0
    if not (tmp_path / "killed.zarr").exists():  # it may have been quicker than the kill
        assert call(*words, tmp_path / "killed.zarr", *more).exit_code == 0
    for name in ("y", "std", "low_50", "high_50", "low_90", "high_90"):
        np.testing.assert_array_equal(array(tmp_path / "killed.zarr", name), array(tmp_path / "whole.zarr", name))


@pytest.mark.parametrize("observe", [None, C], ids=["all", "observed"])
def test_coverage_is_the_share_inside_and_conformal_bands_hold(tmp_path, observe):
    """Noise that the posterior does not know of: plain bands are off, conformal ones right within the binomial error
    of both sets of rows."""
    model, X = corrected(fitted(observe)), np.random.default_rng(3).standard_normal((5000, D))
    Y = targets(model, X, 5)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"], shard_rows=1024)
    save_model(model, tmp_path / "m")
    done = call("score", tmp_path / "m", tmp_path / "a.zarr", "--coverage", "--workers", 1, "--json")
    found = json.loads(done.stdout)["coverage"]
    names = [f"y{i}" for i in range(Y.shape[1])]
    assert list(found) == ["0.5", "0.8", "0.9", "0.95", "0.99"]
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        for kind in ("plain", "conformal"):
            low, high = model.band(X, level, conformal=kind == "conformal")
            inside = np.mean((low <= Y) & (high >= Y), axis=0)
            shares = found[f"{level:g}"]
            assert [shares["per_output"][name][kind] for name in names] == pytest.approx(inside, abs=1e-12)
            assert shares[kind] == pytest.approx(inside.mean())
            if kind == "conformal":
                error = np.sqrt(level * (1 - level) * (1 / 4000 + 1 / 5000))
                assert np.all(np.abs(inside - level) < 4 * error + 1 / 4000)
    assert found["0.5"]["plain"] > 0.53 and found["0.99"]["plain"] < 0.98
    text = call("score", tmp_path / "m", tmp_path / "a.zarr", "--coverage", "--workers", 1).output
    assert f"inside 95% (conformal)  {100 * found['0.95']['conformal']:.1f}%  y0 " in text


def test_coverage_without_factors_or_with_too_few_rows(data, tmp_path):
    store, _, _ = data
    save_model(fitted(), tmp_path / "plain")
    found = score(tmp_path / "plain", store, engine=SerialEngine(shuffle=1), coverage=(0.5,)).coverage
    assert found["0.5"]["conformal"] is None and found["0.5"]["per_output"]["y0"]["conformal"] is None
    assert score(tmp_path / "plain", store, engine=SerialEngine()).coverage is None
    save_model(corrected(fitted(), rows=30), tmp_path / "few")
    found = score(tmp_path / "few", store, engine=SerialEngine(), coverage=(0.9, 0.99)).coverage
    assert found["0.99"]["conformal"] is None and found["0.9"]["conformal"] > 0.7
    with pytest.raises(InputError, match=r"level 0.99: 30 held-out rows"):
        predict(tmp_path / "few", store, tmp_path / "o.zarr", engine=SerialEngine(),
                uncertainty=Uncertainty(bands=(0.99,)))  # fmt: skip
    assert not list(tmp_path.glob("*o.zarr*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "--std"], "--std: .* keeps no posterior; set solve.posterior: true"),
        (["predict", "--bands", "0.5"], "--bands: .* keeps no posterior"),
        (["predict", "--noise"], r"--noise \(noise=True\): says what deviations hold; ask for --std"),
        (["predict", "--bands", "half"], "--bands: 'half' is not a level"),
        (["predict", "--bands", "50"], "level must be between 0 and 1, such as 0.95, not 50.0"),
        (["predict", "--bands", "0.5,0.50"], "a level is named twice"),
        (["score", "--coverage"], "--coverage: .* keeps no posterior"),
    ],
)
def test_what_cannot_be_answered_is_refused(data, tmp_path, words, message):
    store, _, _ = data
    save_model(replace(fitted(), posterior=None), tmp_path / "m")
    out = [tmp_path / "o.zarr"] if words[0] == "predict" else []
    done = call(words[0], tmp_path / "m", store, *out, *words[1:])  # two workers, which are not started
    assert done.exit_code == 3
    assert re.search(message, done.output)
    assert not list(tmp_path.glob("*o.zarr*"))


def test_a_classifier_has_probabilities_instead(data, tmp_path):
    store, _, _ = data
    model = fitted()
    save_model(replace(model, info={**model.info, "labels": ["a", "b"]}), tmp_path / "m")
    with pytest.raises(InputError, match="is a classifier, whose probabilities say how sure it is"):
        predict(tmp_path / "m", store, tmp_path / "o.zarr", engine=SerialEngine(), uncertainty=Uncertainty(std=True))


def heteroscedastic(n: int, seed: int) -> FloatArray:
    """Rows (n, 4) of places and a smooth field there, whose noise grows along x and has heavy tails."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2))
    smooth = np.column_stack([np.sin(3 * X[:, 0]), np.cos(3 * X[:, 1])])
    return np.column_stack([X, smooth + (0.05 + 0.2 * (X[:, :1] > 0)) * rng.standard_t(4, (n, 2))])


def test_a_job_with_conformal_bands_holds_what_it_says(tmp_path, monkeypatch):
    """From CSV to coverage of rows never seen, by the commands alone: within the binomial error of the held-out rows
    and the new ones, where plain bands are far off."""
    monkeypatch.chdir(tmp_path)
    for name, n, seed in (("sea", 12_000, 1), ("new", 6000, 2)):
        write_csv(Path(f"{name}.csv"), heteroscedastic(n, seed))
        assert call("ingest", f"{name}.csv", f"{name}.zarr", "--inputs", "a,b", "--targets", "u,v").exit_code == 0
    solve = {"ridge": 1e-5, "posterior": True, "conformal": True, "folds": {"count": 4, "by": "rows"}}
    write_job(Path("job.yaml"), kernel=INDEPENDENT, solve=solve)
    done = call("fit", "job.yaml")
    assert done.exit_code == 0, done.output
    found = json.loads(call("score", "models/sea", "new.zarr", "--coverage", "--workers", 1, "--json").stdout)
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        shares = found["coverage"][f"{level:g}"]["per_output"]
        error = np.sqrt(level * (1 - level) * (1 / 3000 + 1 / 6000))
        assert all(abs(shares[name]["conformal"] - level) < 4 * error for name in ("u", "v")), (level, shares)
    assert found["coverage"]["0.5"]["plain"] > 0.6
    assert call("predict", "models/sea", "new.zarr", "out.zarr", "--bands", "0.9", "--workers", 1).exit_code == 0
    low, high, Y = array(Path("out.zarr"), "low_90"), array(Path("out.zarr"), "high_90"), array(Path("new.zarr"), "y")
    inside = np.mean((low <= Y) & (high >= Y), axis=0)
    shares = found["coverage"]["0.9"]["per_output"]
    np.testing.assert_allclose(inside, [shares[name]["conformal"] for name in ("u", "v")], atol=1e-12)
