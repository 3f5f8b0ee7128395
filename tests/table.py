"""What each injected fault came to, as lines of JSON in the file that $DORFF_FAULT_LOG names."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, final

import psutil
import pytest

MARK: Final = "DORFF_TEST_TRIAL"
#: What tests stop and start again, or keep for the next test: no orphan of a fit.
DAEMONS: Final = ("slurmctld", "slurmd", "slurmstepd", "radosgw", "network_fs.py")
GRACE: Final = 600.0  # seconds that whatever ends may take


@dataclass(frozen=True)
class Entry:
    """A fault, how often it was injected, what came of it, rows lost and counted twice in what was published in the
    end, the work that was done again (leaves, unless the text says otherwise), what was left running or lying about
    after the end, and the file of the test. None is what the test did not count."""

    fault: str
    injected: int
    outcome: str
    rows_lost: int | None
    rows_twice: int | None
    work_redone: str
    orphans: int | None = None

    def write(self) -> None:
        """Append it to the log; nothing where no log is asked for."""
        if path := os.environ.get("DORFF_FAULT_LOG"):
            file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
            handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            try:
                # One call: several tests append at once.
                os.write(handle, (json.dumps(asdict(self) | {"file": file}) + "\n").encode())
            finally:
                os.close(handle)


def fault_log(
    fault: str, injected: int, outcome: str, rows_lost: int = 0, rows_twice: int = 0, work_redone: str | int = 0
) -> None:
    """Append an entry; nothing where no log is asked for."""
    Entry(fault, injected, outcome, rows_lost, rows_twice, str(work_redone)).write()


@final
class Trial:
    """A test of a fault. Whatever process it starts, and all below that, has the trial's mark in its environment."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def processes(self) -> list[str]:
        """The commands of its processes that still run."""
        there = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    there.append(" ".join(process.cmdline()))
        return [command for command in there if not any(daemon in command for daemon in DAEMONS)]

    def settle(
        self,
        fault: str,
        outcome: str = "same bits",
        *,
        rows: tuple[int, int] | None = None,
        same: bool = True,
        left: Callable[[], int] = int,
        redone: str = "not counted",
    ) -> None:
        """Write what the fault came to, and fail where that is not what it has to be. `rows` are those that there are
        and those that the published model is of; `same` says whether the outcome is the wanted one; `left` counts what
        may be left besides processes. What ends may take a while. Without a fault nothing is written."""
        end = time.monotonic() + GRACE
        while (orphans := left() + len(self.processes())) and time.monotonic() < end:
            time.sleep(0.1)
        lost, twice = (None, None) if rows is None else (max(0, rows[0] - rows[1]), max(0, rows[1] - rows[0]))
        entry = Entry(fault, 1, outcome if same else f"NOT {outcome}", lost, twice, redone, orphans)
        if fault:
            entry.write()
        assert same and not lost and not twice and not orphans, (entry, self.processes())


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    """What the test's fault came to is written by it."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    return Trial(mark)
