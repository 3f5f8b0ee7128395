"""Lines on stderr for programs: every one an object, whoever wrote it."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from typing import Any

import pytest
from command_line import call, field, write_csv, write_job

from dorff.cli.guard import Style, logging

INGEST = ("ingest", "sea.csv", "sea.zarr", "--inputs", "a,b", "--targets", "u,v")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and a job, which is also the current folder."""
    write_csv(tmp_path / "sea.csv", field(3000))
    write_job(tmp_path / "job.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def objects(stderr: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in stderr.splitlines()]
    for line in lines:
        assert list(line)[:4] == ["time", "level", "command", "message"]
        assert abs((datetime.now(UTC) - datetime.fromisoformat(line["time"])).total_seconds()) < 120
    return lines


def test_lines_are_objects_where_that_is_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = objects(call("--log", "json", *INGEST).stderr)
    assert (line["level"], line["command"], line["done"], line["total"]) == ("info", "ingest", 3000, None)
    assert line["unit"] == "rows" and line["message"].startswith("ingest: 3,000 rows")
    monkeypatch.setenv("DORFF_LOG", "json")
    (line,) = objects(call("fit", "none.yaml").stderr)
    assert (line["level"], line["exit_code"], line["error"]) == ("error", 3, "InputError")
    assert line["message"].startswith("none.yaml: cannot be read")
    assert call("--log", "xml", "fit", "none.yaml").exit_code == 2


def test_a_result_is_not_a_log_line(place: Path) -> None:
    call(*INGEST)
    done = call("--log", "json", "fit", "job.yaml", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["rows_used"] == 3000
    lines = objects(done.stderr)
    assert lines[-1]["level"] == "info" and "3,000 rows used" in lines[-1]["message"]


@pytest.mark.process
def test_lines_of_others_become_objects_too() -> None:
    code = """
import atexit, os, subprocess, sys, warnings
from dorff.cli.guard import Style, logging, say
with logging(Style.JSON, "fit"):
    say("ours", "info", done=1)
    warnings.warn("theirs", UserWarning)
    subprocess.run(["sh", "-c", "echo tcp://me:pass@node >&2; sleep 9 >/dev/null &"])
    atexit.register(lambda: os.write(2, b"no end \\xff"))
print("after", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    found = [(line["message"], line.get("source")) for line in objects(done.stderr)]
    assert ("after", "stderr") in found
    assert ("ours", None) in found and ("tcp://***@node", "stderr") in found and ("no end �", "stderr") in found
    assert any(re.search("UserWarning: theirs", message) for message, _ in found)


def test_what_dorff_logs_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """While a command runs, in its style; what is for us alone is not."""
    log = getLogger("dorff.engine.some")
    for style in Style:
        with logging(style, "fit"):
            log.info("jobs %s", "wait")
            log.warning("jobs may be left")
            log.debug("of no use")
    text, json_lines = (lines := capsys.readouterr().err.splitlines(keepends=True))[:2], lines[2:]
    assert text == ["jobs wait\n", "jobs may be left\n"]
    said = [(line["level"], line["message"]) for line in objects("".join(json_lines))]
    assert said == [("info", "jobs wait"), ("warning", "jobs may be left")]


@pytest.mark.parametrize("style", ["text", "json"])
def test_secrets_are_in_no_line_and_no_result(place: Path, monkeypatch: pytest.MonkeyPatch, style: str) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    monkeypatch.setattr("tempfile.tempdir", str(place))
    for words in (
        ("inspect", "s3://me:hunter3hunter3@bucket/x"),
        ("ingest", "s3://me:hunter3hunter3@bucket/x.csv", "hunter2hunter2", "--inputs", "a", "--targets", "b"),
        ("verify", "hunter2hunter2.zarr"),
        ("fit", "hunter2hunter2.yaml", "--metrics", "hunter2hunter2.prom"),
    ):
        done = call("--log", style, *words)
        assert done.exit_code == 3 and "***" in done.stderr
        assert "hunter" not in done.stderr + done.stdout
    call(*INGEST)
    (place / "sea.zarr").rename(place / "hunter2hunter2.zarr")
    for words in (("inspect", "hunter2hunter2.zarr", "--json"), ("inspect", "hunter2hunter2.zarr")):
        done = call(*words)
        assert done.exit_code == 0 and "***" in done.stdout and "hunter" not in done.stdout
