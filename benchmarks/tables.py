"""What the benchmarks of random draws share: tables of dataclass rows as CSV, intervals, one process a core."""

from __future__ import annotations

import csv
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.stats
from threadpoolctl import threadpool_limits

T = TypeVar("T")
R = TypeVar("R")
_KINDS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda text: text == "True",
    "float | None": lambda text: float(text) if text else None,
}


def write(path: Path, rows: Sequence[Any]) -> None:
    """Dataclass rows, a field a column."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[field.name for field in fields(rows[0])])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read(path: Path, kind: Any) -> list[Any]:
    """The rows of an earlier run; none if there is no such file, or one of other columns."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    if reader.fieldnames != [field.name for field in fields(kind)]:
        return []
    return [kind(**{field.name: _KINDS[str(field.type)](line[field.name]) for field in fields(kind)}) for line in lines]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95% interval (Student)."""
    runs = len(values)
    half = scipy.stats.t.ppf(0.975, runs - 1) * np.std(values, ddof=1) / math.sqrt(runs) if runs > 1 else 0.0
    return float(np.mean(values)), float(half)


def compute(work: Callable[[T], R], tasks: Iterable[T], workers: int) -> Iterator[R]:
    """`work` of every task as it is done, in processes of one BLAS thread each."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=threadpool_limits, initargs=(1,)) as pool:
        for done in as_completed([pool.submit(work, task) for task in tasks]):
            yield done.result()
