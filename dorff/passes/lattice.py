"""Rows added to sums of exponentials, of features whose frequencies lie on a lattice."""

import time
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from dorff import moments
from dorff.features import FeatureMap, Projected, modes_of
from dorff.frequencies import Modes
from dorff.loops.exponentials import angles
from dorff.moments import FloatArray, ToeplitzAdder
from dorff.moments.exponentials import Extents, GridExponentials
from dorff.passes.blocks import TargetSums

LATTICE_ROWS: Final = 2**16  # that are added at a time


class LatticeSums(TargetSums):
    """Sums of the rows' angles h (x - x0) and targets; features of `syrk_seconds`, here of all sums' time."""

    def __init__(
        self,
        features: FeatureMap,
        y0: FloatArray,
        *,
        block_rows: int,
        tolerance: float,
        class_weight: FloatArray | None = None,
    ) -> None:
        super().__init__(block_rows, y0, class_weight)
        self._tolerance = tolerance
        modes = modes_of(features)
        self._axes, self.extents = axes_of(modes), extents_of(modes)
        self._center = features.center[self._axes]
        self._step = (modes.step / features.scale)[self._axes]
        # Kept, as an allocator may give memory back each time.
        self._Z, self._ordered = np.empty((2, block_rows, len(self._axes) + 1 + len(y0)))
        self._ones = np.ones(block_rows)
        load(len(self._axes))  # while there is memory for it

    def _add_block(self, sums: moments.Adder, x: FloatArray, y: FloatArray, weight: FloatArray | None) -> None:
        began, Z = time.perf_counter(), self._Z[: len(x)]
        x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
        weights = self._ones[: len(x)] if weight is None else np.ascontiguousarray(weight)
        angles(x, self._axes, self._center, self._step, y, self._y0, weights, Z)
        sums.add(Z)
        self.syrk_seconds += time.perf_counter() - began

    def empty(self, part: moments.Part) -> ToeplitzAdder:
        made = ToeplitzAdder(self.extents, len(self._y0), self._y0, tolerance=self._tolerance, observed=part[1])
        made.rows = self._ordered
        return made


@lru_cache
def load(v: int) -> None:
    """Load the loops and BLAS that sums over v inputs need."""
    few = ToeplitzAdder((1,) * v, 1, np.zeros(1), tolerance=1e-2)
    few.add(np.zeros((2, v + 2)))
    few.compared()
    if v <= 3:
        GridExponentials((1,) * v, 1, 1e-2).add(np.zeros((2, v + 2)))


def alone_of(features: FeatureMap) -> Modes | None:
    """The lattice that these features alone need; None of those that have none."""
    modes = features.phi.projection if isinstance(features.phi, Projected) else None
    if not isinstance(modes, Modes):
        return None
    k = modes.modes // modes.every
    return Modes(modes.step * modes.every, k, np.abs(k).max(axis=0), modes.beside)


def tight(features: FeatureMap) -> FeatureMap | None:
    """The same features on that lattice, whose sums serve no other kernels."""
    alone, phi = alone_of(features), features.phi
    return replace(features, phi=replace(phi, projection=alone)) if alone and isinstance(phi, Projected) else None


def axes_of(modes: Modes) -> moments.IntArray:
    """The inputs that vary."""
    return np.flatnonzero(modes.extents)


def extents_of(modes: Modes) -> Extents:
    """The largest whole number along each of them, of the lattice that sums are made of."""
    return tuple(int(M) for M in modes.extents[axes_of(modes)])
