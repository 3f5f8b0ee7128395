"""The command line: what is typed after `dorff`."""

from dorff.cli.commands import main

__all__ = ["main"]
