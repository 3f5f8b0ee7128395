"""Jitted loops: the parts of dorff that NumPy does not do at the machine's speed."""

from dorff.loops.config import cache_directory, loop
from dorff.loops.scan import scan
from dorff.loops.trig import trig_pairs

__all__ = ["cache_directory", "loop", "scan", "trig_pairs"]
