"""Jitted loops: the parts of dorff that NumPy does not do at the machine's speed."""

from dorff.loops.config import cache_directory, loop
from dorff.loops.projections import butterfly_rules, hadamard_chain, sparse_rows
from dorff.loops.rotations import simplex_vertices
from dorff.loops.rowwise import ABSOLUTE, RAMP, SIGN, STEP, differences, pieces, scan, trig_pairs
