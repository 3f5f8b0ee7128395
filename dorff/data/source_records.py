"""What a store records of its sources: names, contents, rows, columns.

The records show which source is delivered again, which rows `drop` takes away, and
which sources could hold rows equal to those of a delivery.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from dorff.data.layout import Attributes
from dorff.data.readers import Reader
from dorff.data.resolutions import Resolution
from dorff.data.row_runs import Runs, clip_runs
from dorff.errors import InputError

MAX_RECORDED_COLUMNS: Final = 1000
"""Names of the last source's columns that a store keeps."""


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """What a store keeps of one source.

    Attributes
    ----------
    name : str
        The path it was ingested from.
    content : str
        Digest of its bytes.
    first, rows : int
        Number of its first row in the store, and how many rows it has.
    box : tuple of tuple of float
        Least and largest value of each input column; empty if unknown.
    modified : str
        When the file, or the latest of several or of a folder, was last changed: UTC, in
        ISO 8601.
    where, left_out : str, int
        The condition on its rows, and how many it left out.
    dropped : bool
        Whether its rows were taken away by `drop`.
    duplicates, corrected, replaced : int
        Delivered rows that were in the store already, that had the key of a row there
        but other values, and rows of the store that were dropped for them.
    """

    name: str
    content: str
    first: int
    rows: int
    box: tuple[tuple[float, ...], ...] = ()
    modified: str = ""
    where: str = ""
    left_out: int = 0
    dropped: bool = False
    duplicates: int = 0
    corrected: int = 0
    replaced: int = 0

    @property
    def stop(self) -> int:
        """One past the number of its last row."""
        return self.first + self.rows

    def overlaps(
        self,
        other: "SourceRecord",
        inputs: Sequence[int],
        resolutions: Mapping[int, Resolution],
    ) -> bool:
        """Return whether both could have a row with the same values of these inputs.

        Inputs are compared exactly, unless `resolutions` say how closely.
        """
        if not self.box or not other.box:
            return True
        ends = np.array([self.box, other.box])
        slack = np.zeros(ends.shape[-1])
        for place, resolution in resolutions.items():
            slack[place] = resolution.step(ends[..., place]).max()
        (low, high), (other_low, other_high) = ends
        overlap = (low <= other_high + slack) & (other_low <= high + slack)
        return bool(np.all(overlap[inputs]))

    def to_attribute(self) -> Attributes:
        """Return it as JSON, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_attribute(cls, value: Mapping[str, Any]) -> Self:
        """Return the record of what `to_attribute` gave; raises TypeError otherwise."""
        box = tuple(tuple(map(float, end)) for end in value.get("box", ()))
        return cls(**({"first": 0, "rows": 0} | dict(value) | {"box": box}))


def modification_time(source: str) -> str:
    """Return when the latest file of a source was last changed.

    The source is a file, several side by side, or a folder, such as a Zarr group, whose
    files count at any depth.
    """
    paths = [source] if Path(source).exists() else source.split("+")
    seconds = [file.stat().st_mtime for path in paths for file in _files_of(Path(path))]
    if not seconds:
        return ""
    return datetime.fromtimestamp(max(seconds), UTC).isoformat(timespec="seconds")


def _files_of(path: Path) -> Iterator[Path]:
    """Return the file at `path`, or those in the folder there."""
    return filter(Path.is_file, [path] if path.is_file() else path.rglob("*"))


def read_sources(
    attributes: Any,
    where: object,
) -> tuple[list[SourceRecord], list[str]]:
    """Return the recorded sources of a store and the contents of earlier ones.

    Stores made before sources were recorded list their contents alone. Raises
    InputError if the list is damaged.
    """
    try:
        recorded = [source for source in attributes if isinstance(source, Mapping)]
        records = [SourceRecord.from_attribute(source) for source in recorded]
    except (TypeError, ValueError):
        problem = "its attribute dorff.sources is damaged"
        remedy = "restore its metadata from a copy"
        raise InputError(f"{where}: {problem}; {remedy}.") from None
    contents = [source for source in attributes if not isinstance(source, Mapping)]
    return records, [str(content) for content in contents]


def find_source(
    records: Sequence[SourceRecord],
    name: str,
    where: object,
    counted: Runs,
) -> SourceRecord:
    """Return the source of this path, file name or content digest.

    Of several, those without any of the `counted` rows are left aside: others have
    replaced theirs, or they were trimmed. Raises InputError if there is none, several,
    or if it was dropped before.
    """
    candidates: list[SourceRecord] = []
    matches = (
        lambda record: record.content == name,
        lambda record: record.name == name,
        lambda record: Path(record.name).name == Path(name).name,
    )
    for is_match in matches:
        candidates = candidates or [record for record in records if is_match(record)]
    present = [record for record in candidates if not record.dropped]
    if len(present) > 1:
        with_rows = [record for record in present if clip_runs(counted, record.first, record.stop)]
        present = with_rows or present
    if len(present) == 1:
        return present[0]
    if present:
        listed = []
        for record in present[:5]:
            rows = f"rows {record.first} to {record.stop - 1}"
            listed.append(f"{record.content} ({record.name}, {rows})")
        listed += ["..."] if len(present) > 5 else []
        problem = f"{len(present)} sources are named {name!r}"
        remedy = f"give one by its content instead: {'; '.join(listed)}"
        raise InputError(f"{where}: {problem}; {remedy}.")
    if candidates:
        raise InputError(f"{where}: the rows of {name!r} were dropped before.")
    names = [record.name for record in records if not record.dropped]
    known = ", ".join(dict.fromkeys(names))
    shown = known if len(known) < 500 else f"{known[:500]}..."
    held = f"its sources are: {shown}" if known else "it has no record of its sources"
    raise InputError(f"{where}: has no source {name!r}; {held}.")


def describe_changed_columns(
    before: Sequence[str],
    readers: Sequence[Reader],
) -> list[str]:
    """Say which columns are new or missing in the first source that has others.

    Each source is compared with the one before it, the first with `before`: the columns
    of the store's last source, empty if there is none.
    """
    for reader in readers:
        after = list(reader.columns)
        changes = []
        if before and len(before) < MAX_RECORDED_COLUMNS:
            added, missing = _split_changed_columns(before, after)
            if added:
                changes.append(f"the new columns {', '.join(added[:10])}")
            if missing:
                changes.append(f"no columns {', '.join(missing[:10])} any more")
        if changes:
            found = " and ".join(changes)
            return [f"{reader.path}: has {found}, compared with the source before it"]
        before = after
    return []


def _split_changed_columns(
    before: Sequence[str],
    after: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return the columns that were added, and those that are missing."""
    known, found = set(before), set(after)
    return (
        [name for name in after if name not in known],
        [name for name in before if name not in found],
    )
