"""Speed and peak memory of `ingest` on CSV, Parquet and NetCDF grids, of this checkout and of another.

    python benchmarks/ingest.py [--against DIR] [--turns 5] [--rows 2000000] [--grid-mb 400]
        [--out benchmarks/results]

Each measurement is a process of its own. In every turn each file is read bare (by pyarrow or h5py, in blocks that are
dropped) and ingested by each checkout, in an order that alternates, so that a machine that slows down slows all of
them. Ratios are of the same turn; their median and the worst are printed. Seconds are of the call alone: imports and a
first ingest of a tiny file come before it, in the same process. Files are in the page cache.

The memory of an ingest is the peak resident size (VmHWM) of its process, less that of a process that ingests only the
tiny file. A file's size over that memory is `file over memory`. The grids are meant to be at least 8 times as large as
the memory; a line says so where they are not. VmHWM is used because `ru_maxrss` also counts the parent before `exec`.
It includes pages of files that are mapped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parents[1]
MB: Final = 10**6
#: Latitudes and longitudes of a grid, the shape of its chunks, and its variables of float32.
SHAPE: Final = (100, 200)
CHUNKS: Final = (8, 50, 100)
VARIABLES: Final = tuple(f"v{number}" for number in range(8))
#: The smallest size of a grid, in multiples of the memory that its ingest may take.
WANTED: Final = 8

#: Runs in a child: a tree, inputs, targets, a tiny file, a file or "", a folder for stores. The tree is put first here
#: since a .pth file of an editable installation comes before PYTHONPATH.
INGEST: Final = """
import json, sys, time
from pathlib import Path

tree, inputs, targets, tiny, source, folder = sys.argv[1:]
sys.path.insert(0, tree)
import dorff
from dorff.data import ingest

if Path(dorff.__file__).resolve().parents[1] != Path(tree).resolve():
    raise SystemExit(f"dorff comes from {dorff.__file__}, not from {tree}")
columns = {"inputs": inputs.split(","), "targets": targets.split(",")}
rows = ingest([tiny], Path(folder) / "tiny.zarr", **columns)
began = time.perf_counter()
if source:
    rows = ingest([source], Path(folder) / "store.zarr", **columns)
seconds = time.perf_counter() - began
status = Path("/proc/self/status").read_text()
peak = 1024 * int(status.split("VmHWM:")[1].split()[0])
print(json.dumps({"seconds": seconds, "rows": rows, "peak_bytes": peak}))
"""

#: Runs in a child: the kind of a file and the file.
BARE: Final = """
import json, sys, time
import h5py, pyarrow.csv, pyarrow.parquet

kind, source = sys.argv[1:]
began = time.perf_counter()
if kind == "csv":
    rows = sum(len(batch) for batch in pyarrow.csv.open_csv(source))
elif kind == "parquet":
    rows = sum(len(batch) for batch in pyarrow.parquet.ParquetFile(source).iter_batches())
else:
    rows = 0
    with h5py.File(source) as file:
        variables = [file[name] for name in file if file[name].ndim == 3]
        for start in range(0, len(variables[0]), 8):
            blocks = [variable[start : start + 8] for variable in variables]
            rows += blocks[0].size
print(json.dumps({"seconds": time.perf_counter() - began, "rows": rows}))
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file to ingest and a tiny one of its kind."""

    name: str
    kind: str
    source: Path
    tiny: Path
    inputs: Sequence[str]
    targets: Sequence[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout of dorff, the old one")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the CSV file; the Parquet file has twice")
    parser.add_argument("--grid-mb", type=int, default=400, help="megabytes of each NetCDF grid")
    parser.add_argument("--out", type=Path, help="folder for ingest.json")
    arguments = parser.parse_args()

    trees = {"new": HERE}
    if arguments.against:
        trees["old"] = arguments.against.resolve()
    with tempfile.TemporaryDirectory(prefix="dorff-ingest-") as folder:
        home = Path(folder)
        cases = write_cases(home, arguments.rows, arguments.grid_mb * MB)
        results = [measure_case(case, trees, arguments.turns, home) for case in cases]

    found = {"turns": arguments.turns, "load_average": os.getloadavg(), "cores": os.cpu_count(), "cases": results}
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "ingest.json").write_text(json.dumps(found, indent=1) + "\n")


def write_cases(home: Path, rows: int, grid_bytes: int) -> list[Case]:
    """Write all files in a process of its own, so that this one stays small."""
    command = [sys.executable, "-c", WRITE, str(home), str(rows), str(grid_bytes)]
    command += [json.dumps([SHAPE, CHUNKS, VARIABLES])]
    subprocess.run(command, check=True)
    table = {"inputs": ("a", "b", "c", "d"), "targets": ("u", "v")}
    grid = {"inputs": ("time", "lat", "lon"), "targets": VARIABLES}
    kinds = {
        "CSV": ("csv", "table.csv", table),
        "Parquet": ("parquet", "table.parquet", table),
        "NetCDF, chunked": ("netcdf", "chunked.nc", grid),
        "NetCDF, unchunked": ("netcdf", "unchunked.nc", grid),
    }
    return [
        Case(name=name, kind=kind, source=home / file, tiny=home / f"tiny-{file}", **columns)
        for name, (kind, file, columns) in kinds.items()
    ]


#: Runs in a child: a folder, rows, bytes of a grid, and the grid's form.
WRITE: Final = """
import json, sys
from pathlib import Path
import h5py, numpy as np, pyarrow as pa, pyarrow.csv, pyarrow.parquet

home, rows, grid_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
shape, chunks, variables = json.loads(sys.argv[4])
BLOCK = 100_000


def write_tables(prefix, rows):
    rng = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64()) for name in "abcduv"])
    with (
        pyarrow.csv.CSVWriter(home / f"{prefix}table.csv", schema) as text,
        pyarrow.parquet.ParquetWriter(home / f"{prefix}table.parquet", schema) as parquet,
    ):
        for start in range(0, 2 * rows, BLOCK):
            count = min(BLOCK, 2 * rows - start)
            columns = {name: rng.standard_normal(count).round(6) for name in "abcduv"}
            table = pa.table(columns, schema=schema)
            parquet.write_table(table)
            text.write_table(table[: max(0, rows - start)])


def write_grid(path, times, chunks):
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, size in zip(("time", "lat", "lon"), (times, *shape)):
            file[name] = np.arange(size, dtype="f4")
            file[name].make_scale(name)
        for name in variables:
            data = file.create_dataset(name, (times, *shape), "f4", chunks=chunks)
            for axis, dimension in enumerate(("time", "lat", "lon")):
                data.dims[axis].attach_scale(file[dimension])
            for start in range(0, times, 8):
                stop = min(start + 8, times)
                data[start:stop] = rng.standard_normal((stop - start, *shape), dtype="f4")


write_tables("", rows)
write_tables("tiny-", 100)
times = max(8, grid_bytes // (4 * len(variables) * shape[0] * shape[1]))
for prefix, count in (("", times), ("tiny-", 1)):
    write_grid(home / f"{prefix}chunked.nc", count, (min(count, chunks[0]), *chunks[1:]))
    write_grid(home / f"{prefix}unchunked.nc", count, None)
"""


def run_child(code: str, *words: str) -> dict[str, Any]:
    """Run Python code in a process and return what it prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_ingest(case: Case, tree: Path, home: Path, *, tiny_only: bool = False) -> dict[str, Any]:
    """Ingest a case's file, or the tiny one alone, with the dorff of a tree."""
    folder = home / "stores"
    folder.mkdir()
    columns = [",".join(case.inputs), ",".join(case.targets)]
    source = "" if tiny_only else str(case.source)
    found = run_child(INGEST, str(tree), *columns, str(case.tiny), source, str(folder))
    shutil.rmtree(folder)
    return found


def measure_case(case: Case, trees: dict[str, Path], turns: int, home: Path) -> dict[str, Any]:
    """Measure bare reading and each tree in turn, print and return the figures."""
    run_child(BARE, case.kind, str(case.source))
    start_up = {name: run_ingest(case, tree, home, tiny_only=True)["peak_bytes"] for name, tree in trees.items()}
    bare: list[dict[str, Any]] = []
    ingests: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for turn in range(turns):
        bare.append(run_child(BARE, case.kind, str(case.source)))
        for name in sorted(trees, reverse=bool(turn % 2)):
            ingests[name].append(run_ingest(case, trees[name], home))

    rows = {found["rows"] for found in (*bare, *(found for several in ingests.values() for found in several))}
    if len(rows) != 1:
        raise SystemExit(f"{case.name}: numbers of rows differ: {sorted(rows)}")
    size = case.source.stat().st_size
    result: dict[str, Any] = {"case": case.name, "rows": rows.pop(), "file_bytes": size}
    result["bare_seconds"] = [found["seconds"] for found in bare]
    print(f"{case.name}: {result['rows']:,} rows, {size / MB:.0f} MB", flush=True)
    for name, several in ingests.items():
        result[name] = summarize_ingests(several, start_up[name], result["bare_seconds"], size)
        print_ingests(name, result[name])
        if case.kind == "netcdf" and result[name]["file_over_memory"] < WANTED:
            print(f"  {name}: the file is not {WANTED} times the memory: give a larger --grid-mb")
    if "old" in trees:
        result["new_over_old"] = compare_trees(result["new"], result["old"])
        seconds, memory = (result["new_over_old"][key] for key in ("seconds", "memory"))
        print(f"  new / old, seconds: median {seconds['median']:.2f}, worst {seconds['worst']:.2f}")
        print(f"  new / old, memory:  median {memory['median']:.2f}, worst {memory['worst']:.2f}", flush=True)
    return result


def summarize_ingests(
    several: Sequence[dict[str, Any]], start_up_bytes: int, bare_seconds: Sequence[float], file_bytes: int
) -> dict[str, Any]:
    """Return seconds, those over bare reading's, and memory on top of the start-up's."""
    seconds = [found["seconds"] for found in several]
    memory = [max(1, found["peak_bytes"] - start_up_bytes) for found in several]
    over_bare = [own / bare for own, bare in zip(seconds, bare_seconds, strict=True)]
    return {
        "seconds": seconds,
        "over_bare": summarize_ratios(over_bare),
        "start_up_bytes": start_up_bytes,
        "memory_bytes": memory,
        "file_over_memory": file_bytes / max(memory),
    }


def print_ingests(name: str, found: dict[str, Any]) -> None:
    seconds, memory, over_bare = found["seconds"], found["memory_bytes"], found["over_bare"]
    print(
        f"  {name}: {statistics.median(seconds):.2f} s (worst {max(seconds):.2f}), "
        f"{over_bare['median']:.1f} times bare reading (worst {over_bare['worst']:.1f}); "
        f"memory {statistics.median(memory) / MB:.0f} MB (worst {max(memory) / MB:.0f}), "
        f"the file is {found['file_over_memory']:.1f} times the worst"
    )


def compare_trees(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return ratios new / old of the same turn."""
    return {
        label: summarize_ratios([a / b for a, b in zip(new[key], old[key], strict=True)])
        for label, key in (("seconds", "seconds"), ("memory", "memory_bytes"))
    }


def summarize_ratios(ratios: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(ratios), "worst": max(ratios), "ratios": list(ratios)}


if __name__ == "__main__":
    main()
