"""CSV and TSV files, plain or gzipped, with or without a header (RFC 4180)."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from dorff.data.readers import Block, Reader, reading
from dorff.errors import InputError

EMPTY: Final = frozenset(pacsv.ConvertOptions().null_values)  # what is read as NaN
BLOCK: Final = 2**20
COLUMN_BLOCK: Final = 64  # of the first row: a block must hold whole rows, and later ones may be longer


@final
class CSVReader(Reader):
    """Columns of a CSV file; one whose first row holds numbers only has no header, but columns c0, c1, ...

    Empty fields and NA, NaN, null and the like are NaN.
    """

    def __init__(self, path: str) -> None:
        with reading(path, "CSV"):
            self._zipped = path.endswith(".gz")
            self._delimiter = "\t" if Path(path.removesuffix(".gz")).suffix == ".tsv" else ","
            first, self._blank = self._first_row(path)
        self._header = not _numeric(first)
        self._block = max(BLOCK, COLUMN_BLOCK * sum(len(field) + 1 for field in first))
        names = first if self._header else [f"c{j}" for j in range(len(first))]
        super().__init__(path, [name.strip() for name in names], numbered=not self._header)

    def dtype(self, column: str) -> np.dtype[Any]:
        """Text holds numbers of any precision."""
        return np.dtype(np.float64)

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        """Parse the file a block at a time; only the columns asked for are turned into numbers."""
        # Names of our own, by place: the file's may repeat.
        names = [str(j) for j in range(len(self.columns))]
        place = {column: str(j) for j, column in enumerate(self.columns)}
        wanted = [place[column] for column in columns]
        with (
            reading(self.path, "CSV"),
            pa.input_stream(self.path, compression="gzip" if self._zipped else None) as stream,
        ):
            try:
                yield from self._parse(stream, names, wanted)
            except pa.ArrowInvalid as error:
                raise self._explained(str(error)) from error

    def _parse(self, stream: Any, names: list[str], wanted: list[str]) -> Iterator[Block]:
        # Arrow counts rows, for its messages, on one thread only; it is as fast there.
        read = pacsv.ReadOptions(
            use_threads=False,
            block_size=self._block,
            column_names=names,
            skip_rows=self._blank,
            skip_rows_after_names=int(self._header),
        )
        parse = pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        convert = pacsv.ConvertOptions(include_columns=wanted, column_types=dict.fromkeys(wanted, pa.float64()))
        for batch in pacsv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert):
            if batch.num_rows:
                yield np.column_stack([column.to_numpy(zero_copy_only=False) for column in batch.columns])

    def _explained(self, reason: str) -> InputError:
        row = re.search(r"Row #(\d+)", reason)
        where = f"row {row[1]}" if row else "some row"
        if text := re.search(r"In CSV column #(\d+).*invalid value '(.*)'", reason, re.DOTALL):
            column, value = self.columns[int(text[1])], text[2] if len(text[2]) < 60 else text[2][:60] + "..."
            return InputError(
                f"{self.path}: column {column!r}, {where}: wanted a number, got {value!r}; correct it, "
                "empty it, or leave the column out."
            )
        if width := re.search(r"Expected (\d+) columns, got (\d+)", reason):
            return InputError(f"{self.path}: {where}: wanted {width[1]} fields, got {width[2]}; correct that row.")
        return InputError(
            f"{self.path}: {where} cannot be read as CSV ({' '.join(reason.split())[:200]}); check its quotes."
        )

    def _first_row(self, path: str) -> tuple[list[str], int]:
        """The first row that is not blank, and how many lines are before it."""
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
            if self._zipped
            else open(path, encoding="utf-8-sig", errors="replace", newline="")
        ) as file:
            for blank, row in enumerate(csv.reader(file, delimiter=self._delimiter)):
                if row:
                    return row, blank
        raise InputError(f"{path}: is empty; wanted at least one row of numbers.")


def _numeric(row: Sequence[str]) -> bool:
    """Whether a row holds numbers and empty fields only, and one number at least."""
    filled = [field.strip() for field in row if field.strip() not in EMPTY]
    return bool(filled) and all(_is_number(field) for field in filled)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field  # Python's literals allow it, files do not
