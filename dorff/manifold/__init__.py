"""Manifold terms: graphs over data larger than memory, and T = [F | 1]^T L [F | 1] over them, as moments."""

from dorff.manifold.building import build
from dorff.manifold.laplacian_sums import GraphSums, added, in_memory
from dorff.manifold.leaves import LeafTerm, Shards, ShardTerm, sum_term
