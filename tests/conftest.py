"""Settings that every test shares."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy  # noqa: F401 - loads its BLAS, whose threads are limited below
import pytest
import scipy.linalg  # noqa: F401 - and SciPy's own
from hypothesis import settings
from threadpoolctl import threadpool_limits

# The tests' matrices are small, and several BLAS threads on busy cores only wait for one another.
threadpool_limits(1, user_api="blas")

# No deadline for one example: the first may compile a loop. pytest's own timeout stops a test that hangs.
settings.register_profile("dorff", deadline=None)
settings.load_profile("dorff")

pytest_plugins = ["quick", "schema_watch", "components", "gateway", "table"]


def _not_synced(handle: int) -> None:
    """In place of `os.fsync`: what tests write need not outlive the machine. Processes that tests start do sync."""
    os.fstat(handle)  # an OSError where it is no open file


os.fsync = _not_synced


def pytest_configure(config: pytest.Config) -> None:
    """The folders of quick tests are in memory where there is enough for them: a disk takes a third of their time."""
    memory = Path("/dev/shm")
    if "not process" in config.option.markexpr and memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


@pytest.fixture(autouse=True)
def _dask_as_it_was() -> Iterator[None]:
    """A client that is closed and still Dask's default would fail the tests after it that compute arrays."""
    yield
    if dask.config.get("scheduler", None) is not None:
        from distributed import Client  # here alone: at the start it hides from caplog what dorff logs

        Client.current()
