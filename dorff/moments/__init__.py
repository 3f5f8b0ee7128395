"""Moments: the sums of one pass over the data, which add."""

from dorff.moments.base import UNIT, Adder, BoolArray, Described, IntArray, Kind, Part, Solvable, Sums, probe
from dorff.moments.blas import FloatArray, SingleArray, symv, syr2k, syrk, tpqrt, trmv
from dorff.moments.gram import MIXED_UNIT, Accumulator, Moments
from dorff.moments.parts import MOST_PATTERNS, Folds, by_fold, check_patterns, merge_folds, patterns_of, pooled, unseen
from dorff.moments.products import ProductAccumulator, Products
from dorff.moments.triangle import Triangle, TriangleAccumulator
