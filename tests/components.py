"""What of the real things ran: a table of components, their versions, the tests that ran each, seconds, and the faults
that were tried on it.

With $DORFF_COMPONENTS a run of pytest adds a line of JSON for each of its tests of a component to that file, with
$DORFF_FAULT_LOG one for each fault to that one (`table.py`), and `python tests/components.py FILE LOG` prints the table
of all. Its exit code is 1 where a component had no test that passed or one that failed, where a row was lost or counted
twice, or something was left running.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest


class Component(NamedTuple):
    """A component: the command that says its version, how tests run it, and where these are."""

    name: str
    version: str
    how: str
    tests: str


COMPONENTS: Final = (
    Component("Slurm", "slurmctld -V", "slurmctld, three slurmd and munged on loopback", "tests/slurm/"),
    Component("Ceph RGW (S3)", "radosgw --version", "mon, osd and gateway on loopback", "tests/objects/"),
    Component("OpenMPI", "mpirun --version", "mpirun on one host", "tests/mpi/"),
    Component(
        "podman", "podman --version", "containers by runc, the host's network", "tests/kubernetes/test_containers"
    ),
    Component("hadolint", "hadolint --version", "over the Dockerfile", "tests/kubernetes/test_image"),
    Component("FUSE", "fusermount3 --version", "two hosts' mounts, in namespaces", "tests/faults/test_shared_fs"),
)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """On the process that starts the others: it alone has the file."""
    file = os.environ.get("DORFF_COMPONENTS")
    component = next((one for one in COMPONENTS if report.nodeid.startswith(one.tests)), None)
    if file and component is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        line = {"name": component.name, "test": report.nodeid, "when": report.when, "outcome": report.outcome}
        with open(file, "a", encoding="utf-8") as opened:
            opened.write(json.dumps(line | {"seconds": report.duration}) + "\n")


def _version(command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["env", f"PATH={path}", *command.split()]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    except OSError:
        return "not here"
    number = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return number[0] if number else "?"


def _row(component: Component, lines: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Its row, and whether it really ran and every test passed."""
    lines = [line for line in lines if line["name"] == component.name]
    passed = {line["test"] for line in lines if line["when"] == "call" and line["outcome"] == "passed"}
    failed = {line["test"] for line in lines if line["outcome"] == "failed"}
    skipped = {line["test"] for line in lines if line["outcome"] == "skipped"}
    counts = f"{len(passed - failed)} passed, {len(failed)} failed, {len(skipped)} skipped"
    seconds = f"{sum(line['seconds'] for line in lines):.0f}"
    row = [component.name, _version(component.version), component.how, component.tests, counts, seconds]
    return row, bool(passed) and not failed


def _faults(component: Component, lines: list[dict[str, Any]]) -> tuple[list[str], bool]:
    """Tries, rows lost and counted twice, and what was left, of those that counted it; whether these are none."""
    lines = [line for line in lines if line["file"].startswith(component.tests)]
    bad = [sum(line[name] or 0 for line in lines) for name in ("rows_lost", "rows_twice", "orphans")]
    return [str(count) for count in (sum(line["injected"] for line in lines), *bad)], not any(bad)


def _lines(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()] if Path(file).exists() else []


def main(file: str, log: str) -> int:
    """Print the table; 1 where something did not run, or not as it has to."""
    ran, faults = _lines(file), _lines(log)
    rows = []
    for component in COMPONENTS:
        (row, passed), (counts, none) = _row(component, ran), _faults(component, faults)
        rows.append(([*row, *counts], passed and none))
    head = ["component", "version", "how it was run", "tests", "outcome", "seconds"]
    head += ["faults", "rows lost", "twice", "left running"]
    widths = [max(len(row[at]) for row in [head, *(row for row, _ in rows)]) for at in range(len(head))]
    for row in [head, *(row for row, _ in rows)]:
        print("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    return 0 if all(good for _, good in rows) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
