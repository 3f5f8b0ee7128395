"""Rows a second of fits from Zarr over those of bare `syrk`, for the two shapes README quotes.

python benchmarks/throughput.py [--repeats 3] [--out benchmarks/results/throughput.json]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from dorff.bench import bench

SHAPES = ((16, 1024), (64, 4096))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = []
    for d, m in SHAPES:
        print(f"d = {d}, m = {m}", flush=True)
        share = bench(d=d, m=m, workers=arguments.workers, repeats=arguments.repeats, echo=print)
        found.append(asdict(share))
        print(json.dumps(found[-1]), flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
