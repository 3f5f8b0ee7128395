"""The command line: what is typed after `dorff`. Its streams and signals come before what is slow to import."""

import atexit
import gc
import os
import sys

from dorff.errors.stopping import take_signals


def main() -> None:
    _open_streams()
    take_signals()
    atexit.register(gc.freeze)  # the system takes back all memory at once, and Python looks through it for long
    from dorff.cli.commands import app
    from dorff.cli.guard import run_app

    run_app(app)


def _open_streams() -> None:
    """What the caller closed is /dev/null, else a file opened later would take its place and get what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest number that is free
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115
