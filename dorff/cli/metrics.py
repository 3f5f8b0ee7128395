"""Figures of a run for Prometheus' textfile collector, of runs that fail too."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dorff.cli.guard import exit_code
from dorff.cli.logs import say
from dorff.errors import InputError

if TYPE_CHECKING:
    from dorff.fit import FitReport

Figures = dict[str, float | None]

_RUN: Final = {
    "last_run_timestamp_seconds": "When the last run ended, whatever its end.",
    "last_run_duration_seconds": "How long it took.",
    "last_run_exit_code": "How it ended: 0 done, 3 bad input, 4 would not fit, 5 incomplete, 6 refused, 7 leased.",
}
# What follows is of the last run that succeeded, and outlives those that did not.
_KEPT: Final = {
    "last_success_timestamp_seconds": "When a run last ended with 0.",
    "last_published_timestamp_seconds": "When a run last published a model.",
    "rows_used": "Rows that the model is of.",
    "rows_dropped": "Rows left out because of NaN or infinity.",
    "rows_unlabelled": "Rows without a target, which manifold terms alone see.",
    "coverage": "Share of the rows that were summed, or dropped by the job's rule.",
    "leaves_computed": "Leaves that the run computed.",
    "leaves_reused": "Leaves that earlier runs had computed.",
    "leaves_rewritten": "Leaves whose rows had changed since an earlier run.",
    "score": "R2 (what of: `r2_of` of dorff fit --json), or accuracy of classes, on held-out rows.",
    "condition": "Condition number of the system that was solved.",
    "digits": "Decimal digits of the fitted values that rounding leaves.",
    "ridge": "The ridge that was chosen.",
    "peak_bytes": "Peak memory of the job, where it was measured.",
    "plan_peak_bytes": "Peak memory that the plan promised.",
    "trials": "Trials of the grid.",
    "reads": "How often the rows were read.",
}
_NAMES: Final = _RUN | _KEPT


@contextmanager
def recorded(path: Path | None, command: str, job: Path) -> Iterator[Figures]:
    """Write a block's end and the figures that it fills in to the file `path`, if one is given.

    Raises InputError, before the block, where it cannot be such a file.
    """
    figures: Figures = {}
    if path is None:
        yield figures
        return
    if path.suffix != ".prom" or not path.parent.is_dir():
        raise InputError(
            f"--metrics {path}: wanted a file *.prom in a folder that is there; the collector reads those"
        )
    from dorff.store import check_output

    check_output(path)
    began, code = time.time(), 0
    try:
        yield figures
    except BaseException as error:
        code = exit_code(error)
        raise
    finally:
        now = time.time()
        run = {"timestamp_seconds": now, "duration_seconds": now - began, "exit_code": float(code)}
        _write(path, {"command": command, "job_file": str(job.absolute())}, run, None if code else figures)


def of_fit(report: FitReport) -> Figures:
    """The figures of a fit."""
    figures: Figures = {name: getattr(report, name) for name in _KEPT if hasattr(report, name)}
    figures["leaves_rewritten"] = len(report.rewritten)
    if report.outcome == "published":
        figures["last_published_timestamp_seconds"] = time.time()
    return figures


def _write(path: Path, labels: Mapping[str, str], run: Mapping[str, float], done: Figures | None) -> None:
    """What cannot be written is said, and does not change how the run ended."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    before = _before(path, labels)
    values: Figures = {f"last_run_{name}": value for name, value in run.items()}
    if done is None:
        values |= before
    else:
        kept = {"last_published_timestamp_seconds": before.get("last_published_timestamp_seconds")}
        values |= {**kept, "last_success_timestamp_seconds": run["timestamp_seconds"], **done}
    registry = CollectorRegistry()
    for name, value in values.items():
        if value is not None:
            gauge = Gauge(f"dorff_{name}", _NAMES[name], labelnames=list(labels), registry=registry)
            gauge.labels(**labels).set(value)
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        say(f"dorff: --metrics {path}: not written ({error.strerror}); see that the folder can be", "warning")


def _before(path: Path, labels: Mapping[str, str]) -> Figures:
    """What the file keeps of earlier runs of the same job."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        text = path.read_text(encoding="utf-8")
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (OSError, ValueError):  # none yet, or not one that we wrote
        return {}
    figures = {sample.name.removeprefix("dorff_"): sample.value for sample in samples if sample.labels == labels}
    return {name: value for name, value in figures.items() if name in _KEPT}
