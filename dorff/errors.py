"""What can go wrong, in dorff's own words. Each class carries the exit code its command ends with."""


class DorffError(Exception):
    """Base of every error dorff raises on purpose."""

    exit_code = 1


class InputError(DorffError, ValueError):
    """A file, column, row, key or argument is not what was wanted."""

    exit_code = 3


class DoesNotFitError(DorffError, ValueError):
    """The plan needs more memory or disk than the job allows; nothing was read or written."""

    exit_code = 4


class IncompleteError(DorffError, RuntimeError):
    """The run stopped before its end; the same command goes on from what is done."""

    exit_code = 5
