"""What can go wrong, in dorff's own words. Each class carries the exit code its command ends with."""

import errno
from collections.abc import Mapping
from typing import Final

#: What the system calls a disk that is full, and one, or a network, that failed.
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FAILING: Final = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


class DorffError(Exception):
    """Base of every error dorff raises on purpose."""

    exit_code = 1


class InputError(DorffError, ValueError):
    """A file, column, row, key or argument is not what was wanted."""

    exit_code = 3


class PatternsError(InputError):
    """Rows miss targets in more ways than there are sums for."""


class MissingArrayError(InputError):
    """A data set has no array, or column, of a name."""


class QualityWarning(UserWarning):
    """What is wrong with the fit of an estimator, and what to do."""


class DoesNotFitError(DorffError, ValueError):
    """The job needs more memory or disk than it allows or the machine has. The plan says so before the pass; the
    triangle of a QR alone is measured after the pass that asks for it, whose sums are kept."""

    exit_code = 4


class IncompleteError(DorffError, RuntimeError):
    """The run stopped before its end; the same command goes on from what is done."""

    exit_code = 5


class StoppedError(IncompleteError):
    """A signal asked the work to stop; it stopped at the end of a block, and what is done is kept."""


class CorruptError(IncompleteError):
    """Sums are not what their rows say: memory or processor changed a number. To be done again, best elsewhere."""


class QuarantineError(IncompleteError):
    """Tasks that killed their worker every time they were tried; all others are done. `tags` are theirs."""

    def __init__(self, message: str, tags: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.tags = tags


class GateError(DorffError, RuntimeError):
    """The new model is not good enough, or not of all rows; the one published before stays current.

    `result` is what is known of the fit: `outcome` "refused", `reasons`, `model`, which stays
    current, `score` and `old_score`, and the report of the fit where it came to one.
    """

    exit_code = 6

    def __init__(self, message: str, result: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.result = dict(result or {})


class LeaseError(DorffError, RuntimeError):
    """Another run holds the lease on what this one wants to change."""

    exit_code = 7
