"""The fault tables: runs tests, slow ones too, and writes what each injected fault came to.

    python benchmarks/fault_table.py [--quick]       tests/faults      -> benchmarks/results/faults.json, faults.md
    python benchmarks/fault_table.py --clusters      the real clusters and buckets of tests/
                                                     -> benchmarks/results/cluster_faults.json, cluster_faults.md

One line a kind of fault: tries, outcome, rows lost, rows counted twice, work redone; of clusters and buckets also what
was left of jobs, containers, pods, uploads and processes after the end. Tests that hung (they ran into a time limit),
failed in another way, or were skipped because this machine cannot inject their fault, are named below the table.
`--repeat N` runs all tests N times. DORFF_FAULT_SEED begins the tests' seeds elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
COUNTS = ("injected", "rows_lost", "rows_twice", "orphans")
#: Titles of the columns; those of `faults.md` are a part.
COLUMNS = {
    "component": "component", "fault": "fault", "injected": "tries", "outcome": "outcome", "rows_lost": "rows lost",
    "rows_twice": "rows twice", "orphans": "orphans", "work_redone": "work redone",
}  # fmt: skip
#: The tests of what really runs, and how.
CLUSTERS = {
    "tests/slurm/test_slurm.py": "Slurm",
    "tests/mpi/test_mpi.py": "OpenMPI",
    "tests/objects/test_bucket_faults.py": "Ceph RGW (S3)",
    "tests/kubernetes/test_containers.py": "podman, runc",
    "tests/kubernetes/test_kubernetes.py": "stand-in for a Kubernetes API server",
    "tests/faults/test_shared_fs.py": "shared file system (FUSE)",
}
HUNG = re.compile(r"Timeout|did not happen")  # pytest's, subprocess's, and that of the tests' own waits
Ends = dict[str, list[str]]


def run_tests(*words: str) -> tuple[list[dict[str, Any]], Ends]:
    """The log's lines, and the names of the tests that passed, failed, hung and were skipped (with the reason)."""
    with tempfile.TemporaryDirectory() as folder:
        log, report = Path(folder, "log"), Path(folder, "report.xml")
        command = [
            sys.executable, "-m", "pytest", *words, "-q", "-p", "no:cacheprovider", "-n", "0", "--timeout", "1800",
            f"--junitxml={report}",
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, env={**os.environ, "DORFF_FAULT_LOG": str(log)}, check=False)
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        ends: Ends = {"passed": [], "failed": [], "hung": [], "skipped": []}
        if not report.exists():
            ends["failed"].append(f"{' '.join(words)}: pytest ended without a report")
            return lines, ends
        for case in ElementTree.parse(report).iter("testcase"):
            end, message = end_of(case)
            ends[end].append(
                f"{case.get('classname')}.{case.get('name')}" + (f": {message}" if end == "skipped" else "")
            )
    return lines, ends


def end_of(case: ElementTree.Element) -> tuple[str, str]:
    """How a test ended, and what pytest says about it."""
    for kind, end in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if (child := case.find(kind)) is not None:
            message = child.get("message") or ""
            return ("hung" if end == "failed" and HUNG.search(message) else end), message
    return "passed", ""


def total(counts: Iterable[int | None]) -> int | None:
    """Of those that were counted; None where none was."""
    counted = [count for count in counts if count is not None]
    return sum(counted) if counted else None


def table_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a fault and outcome: what was counted is added up; the most work that was redone."""
    groups: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    files = list(CLUSTERS)
    for line in lines:
        place = files.index(line["file"]) if line["file"] in files else -1
        groups.setdefault((place, line["fault"], line["outcome"]), []).append(line)
    return [
        {
            **group[0],
            **{name: total(line[name] for line in group) for name in COUNTS},
            "component": CLUSTERS.get(group[0]["file"], ""),
            "work_redone": max((line["work_redone"] for line in group), key=_amount),
        }
        for _, group in sorted(groups.items())
    ]


def _amount(text: str) -> float:
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return 0.0


def markdown(rows: list[dict[str, Any]], ends: Ends, about: str, columns: list[str]) -> str:
    shown = [["not counted" if row[name] is None else str(row[name]) for name in columns] for row in rows]
    lines = [
        "| " + " | ".join(COLUMNS[name] for name in columns) + " |",
        "|" + "|".join("---:" if name in COUNTS else "---" for name in columns) + "|",
        *("| " + " | ".join(row) + " |" for row in shown),
        "",
        about,
    ]
    for kind in ("hung", "failed", "skipped"):
        lines += ["", f"Tests that {'were skipped' if kind == 'skipped' else kind}: {len(ends[kind])}"]
        lines += [f"- {name}" for name in ends[kind]]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without the slow tests")
    parser.add_argument("--clusters", action="store_true", help="of Slurm, MPI, buckets, containers, shared files")
    parser.add_argument("--repeat", type=int, default=1, help="how often to run all tests")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    began = time.time()
    lines: list[dict[str, Any]] = []
    ends: Ends = {"passed": [], "failed": [], "hung": [], "skipped": []}
    where = list(CLUSTERS) if options.clusters else ["tests/faults"]
    for room in where * options.repeat:
        more, ended = run_tests(room, "-m", "not slow" if options.quick else "slow or not slow")
        lines += more
        ends = {kind: names + ended[kind] for kind, names in ends.items()}
        bad = write(lines, ends, time.time() - began, options)  # what there is, should the next one not end
    return bad


def write(lines: list[dict[str, Any]], ends: Ends, seconds: float, options: argparse.Namespace) -> bool:
    """Write the table; whether a test failed, or a row or an orphan is where none may be."""
    rows = table_of(lines)
    totals = {name: total(row[name] for row in rows) for name in COUNTS} | {"hangs": len(ends["hung"])}
    counted = [sum(line[name] is not None for line in lines) for name in ("rows_lost", "orphans")]
    about = (
        f"{totals['injected']} faults injected by {len(ends['passed'])} tests that passed; rows lost "
        f"{totals['rows_lost']}, counted twice {totals['rows_twice']} (counted in {counted[0]} of {len(lines)} "
        f"entries); orphans {totals['orphans']} (counted in {counted[1]}); hangs {totals['hangs']}. Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, {seconds:.0f} s."
    )
    result = {"table": rows, "totals": totals, "tests": ends, "seed": os.environ.get("DORFF_FAULT_SEED", "0")}
    options.out.mkdir(parents=True, exist_ok=True)
    columns = [name for name in COLUMNS if options.clusters or name not in ("component", "orphans")]
    file = options.out / ("cluster_faults" if options.clusters else "faults")
    file.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    file.with_suffix(".md").write_text(markdown(rows, ends, about, columns))
    print(about)
    return bool(ends["failed"] or ends["hung"] or any(totals[name] for name in COUNTS[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
