"""The command line: what is typed after `dorff`. Its streams and signals come before what is slow to import."""

from __future__ import annotations

from dorff.stopping import open_streams, take_signals


def main() -> None:
    """The entry point of `dorff`."""
    open_streams()
    take_signals()
    from dorff.cli.commands import app
    from dorff.cli.guard import run_app

    run_app(app)


__all__ = ["main"]
