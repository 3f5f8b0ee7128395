"""What tests of faults write about them, and the table that is made of it."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import table
from places import benchmark
from table import Trial


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DORFF_FAULT_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(table, "GRACE", 0.2)
    return tmp_path / "log"


def last(log: Path) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return line


@pytest.mark.parametrize(("used", "lost", "twice"), [(7, 3, 0), (12, 0, 2)])
def test_rows_that_are_not_those_that_there_are(log: Path, trial: Trial, used: int, lost: int, twice: int) -> None:
    with pytest.raises(AssertionError, match="rows_lost"):
        trial.settle("cut", rows=(10, used))
    assert (last(log)["rows_lost"], last(log)["rows_twice"], last(log)["orphans"]) == (lost, twice, 0)
    assert last(log)["file"].endswith("tests/test_table.py")


def test_what_is_not_counted_is_none_and_what_is_not_the_same_is_said(log: Path, trial: Trial) -> None:
    trial.settle("cut", "exit 5")
    assert last(log)["rows_lost"] is None and last(log)["outcome"] == "exit 5"
    with pytest.raises(AssertionError):
        trial.settle("cut", same=False)
    assert last(log)["outcome"] == "NOT same bits"
    with pytest.raises(AssertionError):
        trial.settle("cut", left=lambda: 2)
    assert last(log)["orphans"] == 2


@pytest.mark.process
def test_a_process_that_stays_is_an_orphan_wherever_it_is(log: Path, trial: Trial) -> None:
    """Its parent, which the test started, has ended."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    with pytest.raises(AssertionError, match="sleep 60"):
        trial.settle("cut")
    assert last(log)["orphans"] == 1
    subprocess.run(["kill", str(pid)], check=True)
    trial.settle("cut")


def test_the_table_adds_up_what_was_counted() -> None:
    line = {"fault": "cut", "injected": 1, "outcome": "same bits", "rows_twice": 0, "file": "tests/mpi/test_mpi.py"}
    lines = [
        line | {"rows_lost": None, "orphans": None, "work_redone": "2 leaves"},
        line | {"rows_lost": 3, "orphans": None, "work_redone": "10 leaves"},
    ]
    ends = {"hung": ["slow one"], "failed": [], "skipped": []}
    faults = benchmark("fault_table")
    (row,) = faults.table_of(lines)
    assert (row["injected"], row["rows_lost"], row["orphans"], row["work_redone"]) == (2, 3, None, "10 leaves")
    text = faults.markdown([row], ends, "about", list(faults.COLUMNS))
    assert "| OpenMPI | cut | 2 | same bits | 3 | 0 | not counted | 10 leaves |" in text
    assert "Tests that hung: 1\n- slow one" in text


@pytest.mark.parametrize(
    ("child", "end"),
    [
        ('<failure message="Failed: Timeout (&gt;200.0s) from pytest-timeout."/>', "hung"),
        ('<failure message="subprocess.TimeoutExpired: Command x timed out"/>', "hung"),
        ('<failure message="AssertionError: it did not happen"/>', "hung"),
        ('<error message="AssertionError: 1 == 2"/>', "failed"),
        ('<skipped message="no podman"/>', "skipped"),
        ("", "passed"),
    ],
)
def test_a_test_that_hung_is_told_from_one_that_failed(child: str, end: str) -> None:
    case = ElementTree.fromstring(f"<testcase>{child}</testcase>")
    assert benchmark("fault_table").end_of(case)[0] == end
