"""Names of columns in comments above the rows: taken where sure, else refused by a sentence that can be followed."""

from pathlib import Path

import pytest

from dorff.data import ingest
from dorff.data.csv_reader import CSVReader
from dorff.errors import InputError

BLANKS = "0 10 1.5\n1 11 1.6\n2 12 1.7\n3 13 1.8\n"
COMMAS = BLANKS.replace(" ", ",")
NAMES = ["time", "lat", "temp"]
#: What stands above the rows, and the rows.
KNOWN = {
    "blanks": ("# time lat temp\n", BLANKS),
    "commas": ("# time,lat,temp\n", COMMAS),
    "numpy's savetxt": ("# time,lat,temp\n", COMMAS.replace("0,", "0.0e+00,")),
    "matlab": ("%time\tlat\ttemp\n% s\tdeg\tK\n", BLANKS.replace(" ", "\t")),
    "slashes and quotes": ('//"time","lat","temp"\n', COMMAS),
    "after a colon": ("# columns: time lat temp\n", BLANKS),
    "commas above blanks": ("# time, lat, temp\n", BLANKS),
    "blanks above commas": ("# time lat temp\n", COMMAS),
    "semicolons above tabs": ("# time; lat; temp\n", BLANKS.replace(" ", "\t")),
    "prose below": ("# time lat temp\n# written by Bob\n", BLANKS),
    "prose above": ("# written by Bob\n# time lat temp\n", BLANKS),
    "units in brackets": ("% time lat temp\n% [s] [deg] [degC]\n", BLANKS),
}


@pytest.mark.parametrize("case", KNOWN)
def test_names_in_comments_are_known(tmp_path: Path, case: str) -> None:
    head, rows = KNOWN[case]
    (tmp_path / "a.dat").write_text(head + rows)
    reader = CSVReader(str(tmp_path / "a.dat"), NAMES)
    assert list(reader.columns) == NAMES
    assert ingest([tmp_path / "a.dat"], tmp_path / "s.zarr", inputs=["time", "lat"], targets=["temp"]) == 4


def test_units_below_commented_names(tmp_path: Path) -> None:
    for head in ("% time lat temp\n% [s] [deg] [degC]\n", "# time lat temp\n# s deg degC\n# by Bob Smith\n"):
        (tmp_path / "a.dat").write_text(head + BLANKS)
        reader = CSVReader(str(tmp_path / "a.dat"), NAMES)
        assert reader.attributes("temp")["units"].strip("[]") == "degC"


@pytest.mark.parametrize("marker", ["!", ";", "*", "REM"])
def test_other_markers_are_named_by_an_option(tmp_path: Path, marker: str) -> None:
    (tmp_path / "a.dat").write_text(f"{marker} time lat temp\n{BLANKS}")
    with pytest.raises(InputError, match="--comment"):
        ingest([tmp_path / "a.dat"], tmp_path / "s.zarr", inputs=["time"])
    text = {"comment": [marker]}
    assert ingest([tmp_path / "a.dat"], tmp_path / "s.zarr", inputs=["time", "lat"], text=text) == 4


@pytest.mark.parametrize(
    "head", ["# time lat\n", "# 1: time\n# 2: lat\n# 3: temp\n", "# time (s) lat (deg) temp (K)\n"]
)
def test_names_that_do_not_fit_the_rows_are_no_names(tmp_path: Path, head: str) -> None:
    """A name for each column is wanted; the rows can be read by number."""
    (tmp_path / "a.dat").write_text(head + BLANKS)
    with pytest.raises(InputError, match="name for each column: write one, or name c0, c1") as refused:
        ingest([tmp_path / "a.dat"], tmp_path / "s.zarr", inputs=["time"])
    assert "--skip-rows" in str(refused.value)
    assert ingest([tmp_path / "a.dat"], tmp_path / "s.zarr", inputs=["c0"], targets=["c2"]) == 4
