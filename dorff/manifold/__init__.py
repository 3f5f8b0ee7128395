"""Manifold terms: graphs over data larger than memory, and T = [F | 1]^T L [F | 1] over them, as moments."""

from dorff.manifold.building import build
from dorff.manifold.leaves import run_within, sum_term
from dorff.manifold.parts import run_shard
from dorff.manifold.places import TermPlace
from dorff.manifold.shards import Adjacency, Shards
from dorff.manifold.sums import GraphSums, added, in_memory
from dorff.plan.terms import GROUP_ROWS, Form, Recipe, difference_shift, term_bytes, term_flops

__all__ = [
    "GROUP_ROWS",
    "Adjacency",
    "Form",
    "GraphSums",
    "Recipe",
    "Shards",
    "TermPlace",
    "added",
    "build",
    "difference_shift",
    "in_memory",
    "run_shard",
    "run_within",
    "sum_term",
    "term_bytes",
    "term_flops",
]
