"""Progress on stderr, a bar on a terminal, else a line every so often; figures for Prometheus' textfile collector."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from dorff.cli.guard import end_of, say
from dorff.errors import InputError

if TYPE_CHECKING:
    from dorff.fit import FitReport
    from dorff.spec.job import Job

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
    "bucket_requests": "Requests made of buckets.",
    "bucket_bytes_read": "Bytes read from buckets.",
    "bucket_bytes_written": "Bytes written to buckets.",
    "plan_peak_bytes": "Peak memory that the plan promised.",
    "trials": "Trials of the grid.",
    "reads": "How often the rows were read.",
}
_NAMES: Final = _RUN | _KEPT
EVERY: Final = 10.0  # seconds between lines
Progress = Callable[..., None]  # told how many rows, or whatever is counted, are done, of how many where that is known


@contextmanager
def recorded(path: Path | None, command: str, job: Path, read: "Callable[[], Job]") -> Iterator[Figures]:
    """Write a block's end and the figures that it fills in to the file `path`, if one is given; InputError, before the
    block, where it cannot be. A rank of an MPI job, which `read` gives, does what its driver has for it in the block's
    place."""
    from dorff.engine.mpi import served

    if served(job, read):
        raise typer.Exit
    figures: Figures = {}
    if path is None:
        yield figures
        return
    if path.suffix != ".prom" or not path.parent.is_dir():
        raise InputError(f"--metrics {path}: wanted a file *.prom in a folder that is there; the collector reads such")
    from dorff.store import check_output

    check_output(path)
    began, code = time.time(), 0
    try:
        yield figures
    except BaseException as error:
        code, _ = end_of(error, goes_on=False)
        raise
    finally:
        now = time.time()
        run = {"timestamp_seconds": now, "duration_seconds": now - began, "exit_code": float(code)}
        _write(path, {"command": command, "job_file": str(job.absolute())}, run, None if code else figures)


def of_fit(report: "FitReport") -> Figures:
    figures: Figures = {name: getattr(report, name) for name in _KEPT if hasattr(report, name)}
    figures["leaves_rewritten"] = len(report.rewritten)
    figures |= {f"bucket_{name}": value for name, value in report.buckets.items()}
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
            Gauge(f"dorff_{name}", _NAMES[name], labelnames=list(labels), registry=registry).labels(**labels).set(value)
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


def meter(what: str, unit: str = "rows") -> AbstractContextManager[Progress]:
    """Show what is done, its pace since the first call, and the time left, until the block ends."""
    return (_bar if sys.stderr.isatty() else _lines)(what, unit)


class _Rate:
    """Rows a second since the first call; `clock` is for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, unit: str = "rows") -> None:
        self._clock, self._unit = clock, unit
        self._first: tuple[int, float] | None = None

    def text(self, done: int, total: int | None) -> str:
        now = self._clock()
        self._first = self._first or (done, now)
        rows, since = self._first
        parts = [f"{done:,} {self._unit}" if total is None else f"{done:,} of {total:,} {self._unit}"]
        if done > rows and now > since:
            rate = (done - rows) / (now - since)
            parts.append(f"{rate:,.0f} {self._unit}/s")
            if total is not None and done < total:
                parts.append(f"{timedelta(seconds=round((total - done) / rate))} left")
        return ", ".join(parts)


@contextmanager
def _lines(what: str, unit: str) -> Iterator[Progress]:
    pace, last = _Rate(unit=unit), time.monotonic()
    waiting: Callable[[], None] | None = None

    def progress(done: int, total: int | None = None, /) -> None:
        nonlocal last, waiting
        waiting = partial(say, f"{what}: {pace.text(done, total)}", clock=True, done=done, total=total, unit=unit)
        if time.monotonic() - last >= EVERY:
            waiting()
            last, waiting = time.monotonic(), None

    yield progress
    if waiting is not None:
        waiting()


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Progress]:
    from rich import progress as rich
    from rich.console import Console

    pace, columns = _Rate(unit=unit), (rich.TextColumn(what), rich.BarColumn(), rich.TextColumn("{task.fields[pace]}"))
    with rich.Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(what, total=None, pace="starting")

        def progress(done: int, total: int | None = None, /) -> None:
            bar.update(task, completed=done, total=total, pace=pace.text(done, total))

        yield progress
