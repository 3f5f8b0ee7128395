"""Manifold terms: graphs over data larger than memory, and T = [F | 1]^T L [F | 1] over them, as moments."""

from dorff.manifold.building import build
from dorff.manifold.leaves import LeafTerm, sum_term
from dorff.manifold.parts import ShardTerm
from dorff.manifold.shards import Adjacency, Shards
from dorff.manifold.sums import GraphSums, added, in_memory
