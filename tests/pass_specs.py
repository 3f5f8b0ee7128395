"""Passes without a plan."""

from __future__ import annotations

from typing import Any

from dorff.features import Drawn, FeatureMap
from dorff.kernels.scalar import FloatArray
from dorff.moments import Kind
from dorff.passes import FoldRule, FrozenConstants, PassSpec, RowsName

_SPEC = PassSpec(
    store="", rows={}, recipe={}, sampler={}, count=0, precision="double", sums=Kind.GRAM, seed=0, standardize=False,
    nan="drop", class_weight="none", folds=FoldRule(), block_rows=64, read_rows=64, words=(None, None), tuning=None,
    one_scale=False,
)  # fmt: skip


def spec_of(**changes: Any) -> PassSpec:
    """A spec of one fold and blocks of 64 rows, but for these."""
    return PassSpec(**{**vars(_SPEC), **changes})


def constants_of(features: FeatureMap, y0: FloatArray) -> FrozenConstants:
    """Constants of these features and means, as if no row had told more."""
    return FrozenConstants(features, Drawn(features.phi, None, None), y0, None, RowsName(0, 0, 0))
