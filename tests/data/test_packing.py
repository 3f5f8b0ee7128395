"""Packed numbers: against xarray's decoder, as text, and what xarray does not decode."""

import base64
import struct
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from cases import LAW
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from xarray.conventions import decode_cf_variable

from dorff.data import ingest, open_dataset
from dorff.data.packing import Packing
from dorff.errors import InputError

TYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">f4", "f2", "f4", "f8")
NUMBERS = st.floats(-1e6, 1e6).filter(lambda number: abs(number) > 1e-6)


@st.composite
def packed(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    """Stored values and attributes of one type, as the conventions want them."""
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    elements = npst.from_dtype(dtype, allow_nan=True, allow_infinity=False)
    stored = draw(npst.arrays(dtype, draw(st.integers(1, 8)), elements=elements))
    attributes: dict[str, Any] = {}
    if draw(st.booleans()):
        attributes["scale_factor"] = draw(NUMBERS)
    if draw(st.booleans()):
        attributes["add_offset"] = draw(NUMBERS)
    unsigned = draw(st.sampled_from(["", "true", "false"])) if dtype.kind in "iu" else ""
    if unsigned:
        attributes["_Unsigned"] = unsigned
    # Where integers change their sign xarray does not find its other attribute.
    for key in ("_FillValue", "missing_value")[: 1 if unsigned else 2]:
        if draw(st.booleans()):
            attributes[key] = draw(st.one_of(st.sampled_from(stored.tolist()), elements))
            attributes[key] = dtype.newbyteorder("=").type(attributes[key])
    return stored, attributes


@settings(LAW, max_examples=200)
@given(packed())
def test_values_are_those_of_xarray(given: tuple[np.ndarray, dict[str, Any]]) -> None:
    stored, attributes = given
    native = stored.astype(stored.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variable = xr.Variable("row", native, dict(attributes))
        wanted = decode_cf_variable("v", variable, decode_times=False, decode_timedelta=False).values
        values = Packing.of(attributes, stored.dtype, "v").decode(stored)
    if stored.dtype.kind == "f" and not {"scale_factor", "add_offset"} & set(attributes):
        assert values.dtype == stored.dtype
    np.testing.assert_array_equal(values.astype(np.float64), wanted.astype(np.float64))


@settings(LAW, max_examples=100)
@given(packed(), st.sampled_from(["text", "bytes", "array", "padded", "base64"]))
def test_attributes_mean_the_same_as_text(given: tuple[np.ndarray, dict[str, Any]], kind: str) -> None:
    stored, attributes = given

    def written(key: str, value: Any) -> Any:
        if key == "_Unsigned":
            return {"bytes": value.encode(), "array": np.array([value]), "padded": f"{value.upper()} \0"}.get(
                kind, value
            )
        if kind == "base64":
            return base64.b64encode(struct.pack("<d", value)).decode() if isinstance(value, float) else value
        text = repr(value.item() if isinstance(value, np.generic) else value)
        return {"bytes": text.encode(), "array": np.array([text], "S"), "padded": f" {text}\0"}.get(kind, text)

    as_text = {key: written(key, value) for key, value in attributes.items()}
    assert Packing.of(as_text, stored.dtype, "v") == Packing.of(attributes, stored.dtype, "v")


@pytest.mark.parametrize(
    ("dtype", "attributes", "stored", "wanted"),
    [
        ("i2", {"valid_range": "0, 5000", "scale_factor": "0.001"}, [0, 5000, 5001, -1], [0, 5, np.nan, np.nan]),
        ("i2", {"valid_min": "-1", "valid_max": b"2.5"}, [-2, -1, 2, 3], [np.nan, -1, 2, np.nan]),
        ("f4", {"valid_range": "[]".strip("[]"), "missing_value": ""}, [1, 2], [1, 2]),
        ("i1", {"_Unsigned": "true", "valid_range": [0, -6]}, [5, -6, -5], [5, 250, np.nan]),
        ("i1", {"_Unsigned": True, "missing_value": -1}, [5, -1], [5, np.nan]),
        ("u1", {"_Unsigned": "false", "_FillValue": 255}, [127, 128, 255], [127, -128, np.nan]),
        ("i8", {"_FillValue": 2**63 - 1}, [2**63 - 1, 7], [np.nan, 7]),
        ("i8", {"_FillValue": str(2**63 - 1)}, [2**63 - 1, 7], [np.nan, 7]),
        ("u8", {"missing_value": str(2**64 - 1)}, [2**64 - 1, 7], [np.nan, 7]),
        ("f4", {"_FillValue": "0.1"}, [0.1, 1], [np.nan, 1]),
        ("i4", {"missing_value": ["-99", "-999"]}, [-99, -999, 1], [np.nan, np.nan, 1]),
    ],
)
def test_what_xarray_does_not_decode(dtype: str, attributes: Any, stored: Any, wanted: Any) -> None:
    values = Packing.of(attributes, np.dtype(dtype), "v").decode(np.array(stored, dtype))
    np.testing.assert_array_equal(values, np.array(wanted, values.dtype))


FAULTY = [
    {"scale_factor": "a tenth"},
    {"scale_factor": 0},
    {"scale_factor": np.nan},
    {"scale_factor": [0.1, 0.2]},
    {"add_offset": "280 K"},
    {"add_offset": np.inf},
    {"_FillValue": "none"},
    {"valid_range": [1]},
    {"valid_range": "0 to 5"},
]


@pytest.mark.parametrize("attributes", FAULTY)
@pytest.mark.parametrize("name", ["v.nc", "v2.zarr", "v3.zarr"])
def test_attributes_that_are_no_numbers_are_refused(tmp_path: Path, name: str, attributes: dict[str, Any]) -> None:
    """By the variable that is asked for; another may be read."""
    (key,) = attributes
    if name == "v.nc":
        with h5py.File(tmp_path / name, "w") as file:
            file["t"], file["good"] = np.ones(3, "i2"), np.ones(3)
            file["t"].attrs[key] = attributes[key]
    else:
        group = zarr.open_group(tmp_path / name, mode="w", zarr_format=int(name[1]))
        for array in ("t", "good"):
            group.create_array(array, shape=(3,), dtype="i2", chunks=(3,))[:] = 1
        group["t"].attrs[key] = attributes[key]
    with pytest.raises(InputError, match=f"t.*attribute {key}"):
        if name == "v.nc":
            ingest([tmp_path / name], tmp_path / "s.zarr", inputs=["good"], targets=["t"])
        else:
            open_dataset(tmp_path / name, inputs="good", targets="t")
    assert not (tmp_path / "s.zarr").exists()
    if name == "v.nc":
        assert ingest([tmp_path / name], tmp_path / "s.zarr", inputs=["good"]) == 3


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_text_unpacks_in_zarr(tmp_path: Path, zarr_format: int) -> None:
    group = zarr.open_group(tmp_path / "v.zarr", mode="w", zarr_format=zarr_format)
    group.create_array("t", shape=(4,), dtype="i2", chunks=(4,))[:] = np.array([0, 5000, -99, 7], "i2")
    group["t"].attrs.update({"scale_factor": "0.001", "add_offset": "280.0", "missing_value": "-99"})
    X = open_dataset(tmp_path / "v.zarr", inputs="t", targets=None).read(0, 4)[0]
    np.testing.assert_array_equal(X[:, 0], [280, 285, np.nan, 7 * 0.001 + 280])


def test_text_unpacks_in_netcdf(tmp_path: Path) -> None:
    data = xr.Dataset({"t": ("row", np.array([0, 5000, -99], "i2"))})
    data.t.attrs.update({"scale_factor": "0.001", "add_offset": "280.0", "missing_value": "-99"})
    for engine in ("scipy", "netcdf4"):
        data.to_netcdf(tmp_path / f"{engine}.nc", engine=engine)
        ingest([tmp_path / f"{engine}.nc"], tmp_path / f"{engine}.zarr", inputs=["t"])
        X = open_dataset(tmp_path / f"{engine}.zarr", targets=None).read(0, 3)[0]
        np.testing.assert_array_equal(X[:, 0], [280, 285, np.nan])
