"""The command line: what is typed after `dorff`. Its streams and signals come before what is slow to import."""

import os
import sys

from dorff.errors.stopping import skip_cleaning_at_exit, take_signals


def main() -> None:
    _open_streams()
    take_signals()
    from dorff.cli.commands import app
    from dorff.cli.guard import run_app

    try:
        run_app(app)
    finally:
        skip_cleaning_at_exit()


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
