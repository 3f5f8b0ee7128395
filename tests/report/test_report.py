"""The page: for any model, self-contained, safe, with the report's numbers."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import trig_map
from command_line import call, contents
from quick import slow

from dorff import frequencies, kernels
from dorff.errors import InputError
from dorff.kernels.operator import OperatorKernel
from dorff.model import Model
from dorff.moments import by_fold
from dorff.passes import BlockSums
from dorff.report import write_report
from dorff.report.describe import Subject, frequencies_text, rate, read_column
from dorff.report.fields import _scale
from dorff.report.figures import from_info
from dorff.solvers import Setting
from dorff.store import save_model

GAUSSIAN = kernels.Gaussian(0.7)
REPORT: dict[str, Any] = {
    "rows_used": 54321, "rows_dropped": 17, "leaves_computed": 3, "leaves_reused": 2, "seconds": 12.34567,
    "syrk_share": 0.9123, "peak_bytes": 777 * 2**20, "plan_peak_bytes": 888 * 2**20, "condition": 123456.0,
    "rung": "cholesky", "status": "ok", "ridge": 3e-5, "m": 64, "model": "somewhere",
    "table": [
        {"candidate": c, "ridge": r, "value": 0.04 + 0.01 * c + r} for c in (0, 1) for r in (1e-4, 1e-3, 1e-2)
    ],
}  # fmt: skip


def helmholtz() -> OperatorKernel:
    return kernels.CurlFree(GAUSSIAN) * 0.3 + kernels.DivergenceFree(GAUSSIAN) * 0.7


def a_model(kernel: OperatorKernel, d: int, p: int, info: Mapping[str, Any] | None = None) -> Model:
    """A small model fitted to smooth made-up data."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (80, d))
    Y = np.stack([np.sin((i + 1) * X.sum(axis=1)) for i in range(p)], axis=1)
    fixed = kernel.fix(d, p, np.cov(Y.T).reshape(p, p))
    drawn = frequencies.Orthogonal().draw(fixed, d=d, p=p, count=32, seed=0)
    features = trig_map(drawn.omega, X.mean(axis=0), np.ones(d))
    sums = BlockSums(features, Y.mean(axis=0), block_rows=64)
    sums.add(X, Y)
    setting = Setting(fixed, d, features.m, (drawn.omega, drawn.log_density, None), False, True)
    (fit,) = setting.solve(by_fold(sums.moments())[0], [1e-3])
    return Model(
        features, fit.weights, fit.solution.h, fit.bias, fit.scale, fixed, {"type": "orthogonal"}, 0, info or {}
    )


def an_info(inputs: list[str], targets: list[str]) -> dict[str, Any]:
    d = len(inputs)
    data = {"store": "sea.zarr", "rows": 54338, "fingerprint": "feedbeef" * 4, "inputs": inputs, "targets": targets}
    data |= {"low": [-1.0] * d, "high": [1.0] * d}
    return {"data": data, "versions": {"dorff": "9.8.7", "numpy": "6.5.4"}, "report": REPORT}


class Parsed(HTMLParser):
    """Tags, their attributes and the text of a page; every element but the void ones must be closed."""

    VOID = ("meta", "img", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def written(model: Model, folder: Path, **options: Any) -> Parsed:
    save_model(model, folder / "model")
    page = write_report(folder / "model", folder / "page.html", **options)
    return Parsed(page.read_text(encoding="utf-8"))


def pictures(page: Parsed) -> list[bytes]:
    """The inlined pictures; none may be anything but a PNG."""
    sources = [value or "" for name, value in page.attributes if name == "src"]
    prefix = "data:image/png;base64,"
    assert all(source.startswith(prefix) for source in sources)
    found = [base64.b64decode(source.removeprefix(prefix), validate=True) for source in sources]
    assert all(picture.startswith(b"\x89PNG\r\n\x1a\n") for picture in found)
    return found


def test_the_page_has_the_numbers_of_the_report(tmp_path: Path) -> None:
    model = a_model(helmholtz(), 2, 2, an_info(["x_km", "y_km"], ["u_m_s", "v_m_s"]))
    page = written(model, tmp_path)
    for number in (
        "54,321", "17", "3 computed, 2 reused", "12.35 s", "91%", "777 MiB of 888 MiB", "1.235e+05", "cholesky",
        "3e-05", "feedbeef" * 4, "9.8.7", "6.5.4", "sea.zarr", "x (km)", "u (m/s)",
        "orthogonal, seed 0 (Yu et al. 2016)", "Helmholtz", "30%", "70%", "s = 0.7 km; trace measure",
        "Minh 2016, eq. 32; Rahimi & Recht 2007",
    ):  # fmt: skip
        assert number in page.text, number
    assert len(pictures(page)) == 3  # the field, its derivatives, the choice
    assert f"{np.sqrt(0.04 + 1e-4):.4g}" in page.text  # the best root score


def test_features_on_a_lattice_are_not_called_random(tmp_path: Path) -> None:
    config, info = frequencies.Lattice(1e-3).config(), an_info(["a"], ["b"])
    choices = [{"key": "features.sampler", "value": config, "why": "it is closer"}]
    model = a_model(kernels.Decomposable(GAUSSIAN), 1, 1, {**info, "report": {**REPORT, "choices": choices}})
    assert "64 random features" in written(model, tmp_path / "random").text
    text = written(replace(model, sampler=config), tmp_path / "on").text
    assert "64 features on a lattice" in text and "lattice, error 0.001, tolerance 1e-12 (" in text
    assert "error: 0.001, tolerance: 1e-12, type: lattice" in text
    assert not any(word in text for word in ("random features", "seed", "periods"))
    assert "periods [360.0, None]" in frequencies_text(replace(model, sampler={**config, "periods": [360.0, None]}))


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    page = written(a_model(helmholtz(), 2, 2, an_info(["x", "y"], ["u", "v"])), tmp_path)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("href", "srcset")]
    html = re.sub(r"base64,[A-Za-z0-9+/=]+", "", (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not re.search(r"(?i)\b[a-z]+://|url\(|@import", html)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'], ["$\\frac{1$_m_s", "{{ 7*7 }} 温度\n"]
    info = an_info(*names)
    info["versions"] = {"<b>x</b>": "<i>1</i>"}
    info["data"]["store"] = "</td><script>"
    page = written(a_model(helmholtz(), 2, 2, info), tmp_path, title="<script>title</script>")
    assert not {"script", "b", "i"} & set(page.tags)
    assert page.tags.count("img") == 3
    assert "<script>alert(1)</script>" in page.text and "{{ 7*7 }} 温度" in page.text and "</td><script>" in page.text


@pytest.mark.parametrize(("d", "known"), [(1, True), (2, False), (3, True), (4, False), (5, True), (15, True)])
def test_a_scalar_model_of_any_number_of_inputs(tmp_path: Path, d: int, known: bool) -> None:
    info = an_info([f"input{i}" for i in range(d)], ["depth_m"]) if known else {}
    page = written(a_model(kernels.Decomposable(GAUSSIAN), d, 1, info), tmp_path)
    assert len(pictures(page)) == (2 if known else 1) + (d > 2)  # a map
    assert (f"the 4 of {d} inputs that move it most" in page.text) == (d > 4)
    assert all(f" input{i} " in page.text for i in range(d)) or not known  # every one is listed
    assert ("54,321" if known else "not recorded") in page.text


@pytest.mark.parametrize(
    ("kernel", "d", "p"),
    [
        (kernels.Decomposable(GAUSSIAN, "covariance"), 1, 2),
        (kernels.Decomposable(kernels.Gaussian((0.5, 2.0))), 2, 2),
        *slow(
            (helmholtz(), 3, 3), (kernels.Decomposable(GAUSSIAN, np.eye(6) + 1), 3, 6),
            (kernels.DivergenceFree(GAUSSIAN), 4, 4),
        ),
    ],
)  # fmt: skip
def test_models_without_a_report_get_a_page(tmp_path: Path, kernel: OperatorKernel, d: int, p: int) -> None:
    page = written(a_model(kernel, d, p), tmp_path)
    assert len(pictures(page)) == (2 if d == p == 2 or p > 3 else 1)
    assert "not recorded" in page.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "info",
    [
        {"data": {"inputs": ["one"], "targets": "uv", "high": None}, "report": {"table": [1, {}]}, "versions": 3},
        {"data": {"low": ["a", None], "high": [1, 2]}, "report": {"condition": float("inf"), "status": None}},
        {"data": {"low": [5.0, 0.0], "high": [5.0, 0.0]}, "report": {"table": [{"ridge": 0.0, "value": 1.0}] * 2}},
        {"report": {"table": [{"candidate": 0, "ridge": r, "value": float("inf")} for r in (0.0, 1.0)]}},
    ],
)
def test_odd_information_is_no_reason_to_fail(tmp_path: Path, info: dict[str, Any]) -> None:
    assert pictures(written(a_model(helmholtz(), 2, 2, info), tmp_path))


@pytest.mark.slow
def test_observations_are_drawn(tmp_path: Path) -> None:
    model = a_model(helmholtz(), 2, 2, an_info(["x_m", "y_m"], ["u", "v"]))
    plain = pictures(written(model, tmp_path))
    X = np.random.default_rng(1).uniform(-0.5, 0.5, (900, 2))
    X[0] = np.nan
    page = written(model, tmp_path, observations=(X, X))
    drawn = pictures(page)
    assert len(drawn) == len(plain) and drawn[0] != plain[0] and "observations" in page.text
    with pytest.raises(InputError, match=r"observations: must be X \(n, 2\) and Y \(n, 2\)"):
        write_report(tmp_path / "model", observations=(X, X[:, :1]))


@pytest.mark.parametrize(("select", "drawn"), [("gcv", 2), ("kfold", 2), ("evidence", 0), ("another's", 0)])
def test_only_scores_that_are_errors_are_drawn(select: str, drawn: int) -> None:
    table = [{"ridge": 1e-3, "value": 0.5}, {"ridge": 1.0, "value": 0.7}]
    assert sum(len(one.scores) for one in from_info({"report": {"select": select, "table": table}})) == drawn


def test_a_bad_condition_is_said(tmp_path: Path) -> None:
    info = an_info(["x", "y"], ["u"])
    model = a_model(kernels.Decomposable(GAUSSIAN), 2, 1, an_info(["x", "y"], ["u"]))
    assert "ill-conditioned" not in written(model, tmp_path / "a").text
    info["report"] = {**REPORT, "status": "ill_conditioned"}
    model = a_model(kernels.Decomposable(GAUSSIAN), 2, 1, info)
    assert "Use a larger ridge" in written(model, tmp_path / "b").text


def test_where_the_page_goes(tmp_path: Path) -> None:
    version = save_model(a_model(kernels.Decomposable(GAUSSIAN), 1, 1), tmp_path / "model")
    page = write_report(tmp_path / "model")
    assert page == tmp_path / "model" / "report-v000001.html" and page == write_report(version)
    assert save_model(a_model(kernels.Decomposable(GAUSSIAN), 1, 1), tmp_path / "model").name == "v000002"
    first = page.read_bytes()
    write_report(version)
    assert page.read_bytes() == first  # the same model, the same page
    with pytest.raises(InputError, match="is a folder"):
        write_report(version, tmp_path)
    with pytest.raises(InputError, match="no model here"):
        write_report(tmp_path)


def test_a_page_takes_no_others_place(tmp_path: Path) -> None:
    version = save_model(a_model(kernels.Decomposable(GAUSSIAN), 1, 1), tmp_path / "model")
    (tmp_path / "text").write_text("mine")
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "away").symlink_to("model/v000001")
    (tmp_path / "nowhere").symlink_to("nothing")
    (tmp_path / "deep").symlink_to("state/abc/below")
    os.mkfifo(tmp_path / "pipe")
    for folder, mark in (("state/abc", "plan.json"), ("sea.zarr", "zarr.json"), ("old.zarr", ".zgroup")):
        (tmp_path / folder / "below").mkdir(parents=True)
        (tmp_path / folder / mark).touch()
    before = contents(tmp_path)
    taken = {"link": "is a link", "nowhere": "is a link", "pipe": "is no plain file", "model": "is a folder"}
    inside = (
        "model/page.html", "model/current", "model/v000001/zarr.json", "model/v000001/intercept/c/0",
        "away/zarr.json", "state/abc/plan.json", "state/abc/below/1.json", "sea.zarr/page.html",
        "old.zarr/1/page.html", "deep/page.html",
    )  # fmt: skip
    for name, why in {**taken, **dict.fromkeys(inside, "lies in ")}.items():
        done = call("report", tmp_path / "model", "-o", tmp_path / name)
        refusal = "a report can be .html" if name.endswith(".json") else why  # which the command says first
        assert done.exit_code == 3 and f"{tmp_path / name}: {refusal}" in done.stderr, name
        with pytest.raises(InputError, match=why):
            write_report(version, tmp_path / name)
    assert contents(tmp_path) == before and stat.S_ISFIFO(os.lstat(tmp_path / "pipe").st_mode)
    assert call("report", tmp_path / "model", "-o", tmp_path / "text").exit_code == 0
    (tmp_path / "model" / "report-v000001.html").symlink_to("current")
    assert call("report", tmp_path / "model").exit_code == 3


def test_units_of_columns_and_derivatives() -> None:
    x, u = read_column("x_km"), read_column("u_m_s")
    assert (x.label, u.label, read_column("km").label, read_column("_m").label) == ("x (km)", "u (m/s)", "km", "_m")
    per_second = rate([x, x], [u, u])
    assert per_second.unit == "s⁻¹" and per_second.factor == pytest.approx(1e-3)
    scaled = per_second.scaled(0.035)  # 3.5e-5 1/s
    assert scaled.unit == "10⁻⁵ s⁻¹" and 0.035 * scaled.factor == pytest.approx(3.5)
    subject = Subject.of(a_model(helmholtz(), 2, 2, an_info(["x_km", "y_km"], ["u_m_s", "v_m_s"])))
    unit, limit = _scale(subject, [np.full((3, 2), -0.035)])
    assert unit == scaled and limit == pytest.approx(3.5)  # of the colours, in the unit that is shown
    assert rate([read_column("x_m")], [read_column("B_uT")]).unit == "µT / m"
    assert rate([x, read_column("z")], [u, u]).unit == "target units per input unit"
