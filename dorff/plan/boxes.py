"""The box that a job's inputs lie in: as the job says, as the store says, or as the rows are."""

from functools import lru_cache
from typing import Final

import numpy as np

from dorff.data import Dataset
from dorff.data.nodes import group_attributes
from dorff.errors import InputError
from dorff.features.recipe import period_box, periods_of
from dorff.kernels import FloatArray
from dorff.passes import PassSpec
from dorff.passes.frozen import with_slack
from dorff.spec.job import Job
from dorff.storage.location import locate

_NOT_FINITE: Final = "has inputs that are not finite; give data.box, the least and the largest of each input"


def box_of(spec: PassSpec) -> FloatArray:
    """The box (2, d) of a pass of a lattice, in the inputs' own units."""
    return np.asarray(spec.recipe["box"], dtype=np.float64)


def given_box(job: Job, dataset: Dataset) -> FloatArray | None:
    """What the job says of it; all of it, where all inputs have a period."""
    sampler = job.features.sampler
    periods = periods_of({} if isinstance(sampler, str) else sampler.model_dump(), dataset.d)
    if job.data.box is None:
        return period_box(np.zeros((2, dataset.d)), periods) if np.isfinite(periods).all() else None
    box = np.array(job.data.box, dtype=np.float64).T
    if box.shape[1] != dataset.d:
        wanted = f"the least and the largest of each of the {dataset.d} inputs ({', '.join(dataset.input_columns)})"
        raise InputError(f"data.box: wanted {wanted}, got those of {box.shape[1]}; correct it")
    for name, low, high in zip(dataset.input_columns, *box, strict=True):
        if low > high:
            raise InputError(f"data.box: of {name} {low:g} is more than {high:g}; turn them")
    box = period_box(box, periods)
    if (ends := told_box(dataset)) is not None:
        _check_rows(job, dataset, box, period_box(ends, periods))
    return box


def _check_rows(job: Job, dataset: Dataset, box: FloatArray, ends: FloatArray) -> None:
    """InputError for a box that rows leave, or that none lies in where such are dropped. All rows ever have `ends`."""
    (low, high), (least, most), drops = with_slack(box), ends, job.data.outside == "drop"
    outside = (least > high) | (most < low) if drops else (least < low) | (most > high)
    remedy = "name the box that the rows lie in" if drops else "make it wider, or set data.outside: drop"
    if outside.any() and (drops or not dataset.first):
        at = int(np.argmax(outside))
        sides = [f"from {low!r} to {high!r}" for low, high in (box[:, at].tolist(), ends[:, at].tolist())]
        came = f"it is {sides[0]}, but {dataset.path} has values {sides[1]}"
        raise InputError(f"data.box: of {dataset.input_columns[at]} {came}; {remedy}")


def told_box(dataset: Dataset) -> FloatArray | None:
    """What the store says of it, where `dorff ingest` has written it."""
    if dataset.weights is not None:  # rows that weigh nothing may hold anything
        return None
    told = group_attributes(locate(dataset.path)).get("dorff", {}).get("ranges", {})
    try:
        box = np.concatenate([np.array(told[name], dtype=np.float64) for name in dataset.inputs], axis=1)
    except (KeyError, TypeError, ValueError):  # another tool's, or of other arrays
        return None
    return box if box.shape == (2, dataset.d) and np.isfinite(box).all() else None


@lru_cache(maxsize=8)
def seen_box(dataset: Dataset, stamp: str) -> FloatArray:
    """The least and the largest of each input: all inputs are read. `stamp` names the rows."""
    low, high = np.full(dataset.d, np.inf), np.full(dataset.d, -np.inf)
    for start, stop in dataset.runs():
        X = dataset.block(start, stop).weighty().X
        if np.isfinite(X).all():
            low, high = np.minimum(low, X.min(axis=0, initial=np.inf)), np.maximum(high, X.max(axis=0, initial=-np.inf))
        else:
            some = np.where(np.isfinite(X), X, np.nan)[np.isfinite(X).any(axis=1)]
            if len(some):
                low, high = np.fmin(low, np.nanmin(some, axis=0)), np.fmax(high, np.nanmax(some, axis=0))
    if not np.isfinite([low, high]).all():
        raise InputError(f"{dataset.path}: {_NOT_FINITE}")
    return np.array([low, high])
