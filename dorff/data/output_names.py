"""Names that users give to outputs, which should not look like files of another format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dorff.data.nodes import node
from dorff.errors import InputError
from dorff.spec.registry import READERS

COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".tar", ".tgz")
DOCUMENTS: Final = (".html", ".htm", ".json", ".xlsx", ".xls")


def check_ending(path: Path, kind: str, endings: Sequence[str]) -> None:
    """Raise InputError where a new output would have the name of a file of another format.

    An ending that belongs to no known format is a part of the name. A data set that is
    there already keeps its name, whatever that is.
    """
    ending = path.suffix.lower()
    known = (".zarr", *READERS.names, *COMPRESSED, *DOCUMENTS)
    if ending in endings or ending not in known or not node(path).problem:
        return
    written = f"{', '.join(endings[:-1])} or {endings[-1]}" if len(endings) > 1 else endings[0]
    raise InputError(f"{path}: {kind} can be {written}, not {ending}; rename it.")
