"""What the tests of faults share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Found, leaves_of, one_process, sea, write_store
from table import fault_log


@pytest.fixture
def record_fault() -> Callable[..., None]:
    """Writes a line of the fault table: fault, injected, outcome, rows_lost, rows_twice, work_redone."""
    return fault_log


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set that no test may change."""
    return write_store(tmp_path_factory.mktemp("data") / "sea.zarr", *sea())


@pytest.fixture(scope="session")
def truth(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What one undisturbed process makes of it."""
    return one_process(tmp_path_factory.mktemp("truth"), store)


@pytest.fixture
def small_leaves() -> Iterator[None]:
    """Small leaves in this process's plans."""
    with leaves_of():
        yield
