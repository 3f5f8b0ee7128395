"""The page as a judgement: its verdict and warnings, held-out rows, bands, slices, and what it leaves out."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal
from quick import slow

from dorff import kernels
from dorff.model import Model
from dorff.model.calibration import Conformal, HeldSample
from dorff.model.posterior import Posterior, SeparableBlock
from dorff.report import page
from dorff.report.describe import Subject, read_column
from dorff.report.doubt import Doubt
from dorff.report.fields import MOST_TRACKED, Plane, _thinned, planes
from dorff.report.figures import _by_group, effects, new_figure, shades
from dorff.report.page import _coverage, render
from dorff.store import load_model
from tests.report.test_report import GAUSSIAN, REPORT, a_model, an_info, helmholtz

OUTPUT = {"target": "depth", "r2": 0.81, "rmse": 2.0, "rmse_mean": 5.0, "r2_linear": 0.4, "r2_train": 0.85}
SCALAR = kernels.Decomposable(GAUSSIAN)


def info(d: int = 1, targets: list[str] | None = None, **report: Any) -> dict[str, Any]:
    return {**an_info([f"input{i}" for i in range(d)], targets or ["depth_m"]), "report": {**REPORT, **report}}


def quality(*outputs: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "by": "blocks",
        "folds": 5,
        "rows": 1234,
        "dependence": None,
        "linear_rows": 999,
        "outputs": outputs,
    } | more


def text(model: Model, **options: Any) -> str:
    """What a reader sees, spaces as one."""
    page = re.sub(r"base64,[A-Za-z0-9+/=]+", "", render(model, Path("somewhere"), **options))
    return " ".join(html.unescape(re.sub(r"<style>.*</style>|<[^>]+>", " ", page, flags=re.DOTALL)).split())


def a_sample(n: int = 300, d: int = 1, q: int = 1, **changes: Any) -> HeldSample:
    """Rows whose residuals are normal, of deviation 0.5."""
    rng = np.random.default_rng(2)
    X, values = rng.uniform(-1, 1, (n, d)), rng.standard_normal((n, q))
    Y = values + 0.5 * rng.standard_normal((n, q))
    return replace(HeldSample(np.arange(n) * 7, X, Y, values, np.full((n, q), 0.5)), **changes)


def test_the_verdict_is_in_words_and_numbers() -> None:
    said = text(a_model(SCALAR, 1, 1, info(quality=quality(OUTPUT), ridge=1e-3)))
    for words in (
        "explains 81% of the variance (R² 0.810): its error is about 56% smaller than that of predicting the mean",
        "better than a linear model of the same inputs (R² 0.400)",
        "5 folds of blocks, 1,234 rows: each is predicted by a fit that has not seen its fold",
        "The linear model was fitted to 999 rows", "depth 0.810 2 5 0.400 0.850", "The model keeps none of these rows",
    ):  # fmt: skip
        assert words in said, words
    assert "Warnings" not in said and "Dependence" not in said and "Predicted against observed" not in said
    assert said.index("How good it is") < said.index("Quality by output") < said.index("Slices") < said.index("Inputs")


def test_each_warning_comes_with_its_remedy() -> None:
    poor = {**OUTPUT, "target": "wind", "r2": -0.1, "r2_linear": 0.7, "r2_train": 0.9}
    report = {"quality": quality(OUTPUT, poor, dependence=0.25), "ridge": 1e-4}
    said = text(a_model(SCALAR, 1, 2, info(targets=["depth", "wind"], **report)))
    for words in (
        "No better than the mean for wind: give inputs that tell more of it",
        "R² is 0.88 on the rows fitted and 0.36 on others: use larger ridges",
        "A linear model of the same inputs does better (R² 0.550)", "finds nothing that a linear model does not",
        "Best is depth (R² 0.81), worst wind (-0.10)", "to 999 rows. Dependence between neighbouring rows: 0.25. RMSE",
    ):  # fmt: skip
        assert words in said, words
    said = text(a_model(SCALAR, 1, 2, info(targets=["depth", "wind"], warnings=["<b>few</b> rows"], **report)))
    assert "<b>few</b> rows" in said and "on the rows fitted and" not in said, "the fit's own are enough"
    assert "No better" not in said and "finds nothing" not in said and "does better (R² 0.550)" in said
    assert "ran out of steps" in text(a_model(SCALAR, 1, 1, info(status="not_converged")))


@pytest.mark.parametrize(
    ("r2", "linear", "words"),
    [
        (0.01, None, "no better than predicting the mean (R² 0.010)"), (-0.5, None, "worse than predicting the mean"),
        (0.5, 0.495, "A linear model of the same inputs does as well"), (None, 0.3, "not known: none were held out"),
        ("high", float("nan"), "not known: none were held out"),
    ],
)  # fmt: skip
def test_the_verdict_may_be_that_it_is_no_good(r2: Any, linear: float | None, words: str) -> None:
    said = text(a_model(SCALAR, 1, 1, info(quality=quality({"target": "depth", "r2": r2, "r2_linear": linear}))))
    assert words in said and ("R² of a linear model" in said) == (linear is not None and linear == linear)


def test_other_scores_are_said_where_they_are_all_that_is_known() -> None:
    labels = {"labels": ["a", "b"], "calibration": {"slope": 2.0, "rows": 77}}
    scored = info(score=0.875, score_by="holdout")
    assert "R² on the rows of publish.holdout: 0.875" in text(a_model(SCALAR, 1, 1, scored))
    said = text(a_model(SCALAR, 1, 2, scored | labels))
    assert "Accuracy on the rows of publish.holdout: 0.875" in said and "softmax(2 f), found on 77 held-out" in said
    assert "explains 64% of the variance" in text(a_model(SCALAR, 1, 1, info(score=0.64, score_by="kfold")))


def test_classes_are_judged_by_accuracy_and_recall() -> None:
    classes = [{"label": "<oak>", "rows": 40, "recall": 0.9}, {"label": "fir", "rows": 0, "recall": None}, 7]
    seen = {"accuracy": 0.875, "accuracy_frequent": 0.6, "classes": classes, "rows": 77, "by": "groups", "outputs": []}
    said = text(a_model(SCALAR, 1, 2, info(quality=seen, score=0.5, score_by="kfold", labels=["<oak>", "fir"])))
    for words in (
        "names the right class for 87.5%; to name the most frequent class always is right for 60.0%",
        "<oak> 40 0.900", "fir 0 –", "77 rows of one fold of groups, predicted by the fit without that fold",
    ):  # fmt: skip
        assert words in said, words
    assert "Quality by output" not in said and "explains" not in said and "RMSE" not in said
    assert "Quality by class" not in text(a_model(SCALAR, 1, 2, info(quality=seen | {"accuracy": "high"})))


def test_held_out_rows_speak_where_folds_do_not() -> None:
    held = a_sample()
    said = text(replace(a_model(SCALAR, 1, 1, info()), held=held))
    r2, share = 1 - np.mean(held.residuals**2) / np.var(held.Y), np.mean(np.abs(held.residuals) <= 1.959964 * 0.5)
    assert f"R² {r2:.3f}" in said and "300 rows of one fold, predicted by the fit without that fold" in said
    assert f"depth {r2:.3f} {np.sqrt(np.mean(held.residuals**2)):.4g} {np.std(held.Y):.4g}" in said
    assert f"Plain 95% bands hold {100 * share:.1f}% of the targets" in said and "conformal" not in said
    assert "along the file" in said and "by group" not in said and "over their deviations" in said
    row = held.numbers[np.argmin(np.abs(held.X[:, 0] - np.median(held.X)))]
    assert f"{held.X[held.numbers == row][0, 0]:.5g}" in said.split("Inputs")[1]  # the typical value
    assert "R² of a linear model" not in said


@pytest.mark.statistical
def test_bands_that_do_not_hold_are_warned_of_and_corrected_ones_are_shown() -> None:
    held = a_sample(q=2, std=np.full((300, 2), [0.5, 0.2]), groups=np.arange(300) % 3 + 0.0)
    model = replace(a_model(SCALAR, 1, 2, info(targets=["depth_m", "wind"])), held=held)
    said = text(model)
    assert "of wind: set solve.conformal: true" in said and "of depth: set" not in said and "by group" in said
    factors = Conformal.fit(np.abs(held.residuals[:40]) / held.std[:40])  # 40 rows say nothing of 99%
    said = text(replace(model, info={**model.info, "conformal": factors.config()}))
    assert "set solve.conformal" not in said and "right by construction" in said
    shares = [np.mean(np.abs(held.residuals[:, 1]) <= factors.factor(level)[1] * 0.2) for level in (0.5, 0.8, 0.95)]
    assert "conformal " + " ".join(f"{100 * share:.1f}%" for share in shares) in said
    few = Conformal.fit(np.abs(held.residuals[:9]) / held.std[:9])
    shares = _coverage(replace(model, info={**model.info, "conformal": few.config()}))["conformal"]
    assert np.isfinite(shares[:2]).all() and np.isnan(shares[2]).all()  # 95% takes 19 rows
    said = text(replace(model, held=replace(held, std=None, groups=None)))
    assert "What bands hold" not in said and "as they are, against the normal law" in said


def test_groups_are_called_by_their_numbers_or_by_a_first_row() -> None:
    axes = new_figure(4, 3).add_subplot()
    hashed = np.array([2**61 + 5, 2**60 + 9]).view(np.float64)  # of a text
    groups = np.array([3.0, 3.0, hashed[0], 0.0, hashed[1], hashed[1]])
    _by_group(axes, np.arange(6.0), groups, np.arange(6) * 10 + 7, {})
    assert sorted(one.get_text() for one in axes.get_xticklabels()) == ["0", "3", "row 27…", "row 47…"]
    named = {str(2**61 + 5): "buoy seven", str(2**60 + 9): "data/night/of/2024-06-01.csv"}
    _by_group(axes := new_figure(4, 3).add_subplot(), np.arange(6.0), groups, np.arange(6), named)
    shown = sorted(one.get_text() for one in axes.get_xticklabels())
    assert shown == ["0", "3", "buoy seven", "…/2024-06-01.csv"]
    _by_group(axes := new_figure(4, 3).add_subplot(), np.zeros(100), np.arange(100) % 33 + 0.0, np.arange(100), {})
    assert [one.get_text() for one in axes.get_xticklabels()] == [f"{number}" for number in range(12)]


def test_targets_that_no_row_has_are_no_reason_to_fail() -> None:
    held = a_sample(q=2)
    held.Y[:, 1] = np.nan
    said = text(replace(a_model(SCALAR, 1, 2, info(targets=["depth", "wind"])), held=held))
    assert "wind – – –" in said and "Residuals" in said


def test_every_trial_and_every_choice_is_listed() -> None:
    table = [{"candidate": c, "m": 64, "ridge": r, "value": -7.5 * c - r} for c in (0, 1) for r in (0.125, 0.25)]
    choices = [{"key": "features.count", "value": 512, "why": "a quarter of <the rows>"}, 3, {}]
    report = {"table": table, "select": "evidence", "choices": choices}
    said = text(a_model(SCALAR, 1, 1, info(**report) | {"kernels": ["0.3 curl", "lengthscale 2"]}))
    trials = "lengthscale 2 64 0.25 -7.75 lengthscale 2 64 0.125 -7.625 0.3 curl 64 0.25 -0.25 0.3 curl 64 0.125 -0.125"
    assert "Every trial: 4" in said and trials in said and "Score (evidence)" in said
    held = [{**one, "r2": r2, "value": 3.0 - r2} for one, r2 in zip(table, (0.2, 0.9, 0.5, 0.7), strict=True)]
    by_r2 = text(a_model(SCALAR, 1, 1, info(table=held, select="kfold") | {"kernels": ["a", "b"]}))
    ranked = "a 64 0.25 0.1 b 64 0.25 0.3 b 64 0.125 0.5 a 64 0.125 0.8"
    assert ranked in by_r2 and "1 − R² (kfold)" in by_r2
    assert "features.count: 512 a quarter of <the rows>" in said and "How kernel and ridge were chosen" not in said
    said = text(a_model(SCALAR, 1, 1, info(select="kfold") | {"kernels": ["one", "two"]}))
    assert "What dorff chose" not in said and "one 0.0001 0.2002 two 0.0001 0.2238" in said


def posterior(model: Model) -> Model:
    """The model with the prior as its posterior, and some noise."""
    m, p = model.feature_map.m, model.p
    r = model.weights.shape[1]
    eye = np.eye(m)
    block = SeparableBlock(eye, np.ones((m, 1)), np.ones(r), np.ones(m), np.zeros(m), np.eye(r), np.ones((r, p)))
    return replace(model, posterior=Posterior((block,), np.zeros((p, p)), 0.01 * np.eye(p)))


def test_typical_is_the_row_nearest_to_the_medians_and_dummies_go_together() -> None:
    model = a_model(SCALAR, 4, 1, info(4))
    station = np.eye(3)[np.arange(90) % 3]
    X = np.column_stack([np.linspace(-1, 1, 90), station])
    held = a_sample(90, 4, X=X)
    subject = Subject.of(replace(model, held=held))
    assert abs(subject.centre[0]) < 0.05 and subject.centre[1:].sum() == 1 and subject.centre in held.X
    at = int(np.argmax(subject.centre[1:])) + 1
    other = at % 3 + 1
    assert_array_equal(subject.along(other, np.array([0.0, 1.0]))[:, 1:], [subject.centre[1:], np.eye(3)[other - 1]])
    assert np.all(subject.along(at, np.array([0.0, 1.0]))[:, 1:].sum(axis=1) == 1)
    values, few = subject.places(other, 50)
    assert few and values.tolist() == [0.0, 1.0] and not subject.places(0, 50)[1]
    assert -1 < subject.places(0, 50)[0][0] < -0.9  # the first percentile
    assert Subject.of(model).centre.tolist() == [0.0] * 4 and Subject.of(model).place.startswith("in the middle")
    given = Subject.of(replace(model, held=held), (X + 1, held.Y))
    assert_array_equal(given.centre, subject.centre + 1)
    assert "row" in subject.place and "of the data" not in given.place
    two = np.column_stack([station, station[:, ::-1], X[:, 0]])
    assert Subject.of(replace(a_model(SCALAR, 7, 1), held=a_sample(90, 7, X=two)))._dummies == [range(3), range(3, 6)]


def test_constant_inputs_are_listed_and_left_out() -> None:
    described = info(6)
    described["data"]["low"][2] = described["data"]["high"][2] = 0.25
    model = a_model(SCALAR, 6, 1, described)
    subject, said = Subject.of(model), text(model)
    assert subject.varied == (0, 1, 3, 4, 5) and effects(subject)[2] == 0 < effects(subject)[3]
    assert "input2 constant 0.25 left out of the plots" in said and "Constant inputs are left out (1)" in said
    assert "the 4 of 5 inputs that move it most" in said and "input3 -1 1" in said
    assert "left out" not in text(a_model(SCALAR, 3, 1, info(3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "p", "constant", "title", "sure"),
    [
        (3, 1, (1,), "The outputs over the inputs", True), (3, 3, (2,), "The field in planes", False),
        *slow(
            (2, 3, (), "The outputs over the inputs", False), (2, 2, (), "The field", True),
            (3, 3, (), "The field in planes", True), (3, 3, (0, 2), "Slices through a typical row", True),
        ),
    ],
)  # fmt: skip
def test_what_is_drawn_is_what_varies(d: int, p: int, constant: tuple[int, ...], title: str, sure: bool) -> None:
    described = info(d, [f"y{i}_m" for i in range(p)])
    held = a_sample(40, d, p)
    for i in constant:
        described["data"]["low"][i] = described["data"]["high"][i] = held.X[:, i] = 0.0
    model = replace(a_model(SCALAR, d, p, described), held=held)
    said = text(posterior(model) if sure else model)
    assert title in said and ("without noise" in said) == (sure and title != "The field in planes")
    assert len(planes(Subject.of(model))) == {1: 0, 2: 1, 3: 3}[d - len(constant)]
    assert ("How sure the field is" in said) == (title == "The field")


@pytest.mark.slow
def test_a_map_is_over_two_inputs_that_have_many_values_and_move_it_most() -> None:
    held = a_sample(60, 4, 1)
    held.X[:, 3] = held.X[:, 3] > 0
    for columns, moved, names in (
        (["time", "lat", "lon"], [3, 2, 1, 9], ("lon", "lat")),
        (["time", "lat", "depth"], [3, 2, 1, 9], ("time", "lat")),
        (["time", "depth", "lon"], [3, 1, 2, 9], ("time", "lon")),
        (["time", "depth", "z"], [0, 1, 2, 9], ("depth", "z")),
    ):
        described, drawn = {**an_info([*columns, "storm"], ["sst"]), "report": REPORT}, list[int]()
        subject = Subject.of(replace(a_model(SCALAR, 4, 1, described), held=held))

        def draw(plane: Plane, whole: bool, drawn: list[int] = drawn) -> Figure:
            drawn.extend((plane.i, plane.j))
            return new_figure(1, 1)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page, "draw_maps", draw)
            kinds = [one.name for one in page._figures(subject, False, np.array(moved, dtype=float))]
        assert kinds == ["slices", "maps"] and tuple(subject.inputs[i].name for i in drawn) == names
    held.X[:, 1:] = held.X[:, 1:] > 0
    subject = Subject.of(replace(a_model(SCALAR, 4, 1, described), held=held))
    assert [one.name for one in page._figures(subject, False, np.ones(4))] == ["slices"], "one input has many values"
    said = text(replace(a_model(SCALAR, 3, 1, info(3)), held=a_sample(60, 3, 1)))
    assert "Over two inputs" in said and "the other inputs as in the row nearest" in said


def test_rows_are_as_dark_as_their_other_inputs_are_near() -> None:
    held = a_sample(50, 3, 1)
    subject = Subject.of(replace(a_model(SCALAR, 3, 1, info(3)), held=held))
    dark = shades(held.X, subject, [0, 2])
    order = np.argsort(np.abs(held.X[:, 1] - subject.centre[1]))
    assert np.all(np.diff(dark[order]) < 0) and dark.max() == 1.0 and np.all(shades(held.X, subject, [0, 1, 2]) == 1)


def test_a_field_fades_where_nothing_is_known_of_it() -> None:
    model = posterior(a_model(helmholtz(), 2, 2, an_info(["x_m", "y_m"], ["u", "v"])))
    near, far = np.zeros((1, 2)), np.full((1, 2), 30.0)
    rows = np.random.default_rng(1).uniform(-0.2, 0.2, (500, 2))
    whole = Subject.of(model, (rows, rows))
    doubt = Doubt(replace(whole, model=replace(model, posterior=None)), whole=True)
    assert doubt.at(np.vstack([near, far]))[0] < 0.1 and doubt.at(np.vstack([near, far]))[1] > 1
    some = Subject.of(replace(model, held=a_sample(50, 2, 2)))
    assert np.all(Doubt(some).at(near) >= 0)
    bare = Subject.of(replace(model, posterior=None, held=a_sample(50, 2, 2)))
    assert not Doubt(bare).at(far).any()
    rows[0] = np.nan
    assert len(_thinned((rows, rows), whole)[0]) <= MOST_TRACKED and np.isfinite(_thinned((rows, rows), whole)[1]).all()


def test_the_page_of_a_fit_has_what_its_folds_say(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-1, 1, (240, 2)), np.full(240, 44.0), np.eye(2)[np.arange(240) % 2]])
    y = np.sin(3 * X[:, 0]) + 2 * X[:, 3] + 0.1 * rng.standard_normal(240)
    header = "east_km,north_km,height_m,s0,s1,heat_degC"
    np.savetxt(tmp_path / "t.csv", np.column_stack([X, y]), delimiter=",", header=header, comments="")
    inputs = header.rsplit(",", 1)[0]
    assert (
        call("ingest", tmp_path / "t.csv", tmp_path / "t.zarr", "--inputs", inputs, "--targets", "heat_degC").exit_code
        == 0
    )
    kernel = [{"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": scale}} for scale in (0.5, 1.5)]
    job = {
        "data": {"store": "t.zarr"}, "kernel": kernel,
        "features": {"count": 64, "sampler": {"type": "orthogonal"}}, "cluster": {"type": "serial"},
        "solve": {"ridge": [1e-6, 1e-4, 1e-2], "select": "kfold", "folds": {"by": "rows"}}, "state": "state",
        "model": "model",
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    assert call("fit", tmp_path / "job.yaml").exit_code == 0
    assert call("report", tmp_path / "model", "-o", tmp_path / "page.html").exit_code == 0
    model = load_model(tmp_path / "model", held=True)
    said, held = text(model), model.held
    assert held is not None and read_column("heat_degC").unit == "°C"
    assert (
        f"(R² {model.info['report']['score']:.3f})" in said and "Every trial: 6" in said and "lengthscale 1.5" in said
    )
    assert (
        "5 folds of rows, 240 rows: each is predicted by a fit that has not seen its fold" in said
        and "height (m) constant 44 left out of the plots" in said
    )
    subject = Subject.of(model)
    row = int(np.flatnonzero((subject.centre == held.X).all(axis=1))[0])
    assert f"as in the row nearest to the medians (row {held.numbers[row]:,} of the data)" in said
    low = model.predict(subject.along(3, np.array([0.0, 1.0])))[:, 0]
    assert 1.5 < low[1] - low[0] < 2.5  # what a station is worth, not what half of each is
    assert (tmp_path / "page.html").read_text().count("<img") == 5  # two of rows, slices, a map, the choice
