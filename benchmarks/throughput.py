"""Rows a second of fits from Zarr over those of bare `syrk`, for the shapes README quotes, the worst repeat beside the
median, and where the rest of the workers' time goes (`dorff.cli.bench.Share`).

python benchmarks/throughput.py [--repeats 3] [--only 784,4096,rom] [--out benchmarks/results/throughput.json]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from dorff.cli.bench import bench

SHAPES = ((16, 1024, "orthogonal"), (64, 4096, "orthogonal"), (784, 4096, "rom"), (784, 4096, "quadrature"),
          (3072, 8192, "rom"), (3072, 8192, "quadrature"))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help="d,m or d,m,sampler to measure; the others' figures in --out are kept")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = []
    known = json.loads(arguments.out.read_text()) if arguments.only and arguments.out else []
    for d, m, sampler in SHAPES:
        if arguments.only and not f"{d},{m},{sampler}".startswith(arguments.only):
            found += [row for row in known if (row["d"], row["m"], row["sampler"]) == (d, m, sampler)]
            continue
        print(f"d = {d}, m = {m}, {sampler}", flush=True)
        share = bench(d=d, m=m, sampler=sampler, workers=arguments.workers, repeats=arguments.repeats, echo=print)
        found.append(asdict(share))
        print(json.dumps(found[-1]), flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
