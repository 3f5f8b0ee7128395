"""One pass over the rows: what it sums, the constants it freezes first, and a leaf of it."""

from dorff.passes.blocks import PRECISIONS, BlockSums, RowSums, forget_spare, leave_spare, spare_square
from dorff.passes.folds import FoldRule
from dorff.passes.frozen import FrozenConstants, Pass, Place, RowsName, freeze, frozen_hash, load_pass
from dorff.passes.leaf import check_sums, leave, merge_nodes, not_finite, resumed, run_leaf, sum_leaf
from dorff.passes.spec import Config, Configs, PassSpec

__all__ = [
    "PRECISIONS",
    "BlockSums",
    "Config",
    "Configs",
    "FoldRule",
    "FrozenConstants",
    "Pass",
    "PassSpec",
    "Place",
    "RowSums",
    "RowsName",
    "check_sums",
    "forget_spare",
    "freeze",
    "frozen_hash",
    "leave",
    "leave_spare",
    "load_pass",
    "merge_nodes",
    "not_finite",
    "resumed",
    "run_leaf",
    "spare_square",
    "sum_leaf",
]
