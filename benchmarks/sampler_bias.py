"""The bias of every sampler against d, so that a user can choose.

    python benchmarks/sampler_bias.py [--workers 2] [--out benchmarks/results] [--quick]

The Gaussian kernel of lengthscale 1 at distances 1 and 2, along an axis and along the diagonal, from D = 2 (d + 1)
frequencies (two whole rules of degree (3,3)): mean of many draws less the exact value, its standard error, and the
deviation of one draw. `biased`: further from zero than four standard errors (of 260 unbiased cells about none is).
Unscrambled sequences give the same frequencies in every draw: one draw, no standard error.

With --quick nothing is written unless --out is given.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from tables import compute, write

from dorff import frequencies as fr
from dorff import kernels
from dorff.features import Recipe

DIMENSIONS = (2, 4, 8, 16, 32, 64, 128)
SAMPLERS: dict[str, fr.Sampler] = {
    "IID": fr.IID(),
    "Orthogonal": fr.Orthogonal(),
    "Fastfood": fr.Fastfood(),
    "SORF": fr.SORF(),
    "ROM": fr.ROM(),
    "ROM, 1 block": fr.ROM(blocks=1),
    "QMC Sobol": fr.QMC(),
    "QMC Halton": fr.QMC("halton"),
    "QMC Sobol, unscrambled": fr.QMC(scramble=False),
    "QMC Halton, unscrambled": fr.QMC("halton", scramble=False),
    "GaussQuadrature": fr.GaussQuadrature(),
    "GaussQuadrature, 3 points": fr.GaussQuadrature(points=3),
    "SR(1,1)": fr.Quadrature((1, 1)),
    "SR(1,3) Haar": fr.Quadrature((1, 3), mixing="haar"),
    "SR(1,3) butterfly": fr.Quadrature((1, 3)),
    "SR(3,3) Haar": fr.Quadrature(mixing="haar"),
    "SR(3,3) Haar, drop": fr.Quadrature(mixing="haar", centre="drop"),
    "SR(3,3) Haar, redraw": fr.Quadrature(mixing="haar", centre="redraw"),
    "SR(3,3) butterfly": fr.Quadrature(),
    "SR(3,3) butterfly, drop": fr.Quadrature(centre="drop"),
    "SR(3,3) butterfly, redraw": fr.Quadrature(centre="redraw"),
}


@dataclass(frozen=True)
class Row:
    """One line of the table; `deviation` is that of one draw."""

    sampler: str
    d: int
    distance: float
    direction: str
    D: int
    draws: int
    exact: float
    bias: float
    standard_error: float
    deviation: float
    biased: bool


def measure(name: str, d: int, most: int) -> Iterator[Row]:
    """The four places of one sampler and d; `most` draws up to d = 16, then fewer."""
    sampler, kernel = SAMPLERS[name], kernels.Gaussian(1.0)
    ends = {"axis": np.eye(d)[0], "diagonal": np.full(d, 1 / math.sqrt(d))}
    places = [(distance, direction) for distance in (1.0, 2.0) for direction in ends]
    Z = np.array([distance * ends[direction] for distance, direction in places])
    origin = np.zeros((1, d))
    recipe = Recipe.of(kernel, sampler, d=d, n_features=4 * (d + 1), intercept=True)
    fixed = isinstance(sampler, fr.QMC) and not sampler.scramble
    draws = 1 if fixed else max(most * 16 // max(16, d), 2)
    values = np.array([recipe.draw(seed).phi.gram(origin, Z)[0] for seed in range(draws)])
    exact, deviations = kernel.gram(origin, Z)[0], np.zeros(4) if fixed else values.std(axis=0, ddof=1)
    for (distance, direction), value, mean, deviation in zip(
        places, exact, values.mean(axis=0), deviations, strict=True
    ):
        bias, error = float(mean - value), float(deviation / math.sqrt(draws))
        yield Row(name, d, distance, direction, recipe.frequencies, draws, float(value), bias, error,
                  float(deviation), abs(bias) > 4 * error + 1e-12)  # fmt: skip


def work(task: tuple[str, int]) -> list[Row]:
    """All d of one sampler."""
    return [row for d in DIMENSIONS for row in measure(task[0], d, task[1])]


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Each sampler's worst bias by d, and in how many of its cells it shows."""
    yield f"{'largest |bias| at d =':<28}" + "".join(f"{d:>9}" for d in DIMENSIONS) + "   biased cells"
    for name, members in groupby(rows, key=lambda row: row.sampler):
        own = list(members)
        worst = [max((row for row in own if row.d == d), key=lambda row: abs(row.bias)).bias for d in DIMENSIONS]
        yield (
            f"{name:<28}" + "".join(f"{bias:>+9.4f}" for bias in worst) + f"   {sum(r.biased for r in own)}/{len(own)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few draws")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began, draws = time.perf_counter(), 250 if given.quick else 20000
    rows = [row for part in compute(work, [(name, draws) for name in SAMPLERS], given.workers) for row in part]
    rows.sort(key=lambda row: (list(SAMPLERS).index(row.sampler), row.d))
    print("\n".join(summary(rows)))
    print(f"{time.perf_counter() - began:.0f} s")
    out = given.out or (None if given.quick else Path(__file__).parent / "results")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(out / "bias.csv", rows)


if __name__ == "__main__":
    main()
