"""A second storage, in this process's memory, for the scheme memory://: as another package would bring one."""

from __future__ import annotations

from dorff.storage import bucket
from dorff.storage.objects import ObjectLocation


class MemoryLocation(ObjectLocation):
    """A place in obstore's own memory."""

    __slots__ = ()
    scheme = "memory"


def forget_all() -> None:
    """Empty every memory, and connect anew to all else."""
    bucket.forget_stores()
