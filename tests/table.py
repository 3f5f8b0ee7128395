"""What each injected fault came to, as lines of JSON in the file that $DORFF_FAULT_LOG names."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Entry:
    """A fault, how often it was injected, what came of it, rows lost and counted twice in what was published in the
    end, and the work that was done again: leaves, unless the text says otherwise."""

    fault: str
    injected: int
    outcome: str
    rows_lost: int
    rows_twice: int
    work_redone: str


def fault_log(
    fault: str, injected: int, outcome: str, rows_lost: int = 0, rows_twice: int = 0, work_redone: str | int = 0
) -> None:
    """Append an entry; nothing where no log is asked for."""
    path = os.environ.get("DORFF_FAULT_LOG")
    if path:
        line = json.dumps(asdict(Entry(fault, injected, outcome, rows_lost, rows_twice, str(work_redone))))
        handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        try:
            os.write(handle, (line + "\n").encode())  # one call: several tests append at once
        finally:
            os.close(handle)
