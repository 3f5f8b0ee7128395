"""Draw places all over the data, with and without values, for maps of a model.

A gridded field has cells (land, in a field of the sea) that never had a value. Neither
the sample of held-out rows nor the box of the data says where they are, so a model keeps
these places beside its sample.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from dorff.model import SAMPLE_NUMBERS, SAMPLE_ROWS, Sites
from dorff.plan import Plan

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
WINDOWS: Final = 64
WINDOW_ROWS: Final = 2**14  # in each of which the drawn rows lie


def draw_sites(plan: Plan) -> Sites | None:
    """Draw rows, with and without targets, evenly from all the rows of a plan.

    Neither memory nor time grows with the rows, and what is drawn does not depend on the
    size of blocks or chunks.

    Returns
    -------
    sites : Sites or None
        At most `SAMPLE_ROWS` rows of either kind. None if no row was drawn that has no
        target, or none that has one, and where rows are unlabelled on purpose.
    """
    if plan.job.data.nan == "unlabelled":
        return None

    most = max(2, min(2 * SAMPLE_ROWS, SAMPLE_NUMBERS // plan.dataset.d))
    rng = np.random.default_rng(plan.job.features.seed)
    numbers = _draw_rows(plan.leaves[0].start, plan.leaves[-1].stop, most, rng)

    inputs, observed = list[npt.NDArray[np.float64]](), list[Mask]()
    for run in _split_by_units(numbers, plan.dataset.unit_rows):
        rows = plan.dataset.block(int(run[0]), int(run[-1]) + 1)[run - run[0]]
        rows = plan.spec.kept(rows)
        finite = np.asarray(np.isfinite(rows.X).all(axis=1))
        has_target = np.asarray(np.isfinite(rows.Y).any(axis=1))
        inputs.append(rows.X[finite])
        observed.append(has_target[finite])
    sites = Sites(np.concatenate(inputs), np.concatenate(observed))
    if sites.observed.all() or not sites.observed.any():
        return None

    # Thinned alike, or the denser kind would be the nearer one along every edge.
    order = rng.permutation(len(sites.observed))
    kinds = np.column_stack([sites.observed[order], ~sites.observed[order]])
    kept = np.sort(order[(np.cumsum(kinds, axis=0) <= SAMPLE_ROWS).all(axis=1)])
    return Sites(sites.inputs[kept], sites.observed[kept])


def _draw_rows(start: int, stop: int, most: int, rng: np.random.Generator) -> Rows:
    """Return at most about `most` row numbers in order, in windows that begin at random: no period is met."""
    if stop - start <= most:
        return np.arange(start, stop)
    bounds = np.linspace(start, stop, WINDOWS + 1).astype(np.int64)
    windows = []
    for low, high in pairwise(bounds):
        length = min(int(high - low), WINDOW_ROWS)
        begin = low + rng.integers(high - low - length + 1)
        drawn = rng.choice(length, size=min(length, max(1, most // WINDOWS)), replace=False)
        windows.append(begin + np.sort(drawn))
    return np.concatenate(windows)


def _split_by_units(numbers: Rows, unit_rows: int) -> Iterator[Rows]:
    """Yield the row numbers that are decoded together."""
    yield from np.split(numbers, np.flatnonzero(np.diff(numbers // unit_rows)) + 1)
