"""Formats of files: each registers itself by the ends of its files' names, and so do those of other packages."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import call

from dorff.data import open_dataset
from dorff.errors import InputError
from dorff.spec.registry import READERS

PLUGIN = """
import numpy as np
from dorff.data.readers import Reader, SourceBlock
from dorff.spec.registry import Entry

class CellsReader(Reader):  # a line of names, then a row a line, between bars
    def __init__(self, path):
        with open(path) as file:
            names, *self._rows = [line.strip().split("|") for line in file]
        super().__init__(path, names)

    def dtype(self, column):
        return np.dtype(np.float64)

    def _read(self, columns, labels):
        self.rows = len(self._rows)
        table = np.array(self._rows, float)
        yield SourceBlock(table[:, [self.columns.index(name) for name in columns]])

cells = Entry(".cells", CellsReader)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    info = tmp_path / "cells-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cells\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dorff.readers]\n.cells = cells_format:cells\n.rows = nowhere:rows\n")
    (tmp_path / "cells_format.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(READERS, "_entries", dict(READERS._entries))
    yield tmp_path
    sys.modules.pop("cells_format", None)


def test_a_format_of_another_package_is_ingested(installed: Path) -> None:
    (installed / "a.cells").write_text("u|v|t\n1|2|3\n4|5|6\n")
    (installed / "b.CSV").write_text("w\n7\n8\n")
    out = installed / "rows.zarr"
    done = call("ingest", f"{installed / 'a.cells'}+{installed / 'b.CSV'}", out, "--inputs", "v,u,w", "--targets", "t")
    assert done.exit_code == 0, done.output
    X, Y = open_dataset(out).read(0, 2)
    assert np.array_equal(X, [[2, 1, 7], [5, 4, 8]]) and np.array_equal(Y, [[3], [6]])


def test_an_end_that_nobody_knows_is_refused_with_all_that_are(installed: Path) -> None:
    (installed / "a.xyz").write_text("1")
    done = call("ingest", installed / "a.xyz", installed / "o.zarr", "--inputs", "a")
    assert done.exit_code == InputError.exit_code
    assert "not known from '.xyz'; wanted one of .csv, .tsv, " in done.output
    assert ".cells, .rows." in done.output


def test_a_package_that_cannot_be_loaded_is_named(installed: Path) -> None:
    (installed / "a.rows").write_text("1")
    done = call("ingest", installed / "a.rows", installed / "o.zarr", "--inputs", "a")
    assert (
        done.exit_code == InputError.exit_code and "dorff.readers .rows: nowhere:rows cannot be loaded" in done.output
    )


@pytest.mark.process
def test_libraries_of_formats_are_imported_when_a_file_is_opened() -> None:
    code = "import sys; from dorff.spec.registry import READERS as R; "
    code += "print(len(R.names), {'pyarrow', 'h5py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "28 set()\n"
