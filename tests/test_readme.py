"""README and the pages of docs/ are true: commands are those CI runs, examples run, figures are those of the files."""

from __future__ import annotations

import ast
import importlib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT, benchmark
from schema_watch import taken

from dorff.spec.reader import load_job

README, GUIDE, KERNELS, FEW_LABELS, OPERATIONS, BY_PROBLEM = (
    (ROOT / page).read_text(encoding="utf-8")
    for page in (
        "README.md",
        "docs/guide.md",
        "docs/kernels.md",
        "docs/few_labels.md",
        "docs/operations.md",
        "docs/by_problem.md",
    )
)


def test_the_commands_are_those_ci_runs() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    demo, tests = re.findall(r"^    (python3 -m venv .*)$", README, re.MULTILINE)
    assert tests in ci and demo.endswith("dorff demo")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_figures_are_those_of_the_result_files() -> None:
    module = benchmark("readme")
    assert list(module.PAGES) == [
        "README.md",
        "docs/evidence.md",
        "docs/lattice.md",
        "docs/losses.md",
        "docs/skeletons.md",
    ]
    for page, lines in module.PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert module.with_figures(text, lines()) == text, "run python benchmarks/readme.py"


def test_what_benchmarks_import_is_there() -> None:
    """Nothing else runs most of them: a name that changed is seen here."""
    missing = [
        f"{path.name}: {node.module}.{alias.name}"
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dorff"
        for alias in node.names
        if not _is_there(str(node.module), alias.name)
    ]
    assert not missing


def _is_there(module: str, name: str) -> bool:
    of = importlib.import_module(module)
    return hasattr(of, name) or (hasattr(of, "__path__") and find_spec(f"{module}.{name}") is not None)


def blocks(page: str, language: str) -> list[str]:
    """The texts of a page's fenced blocks."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.slow
def test_the_python_examples_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    (fit,), (features, bounds) = blocks(README, "python"), blocks(KERNELS, "python")
    same, grids = blocks(GUIDE, "python")
    assert same == fit and len([line for line in fit.splitlines() if line]) <= 12
    exec(compile(fit, "README.md", "exec"), names)
    r2, _ridge = capsys.readouterr().out.split()[:2]
    exec(compile(grids, "guide.md", "exec"), names)
    assert names["search"].best_score_ > 0.99 and names["nightly"].score(names["X"], names["Y"]) > 0.99
    assert float(r2) > 0.99
    exec(compile(features, "docs/kernels.md", "exec"), names)
    exact = names["kernels"].Gaussian(1.0).gram(names["X"][:9], names["X"][:9])
    assert names["F"].shape == (5000, 512) and abs(names["K"] - exact).max() < 0.1
    exec(compile(bounds, "docs/kernels.md", "exec"), names)
    assert names["D"] > 100 and abs(names["exact"] - names["Y"][300:310]).max() < 0.1


def test_the_job_files_are_valid(tmp_path: Path) -> None:
    (least, job), (few_labels, views), (scheduled,) = (
        [yaml.safe_load(text) for text in blocks(page, "yaml")] for page in (README, FEW_LABELS, OPERATIONS)
    )
    assert [yaml.safe_load(text) for text in blocks(GUIDE, "yaml")] == [job, scheduled]
    shortest, measure = (yaml.safe_load(text) for text in blocks(BY_PROBLEM, "yaml"))
    assert taken(least | measure)
    assert len(least) == len(shortest) == 3 and taken(least) and taken(shortest)
    # As editors read them: by YAML 1.1, in which 1e-8 is text, and by the schema.
    assert all(taken(one) for one in (job, job | scheduled, few_labels, few_labels | views))
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    assert load_job(path).features.count == 2048
    path.write_text(yaml.safe_dump(job | scheduled))
    assert load_job(path).publish.keep == 7
    path.write_text(yaml.safe_dump(few_labels))
    assert load_job(path).manifold[0].weights == (1e-4, 1e-3, 1e-2)
    path.write_text(yaml.safe_dump(few_labels | views))
    assert load_job(path).data.inputs == ("pixels", "moduli")
