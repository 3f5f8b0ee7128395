"""What a fit of N rows and m features is predicted to cost: a table, by the planner's formulas.

    python benchmarks/cost_table.py [--d 16] [--q 1] [--rate 5e10] [--disk BYTES] [--workers 64] [--check]
                                    [--out benchmarks/results]

For N rows, d inputs, q targets, m features of an orthogonal sampler, w = m + 1 + q columns, a map of f flops a row
(one dense product: 2 d m / 2), W workers of one core, a core that does `rate` flops a second in `syrk`. (5e10 is what
results/throughput.json measured: 93,159 rows of m = 1024 a second on two cores, 6,000 of m = 4096.)

    flops            N (w^2 + f)                                  one triangle of [F | 1 | Y]^T [F | 1 | Y], and F
    pass             1.08 N (f / 5e10 + (m / 2) / 6e8 + w^2 / rate)      core seconds, reading and files among them
    solve            1.8 m^3 / rate                               core seconds of a factor, in the driver
    leaves           of rows min(b (1 + i / 16), 2^18) max(1, i / 4096), i = 0, 1, ..., b = 4e10 / w^2 within
                     2^14..2^17, in whole shards (16384 rows)
    kept level k     the least with (leaves / 2^k) 4 w (w + 1) <= disk / 4
    disk             (leaves / 2^k + 4 W + bits + k) 4 w (w + 1) + 16 w^2 bytes, bits = floor(log2(leaves)) + 1, at
                     the most at a time, for no more nodes than 2 leaves; the first term is kept
    a worker         8 w^2 + 8 B (w + 8) + 8 map + read + 266 MiB: the square, a block of B rows, what the map holds
                     and works with, three reads; libraries and Dask's own
    solve bytes      the driver's, sums among them, of one scalar kernel: `solvers.solve_bytes`, about 12 w^2 + 24 m^2;
                     beyond LAPACK's 32-bit numbers `cg_bytes`, 12 w^2 and up to 3 * 8 * 1024 m to precondition
    streaming        1.08 * 40 N (f / 5e10 + (m / 2) / 6e8 + 4 w q / (rate / 10)) core seconds in place of pass and
                     solve, were it 40 passes (`dorff plan` tries how many on some rows), with O(m) bytes of sums

All of it is known before a row is read; `dorff plan JOB.yaml` says it for a job. `--check` asks the real planner, over
stores of metadata alone, and fails where leaves, flops or a worker's bytes are others.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from scale import hollow

from dorff import frequencies, kernels
from dorff.data import open_dataset
from dorff.errors import DoesNotFitError
from dorff.features import Recipe
from dorff.passes import block_rows, leaf_bounds
from dorff.plan import make_plan
from dorff.plan.costs import WORKER_BYTES
from dorff.plan.routes import EXPECTED_PASSES
from dorff.plan.seconds import BESIDE, CHOLESKY, Pace
from dorff.solvers import LARGEST_DIRECT, Size, cg_bytes, solve_bytes
from dorff.spec.job import Job

MiB: Final = 2**20
ROWS = [10**e for e in range(6, 13)]
FEATURES = [2**e for e in range(10, 17)]
SHARD = 16384


def recipe_of(d: int, q: int, m: int) -> Recipe:
    kernel = kernels.Decomposable(kernels.Gaussian(4.0)).fix(d, q, np.eye(q))
    return Recipe(kernel, frequencies.Orthogonal(), d, q, m)


def costs(n: int, m: int, options: argparse.Namespace, unit: tuple[int, int]) -> dict[str, Any]:
    """One row of the table; `unit` is the rows of a chunk and the bytes of reading one."""
    w, recipe, rate = m + 1 + options.q, recipe_of(options.d, options.q, m), options.rate
    flops = n * (float(w) ** 2 + recipe.flops)
    leaves, node, block = len(leaf_bounds(n, SHARD, w)), 4 * w * (w + 1), block_rows(w)
    level = 0
    while (leaves >> level) * node > options.disk // 4 and leaves >> level > 1:
        level += 1
    nodes = min((leaves >> level) + 4 * options.workers + leaves.bit_length() + level, 2 * leaves)
    read = 3 * unit[1] * max(1, block // unit[0])
    direct = m <= LARGEST_DIRECT
    number, size = Pace.nominal(m, recipe.flops).number, Size(m, options.q, 1, False)
    return {
        "rows": n, "features": m, "flops": flops,
        "pass_core_seconds": BESIDE * n * (m * number + w**2 / rate),
        "solve_core_seconds": CHOLESKY * m**3 / rate if direct else None,
        "streaming_core_seconds": BESIDE * EXPECTED_PASSES * n * (m * number + 40.0 * w * options.q / rate),
        "leaves": leaves,
        "kept_level": level, "kept_disk_bytes": (leaves >> level) * node, "disk_bytes": nodes * node + 16 * w**2,
        "worker_bytes": WORKER_BYTES + 16 * MiB + 8 * w**2 + 8 * block * (w + 8) + 8 * recipe.numbers + read,
        "solve_bytes": size.held + (solve_bytes(size) if direct else cg_bytes(size)),
        "solved": "direct" if direct else "cg",
    }  # fmt: skip


def check(store: Path, table: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """How many rows of the table the planner was asked for; SystemExit where it says otherwise."""
    asked = 0
    for row in table:
        hollow(store, row["rows"], SHARD, files=False, d=options.d, q=options.q)
        try:
            plan = make_plan(Job.model_validate({
                "data": {"store": str(store)},
                "features": {"count": row["features"], "sampler": {"type": "orthogonal"}},
                "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 4.0}},
                "cluster": {"workers": 1, "memory": "1TiB"}, "solve": {"route": "direct"},
                "state": str(store.with_name("state")), "model": str(store.with_name("model")),
            }))  # fmt: skip
        except DoesNotFitError:
            continue  # this machine's memory or disk is too small for it
        asked += 1
        found = (plan.costs.leaves, plan.costs.flops, plan.costs.worker_bytes)
        if found != (row["leaves"], row["flops"], row["worker_bytes"]):
            raise SystemExit(f"{row}: the planner says leaves, flops, worker bytes {found}")
    return asked


def quantity(value: float, units: tuple[tuple[float, str], ...]) -> str:
    size, name = next(((size, name) for size, name in units if value >= size), units[-1])
    return f"{value / size:,.3g} {name}"


BYTES: Final = tuple((1024.0**e, f"{'KMGTPE'[e - 1]}iB") for e in range(6, 0, -1))
SECONDS: Final = ((365.25 * 86400, "years"), (86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def page(table: list[dict[str, Any]], options: argparse.Namespace) -> Iterator[str]:
    """The table as Markdown, the formulas before it."""
    assert __doc__ is not None
    yield f"# Predicted costs\n\n```\n{__doc__.strip()}\n```\n"
    yield (
        f"d = {options.d}, q = {options.q}, {options.rate / 1e9:,.1f} Gflop/s a core, W = {options.workers} workers, "
        f"{quantity(options.disk, BYTES)} of disk free.\n"
    )
    names = ["N", "m", "flops", "pass, 1 core", "pass, W cores", "streaming, 1 core", "leaves", "k", "disk kept"]
    names += ["disk", "a worker", "solve"]
    yield f"| {' | '.join(names)} |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for row in table:
        yield (
            f"| 1e{len(str(row['rows'])) - 1} | {row['features'] // 1024}k | {row['flops']:.2g} | "
            f"{quantity(row['pass_core_seconds'], SECONDS)} | "
            f"{quantity(row['pass_core_seconds'] / min(options.workers, row['leaves']), SECONDS)} | "
            f"{quantity(row['streaming_core_seconds'], SECONDS)} | {row['leaves']:,} | {row['kept_level']} | "
            f"{quantity(row['kept_disk_bytes'], BYTES)} | {quantity(row['disk_bytes'], BYTES)} | "
            f"{quantity(row['worker_bytes'], BYTES)} | {quantity(row['solve_bytes'], BYTES)} {row['solved']} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=16)
    parser.add_argument("--q", type=int, default=1)
    parser.add_argument("--rate", type=float, default=5e10, help="flops a second of one core's syrk (5e10)")
    parser.add_argument("--disk", type=int, default=2**42, help="free bytes (4 TiB)")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        store = Path(place) / "rows.zarr"
        hollow(store, ROWS[0], SHARD, files=False, d=options.d, q=options.q)
        dataset = open_dataset(store)
        unit = dataset.unit_rows, dataset.unit_bytes()
        table = [costs(n, m, options, unit) for n in ROWS for m in FEATURES]
        asked = check(store, table, options) if options.check else None
    options.out.mkdir(parents=True, exist_ok=True)
    given = {"d": options.d, "q": options.q, "rate": options.rate, "disk": options.disk, "workers": options.workers}
    body = {**given, "rows_of_this_table_asked_of_the_planner": asked, "formulas": __doc__, "table": table}
    (options.out / "cost_table.json").write_text(json.dumps(body, indent=1) + "\n")
    (options.out / "cost_table.md").write_text("\n".join(page(table, options)) + "\n")
    with (options.out / "cost_table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys())
        writer.writeheader()
        writer.writerows(table)
    print(f"{len(table)} rows, {asked} of them asked of the planner too")


if __name__ == "__main__":
    main()
