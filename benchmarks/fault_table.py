"""The fault table: runs tests/faults, slow ones too, and writes what each injected fault came to.

    python benchmarks/fault_table.py [--quick]        -> benchmarks/results/faults.json, faults.md

One line a kind of fault: times injected, outcome, rows lost, rows counted twice, work redone. Tests that failed, or
were skipped because this machine cannot inject their fault, are named below the table. DORFF_FAULT_SEED begins the
tests' seeds elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
COLUMNS = ("fault", "injected", "outcome", "rows_lost", "rows_twice", "work_redone")


def run_tests(folder: Path, *, quick: bool) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """The log's lines, and the names of the tests that passed, failed and were skipped (with the reason)."""
    log, report = folder / "log", folder / "report.xml"
    marks = "not slow" if quick else "slow or not slow"
    command = [
        sys.executable, "-m", "pytest", "tests/faults", "-m", marks, "-q", "-p", "no:cacheprovider", "-n", "0",
        "--timeout", "1800", f"--junitxml={report}",
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, env={**os.environ, "DORFF_FAULT_LOG": str(log)}, check=False)
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    ends: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if skipped is not None:
            ends["skipped"].append(f"{name}: {skipped.get('message')}")
        else:
            bad = case.find("failure") is not None or case.find("error") is not None
            ends["failed" if bad else "passed"].append(name)
    return lines, ends


def table_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a fault and outcome: injections and rows added up, the most work that was redone."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        row = rows.setdefault(
            (line["fault"], line["outcome"]), {**line, "injected": 0, "rows_lost": 0, "rows_twice": 0}
        )
        for name in ("injected", "rows_lost", "rows_twice"):
            row[name] += line[name]
        row["work_redone"] = max(row["work_redone"], line["work_redone"], key=_amount)
    return sorted(rows.values(), key=lambda row: row["fault"])


def _amount(text: str) -> float:
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return 0.0


def markdown(rows: list[dict[str, Any]], ends: dict[str, list[str]], about: str) -> str:
    lines = [
        "| fault | injected | outcome | rows lost | rows twice | work redone |",
        "|---|---:|---|---:|---:|---|",
        *("| " + " | ".join(str(row[name]) for name in COLUMNS) + " |" for row in rows),
        "",
        about,
    ]
    for kind in ("failed", "skipped"):
        lines += ["", f"Tests that {'failed' if kind == 'failed' else 'were skipped'}: {len(ends[kind])}"]
        lines += [f"- {name}" for name in ends[kind]]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without the slow tests")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        lines, ends = run_tests(Path(folder), quick=options.quick)
    rows = table_of(lines)
    totals = {name: sum(row[name] for row in rows) for name in ("injected", "rows_lost", "rows_twice")}
    about = (
        f"{totals['injected']} faults injected by {len(ends['passed'])} tests that passed; rows lost "
        f"{totals['rows_lost']}, counted twice {totals['rows_twice']}. Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {time.time() - began:.0f} s."
    )
    result = {"table": rows, "totals": totals, "tests": ends, "seed": os.environ.get("DORFF_FAULT_SEED", "0")}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "faults.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "faults.md").write_text(markdown(rows, ends, about))
    print(about)
    return bool(ends["failed"] or totals["rows_lost"] or totals["rows_twice"])


if __name__ == "__main__":
    raise SystemExit(main())
