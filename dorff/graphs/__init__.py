"""Neighbour graphs of rows, their weights and Laplacians, and what a manifold term is."""

from dorff.graphs.edge_weights import adjacency, both_ways, edge_weights, local_graph, own_scale
from dorff.graphs.graph import KNN, Given, Graph, Identity
from dorff.graphs.laplacian import degrees, inverse_roots, laplacian, row_sums
from dorff.graphs.nearest import neighbours, working_bytes
from dorff.graphs.term import Manifold
from dorff.graphs.validation import check_edges, checked, undirected

__all__ = [
    "KNN",
    "Given",
    "Graph",
    "Identity",
    "Manifold",
    "adjacency",
    "both_ways",
    "check_edges",
    "checked",
    "degrees",
    "edge_weights",
    "inverse_roots",
    "laplacian",
    "local_graph",
    "neighbours",
    "own_scale",
    "row_sums",
    "undirected",
    "working_bytes",
]
