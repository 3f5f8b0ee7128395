"""Ingest holds a small part of a grid, whatever its format: by the peak of a process of its own."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from scipy.io import netcdf_file

MiB = 2**20
ALLOWED = 48 * MiB  # on top of what the process takes before; the grid has eight times as much
SIDE = 256  # of a field, whose values are 0.5 MiB
FIELDS = ("u", "v", "w")
# The first grid brings in what is imported late; only then are peaks looked at.
INGEST = """
import sys
from contextlib import suppress
from pathlib import Path
from dorff.data import ingest

def kibibytes(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

small, large, out = sys.argv[1:]
ingest([small], out + ".small", inputs=["lat", "u"], targets=["v", "w"])
with suppress(OSError):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, where that may be asked for
before = kibibytes("VmRSS:")
ingest([large], out, inputs=["lat", "u"], targets=["v", "w"])
print((kibibytes("VmHWM:") - before) * 1024)
"""


def write_grid(path: Path, kind: str, times: int) -> Path:
    lengths = {"time": times, "lat": SIDE, "lon": SIDE}
    field = np.random.default_rng(0).standard_normal((SIDE, SIDE))
    chunks = (2, SIDE // 2, SIDE // 2)
    if kind == "netcdf3":
        with netcdf_file(path, "w") as file:
            for dim, length in lengths.items():
                file.createDimension(dim, length)
            file.createVariable("lat", "d", ("lat",))[:] = np.arange(SIDE)
            for name in FIELDS:
                variable = file.createVariable(name, "d", tuple(lengths))
                for time in range(times):
                    variable[time] = field + time
    elif kind == "netcdf4":
        with h5py.File(path, "w") as file:
            for dim, length in lengths.items():
                file[dim] = np.arange(length, dtype="f8")
                file[dim].make_scale(dim)
            for name in FIELDS:
                stored = file.create_dataset(name, tuple(lengths.values()), "f8", chunks=chunks, compression="lzf")
                for time in range(0, times, 2):
                    stored[time : time + 2] = field + time
                for axis, dim in enumerate(lengths):
                    stored.dims[axis].attach_scale(file[dim])
    else:
        group = zarr.open_group(path, mode="w")
        group.create_array("lat", shape=(SIDE,), dtype="f8", dimension_names=["lat"])[:] = np.arange(1.0, SIDE + 1)
        for name in FIELDS:
            shape, dims = tuple(lengths.values()), tuple(lengths)
            array = group.create_array(name, shape=shape, dtype="f8", chunks=chunks, dimension_names=dims)
            for time in range(0, times, 2):
                array[time : time + 2] = np.stack([field, field + time])
    return path


@pytest.mark.process
@pytest.mark.parametrize("kind", ["netcdf4", "zarr", pytest.param("netcdf3", marks=pytest.mark.slow)])
def test_a_grid_of_eight_times_the_memory_is_ingested(tmp_path: Path, kind: str) -> None:
    ending = ".zarr" if kind == "zarr" else ".nc"
    times = 8 * ALLOWED // (len(FIELDS) * SIDE * SIDE * 8) + 2
    small = write_grid(tmp_path / f"small{ending}", kind, 2)
    large = write_grid(tmp_path / f"large{ending}", kind, times - times % 2)
    run: list[str | Path] = [sys.executable, "-c", INGEST, small, large, tmp_path / "rows.zarr"]
    peak = int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert peak < ALLOWED
