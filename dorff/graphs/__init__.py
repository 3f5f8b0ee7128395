"""Neighbour graphs of rows, their weights and Laplacians, and what a manifold term is."""

from dorff.graphs.graph import KNN, Given, Manifold
from dorff.graphs.graph import IdentityGraph as Identity
from dorff.graphs.graph import RowGraph as Graph
from dorff.graphs.neighbourhood import checked, degrees, inverse_roots, local_graph, neighbours, own_scale
