"""Settings that every test shares."""

from hypothesis import settings

# No deadline for one example: the first may compile a loop. pytest's own timeout stops a test that hangs.
settings.register_profile("dorff", deadline=None)
settings.load_profile("dorff")
