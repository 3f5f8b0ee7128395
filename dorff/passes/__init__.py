"""Passes over the rows: what they sum, the constants they freeze first, their leaves, and the tree of the sums."""

from dorff.passes.blocks import PRECISIONS, SMALLEST_LEAF, BlockSums, Leaf, RowSums, block_rows, leaf_bounds
from dorff.passes.frozen import Configs, FoldRule, FrozenConstants, Pass, PassSpec, RowsName, frozen_hash, load_pass
from dorff.passes.leaf import PassSums, Stage, Summand, not_finite, read_ahead, sum_leaf, unchanged, usable
from dorff.passes.slopes import Question
from dorff.passes.sweep import Sweeper
from dorff.passes.tree import Tree
from dorff.spec.registry import Config
