"""Whole numbers that are dates, as 20240131, are taken as numbers, and that is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dorff.data import ingest


def notices(folder: Path, values: list[float], suffix: str, **options: object) -> list[str]:
    """What is said when a column DATE of these values is an input, beside one of other numbers."""
    table = pd.DataFrame({"DATE": values, "lat": np.linspace(0, 1, len(values)), "t": 1.0})
    source = folder / f"rows{suffix}"
    if suffix == ".csv":
        table.to_csv(source, index=False)
    elif suffix == ".parquet":
        table.to_parquet(source)
    else:
        np.savez(source, **{name: table[name].to_numpy() for name in table})
    said: list[str] = []
    ingest([source], folder / "s.zarr", inputs=["DATE", "lat"], targets=["t"], notice=said.append, **options)  # type: ignore[arg-type]
    return [notice for notice in said if "like dates as" in notice]


DATES = {
    "YYYYMMDD": [20231231, 20240101, 20240229],
    "YYYYMMDDhh": [2023123100, 2024010112, 2024022923],
    "YYYYMMDDhhmm": [202312310000, 202401011230, 202402292359],
    "YYYYMMDDhhmmss": [20231231000000, 20240101123015, 20240229235959],
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("layout", DATES)
def test_dates_written_as_numbers_are_said(layout: str, suffix: str, tmp_path: Path) -> None:
    (notice,) = notices(tmp_path, DATES[layout], suffix)
    first, *_, last = DATES[layout]
    assert f"column 'DATE' has {first} to {last}, like dates as {layout}:" in notice


@pytest.mark.parametrize(
    "values",
    [
        [20231301, 20240101],  # no such month
        [20230101, 20230229],  # nor such a day
        [20230101, 20240101.5],
        [20240101, 20240101],  # says little, and changes nothing
        [11110101, 20240101],
        [1700000000, 1700000600],  # seconds since 1970
        [20240101, 2024010100],
        [-20240102, -20240101],
        [np.nan, np.nan],
    ],
)
def test_other_numbers_are_no_dates(values: list[float], tmp_path: Path) -> None:
    assert notices(tmp_path, values, ".parquet") == []


def test_a_gap_among_dates_changes_nothing(tmp_path: Path) -> None:
    assert len(notices(tmp_path, [20231231, np.nan, 20240229], ".csv")) == 1


def test_numbers_with_units_are_no_dates(tmp_path: Path) -> None:
    assert notices(tmp_path, DATES["YYYYMMDD"], ".csv", units={"DATE": "m"}) == []
