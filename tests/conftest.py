"""Settings that every test shares."""

import os

# Before NumPy is loaded: the tests' matrices are small, and several BLAS threads on busy cores only wait for another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

# No deadline for one example: the first may compile a loop. pytest's own timeout stops a test that hangs.
settings.register_profile("dorff", deadline=None)
settings.load_profile("dorff")
