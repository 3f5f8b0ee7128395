"""Moments: the sums of one pass over the data, which add."""

from dorff.moments.base import (
    MOST_PATTERNS,
    UNIT,
    Adder,
    BoolArray,
    Described,
    IntArray,
    Kind,
    Part,
    Solvable,
    Sums,
    by_fold,
    check_patterns,
    merge_folds,
    patterns_of,
    pooled,
    probe,
    unseen,
)
from dorff.moments.blas import FloatArray, pinned, processor_kind, syr2k, syrk, tpqrt
from dorff.moments.gram import Accumulator, Folds, Moments, ProductAccumulator, Products, Triangle, TriangleAccumulator
from dorff.moments.toeplitz import LatticeMoments, Toeplitz, ToeplitzAdder
