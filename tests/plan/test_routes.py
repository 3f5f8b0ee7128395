"""Which way a system is solved: by cost where all are possible, by what is possible where not, with the numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dorff.errors import DoesNotFitError, InputError
from dorff.plan.costs import iterations
from dorff.plan.lattice import LatticeCosts
from dorff.plan.routes import Means, Route, Shape, choose_route, product_rows, sample_rows
from dorff.plan.seconds import CHOLESKY, EIGH, INVERSE, NOISE, NOMINAL, Pace, solve_work
from dorff.solvers import Size
from dorff.solvers.stochastic import HEAVY
from dorff.spec.job import Job

GiB = 2.0**30


def shape(*, n: int = 100_000, m: int = 2048, r: int = 1) -> Shape:
    """64 inputs; r > 1: a field's r outputs."""
    square = 8 * (m + 1 + r) ** 2
    return Shape(
        n=n, size=Size(m, r, r, coupled=r > 1), leaves=8, map_numbers=m * 32, map_flops=64.0 * m,
        leaf_bytes=square + 2**24, solve_bytes=2 * square + 32 * (m * r) ** 2, disk_bytes=4 * square, read_bytes=2**22,
        solve_work=CHOLESKY * float(m * r) ** 3,
    )  # fmt: skip


SMALL, LARGE, FIELD = shape(), shape(n=200_000, m=32_768), shape(m=8192, r=3)
MEANS = Means(workers=2, worker_memory=2 * GiB, pace=Pace(5e10, 5e9, 1e-9))


def job(*, features: dict[str, Any] | None = None, targets: Any = "y", **solve: Any) -> Job:
    return Job.model_validate(
        {
            "data": {"store": "a.zarr", "targets": targets},
            "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}},
            "features": {"sampler": {"type": "orthogonal"}, **(features or {})},
            "solve": {"ridge": 1e-6, "select": "gcv"} | solve,
            "state": "state",
            "model": "model",
        }
    )


def chosen(shape: Shape, means: Means = MEANS, **solve: Any) -> Route:
    return choose_route(job(**solve), shape, means)


def test_small_systems_are_solved_directly() -> None:
    route = chosen(SMALL)
    assert route.name == "direct" and "MiB to solve" in route.reason
    assert [way.name for way in route.ways] == ["direct", "cg", "streaming"]
    assert all(way.seconds > 0 and way.worker_bytes > 0 and not way.against for way in route.ways)


def test_what_no_worker_can_hold_is_streamed() -> None:
    """32,768 features of 64 inputs within 2 GiB a worker: the Gram matrix alone is 8 GiB."""
    route = chosen(LARGE)
    assert route.name == "streaming" and "direct cannot be taken: a worker needs 8" in route.reason
    assert route.way.worker_bytes < 256 * 2**20 and route.way.driver_bytes < 2 * GiB and route.way.passes == 40


def test_the_system_of_a_field_is_not_formed_where_that_takes_much_longer() -> None:
    large = shape(m=8192, r=4)
    route = chosen(large)
    assert route.name == "cg" and "direct would take" in route.reason and route.way.driver_bytes < 2 * GiB
    assert chosen(FIELD).name == "direct"


@pytest.mark.parametrize("name", ["small", "large", "field", "wide field"])
def test_no_clock_chooses_the_way(name: str) -> None:
    """What is said of the seconds is of this machine; which way is taken is not."""
    of = {"small": SMALL, "large": LARGE, "field": FIELD, "wide field": shape(m=8192, r=4)}[name]
    means = replace(MEANS, worker_memory=100 * GiB)
    rates, numbers, thins = (1e8, 1e10, NOMINAL, 1e12, 1e15), (1, 50, 5000), (1e-4, 0.1, 10)
    for thin in thins:  # nor what a machine is better at
        paces = [Pace(rate, thin * rate, number / rate) for rate in rates for number in numbers]
        routes = [chosen(of, replace(means, pace=pace)) for pace in paces]
        assert {route.name for route in routes} == {chosen(of, means).name}
        assert len({route.ways[0].seconds for route in routes}) == len(routes)


def test_32_bit_lapack_is_no_way_for_wide_systems() -> None:
    many = shape(m=4096, r=12)
    route = chosen(many, replace(MEANS, worker_memory=64 * GiB))
    assert route.name == "cg" and "49152 unknowns, and LAPACK's 32-bit numbers reach 46340" in route.reason
    with pytest.raises(DoesNotFitError, match=r"49152 unknowns.*solve.route: cg or streaming"):
        chosen(many, replace(MEANS, worker_memory=64 * GiB), route="direct")


def test_a_job_may_name_its_way() -> None:
    for name in ("direct", "cg", "streaming"):
        route = chosen(SMALL, route=name)
        assert route.name == name and route.reason == f"{name}, as the job says"
    with pytest.raises(DoesNotFitError, match=r"cg cannot be taken: a worker needs 8,\d+ MiB and has 2,048 MiB"):
        chosen(LARGE, route="cg")


@pytest.mark.parametrize(
    ("solve", "what"),
    [
        ({"ridge": [1e-6, 1e-4]}, "2 ridges"),
        ({"select": "kfold"}, "select: kfold"),
        ({"ridge_per_output": True, "ridge": [1e-6, 1e-4]}, "ridge_per_output"),
        ({"posterior": True}, "posterior: true"),
        ({"conformal": True}, "conformal: true"),
        ({"features": {"count": [2048, 1024]}}, "2 counts"),
        ({"features": {"precision": "mixed"}}, "precision: mixed"),
        ({"targets": {"classes": "c"}}, "calibrate: true"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_streaming_refuses_what_needs_more_than_one_solution(solve: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=rf"streaming cannot be taken: .*{what}.*direct"):
        chosen(SMALL, route="streaming", **solve)
    assert chosen(SMALL, **solve).name == "direct"


def test_folds_choose_for_conjugate_gradients_too() -> None:
    assert chosen(SMALL, route="cg", select="kfold", ridge=[1e-6, 1e-4]).name == "cg"
    with pytest.raises(InputError, match=r"cg cannot be taken: .*2 ridges"):
        chosen(SMALL, route="cg", ridge=[1e-6, 1e-4])
    for options, what in [({"learned": True}, "learned"), ({"candidates": 2}, "2 kernels")]:
        with pytest.raises(InputError, match=what):
            choose_route(job(route="cg"), SMALL, MEANS, **options)


def test_where_nothing_can_be_done_direct_says_why() -> None:
    route = chosen(LARGE, ridge=[1e-6, 1e-4])
    assert route.name == "direct" and "nothing else" in route.reason


def test_blocks_and_samples_keep_within_memory() -> None:
    assert 8 * 32_770 * product_rows(32_770) <= 2**24 and product_rows(66) == 2048 and product_rows(10**7) == 8
    assert sample_rows(32_768, 1, 200_000) == 6144 and sample_rows(4096, 1, 10**6) == 819
    assert sample_rows(4096, 3, 10**6) == 273 and sample_rows(4096, 1, 100) == 100


def test_a_grid_of_a_field_is_solved_along_its_path() -> None:
    """Five kernels, five folds: one factor serves many of these systems, and a sketch only one."""
    grid = [10.0**-power for power in np.linspace(2, 9, 20)]
    described = job(select="kfold", ridge=grid, features={"count": [2048, 1024, 512, 256]})
    size = Size(2048, 2, 2, coupled=True, folds=5)
    work = solve_work(described, [size] * 5, 1, keeps=False)
    field = replace(shape(n=1_000_000, r=2), size=size, solve_work=work, solves=iterations(described, 5, 5)[0])
    assert choose_route(described, field, MEANS).name == "direct"


def test_a_pass_is_what_rows_take_and_not_the_solve() -> None:
    """Twice the rows in as many leaves are twice the pass; more to solve is none of it."""
    few, twice, more = (
        choose_route(job(route="direct"), replace(shape(n=10**6), **other), MEANS).way
        for other in ({}, {"n": 2 * 10**6}, {"solve_work": 1e15})
    )
    assert twice.pass_seconds == pytest.approx(2 * few.pass_seconds) and more.pass_seconds == few.pass_seconds
    assert more.seconds > few.seconds and few.seconds >= few.pass_seconds > 0


def test_an_iteration_solves_every_trial_of_every_fold() -> None:
    described = job(select="kfold", ridge=[1e-6, 1e-4], features={"count": [2048, 1024]})
    assert iterations(described, 3, 5) == (1.0 + 5 * 2 * 3 * (1.0 + 0.25), 0.0)
    assert iterations(job(ridge=[1e-6]), 1, 1) == (1.0, 0.0)


@pytest.mark.parametrize("m", [1000, 6000])
def test_what_is_estimated_of_every_trial_is_planned(m: int) -> None:
    """GCV by one estimate of each, evidence by five or so, on the way to the noise: with all of the block factored."""
    light = LatticeCosts(packed=8 * m, each=m, once=m, seconds=1e-6, points=4 * m)

    def more(**solve: Any) -> float:
        solves, estimates = iterations(job(**solve), 1, 1)
        of = replace(shape(m=m), light=light, solves=solves, estimates=estimates)
        ways = [choose_route(job(route="cg", **solve), one, MEANS).way for one in (of, replace(of, estimates=0.0))]
        return ways[0].seconds - ways[1].seconds

    two, four = [1e-5, 1e-4], [1e-6, 1e-5, 1e-4, 1e-3]
    gcv, evidence = more(select="gcv", ridge=two), more(select="evidence", ridge=two)
    assert gcv == pytest.approx(evidence / 5) and more(select="gcv", ridge=four) == pytest.approx(2 * gcv)
    block = 2 * (CHOLESKY + INVERSE) * min(m, HEAVY) ** 3 / MEANS.pace.square
    assert block < gcv < (2 if m == 1000 else 20) * block + 1.0
    assert more(select="kfold", ridge=two) == more(select="gcv", ridge=1e-5) == 0.0
    sure, banded = more(ridge=1e-5, posterior=True), more(ridge=1e-5, conformal=True)  # the noise, and of a fold's rest
    assert sure == pytest.approx(evidence / 2) and banded == pytest.approx(evidence)


def test_samples_are_for_systems_that_cannot_be_factored() -> None:
    """Exact deviations are taken where they can be, however long they take; samples are said to be such."""
    m = 8192
    light = LatticeCosts(packed=8 * m, each=m, once=m, seconds=1e-6, points=4 * m)
    slow = replace(shape(m=m), light=light, solve_work=1e18)
    for solve in ({"posterior": True}, {"conformal": True}):
        assert chosen(slow).name == "cg" and chosen(slow, **solve).name == "direct"
        found = chosen(slow, route="cg", **solve)
        assert found.reason.endswith(
            "cg, as the job says; deviations are of 64 samples, each within about 9% of the exact one"
        )
        wide = replace(slow, size=replace(slow.size, m=50_000))
        assert chosen(wide, **solve).reason.endswith("each within about 9% of the exact one")
        with pytest.raises(InputError, match=f"cg cannot be taken.*{next(iter(solve))}: true"):
            chosen(replace(slow, light=None), route="cg", **solve)
    assert "samples" not in chosen(slow, route="cg").reason
    sure = {"posterior": True, "targets": {"classes": "c"}}
    assert chosen(slow, **sure).name == "cg" and "samples" not in chosen(slow, route="cg", **sure).reason
    none, one, two = (chosen(replace(slow, posteriors=count), route="cg", posterior=True).way for count in range(3))
    assert one.driver_bytes - none.driver_bytes > 3 * 8 * m * 64 and one.seconds > 5 * none.seconds
    pair = replace(slow, size=replace(slow.size, m=m // 8, r=2))  # which noise may tie to one system, of as many more
    none_of, one_of = (chosen(replace(pair, posteriors=count), route="cg", posterior=True).way for count in (0, 1))
    assert one_of.driver_bytes - none_of.driver_bytes > 5 * 8 * ((2 * m // 8) ** 2 - (m // 8) ** 2)
    assert two.driver_bytes - one.driver_bytes > 8 * 4 * m and two.seconds + none.seconds == pytest.approx(
        2 * one.seconds
    )


def test_folds_with_factors_of_their_own_take_these() -> None:
    """And where patterns, few unknowns or a ridge of 0 leave no other way."""
    size, ridges = Size(4096, 2, 2, False, 1, 5), [10.0**-power for power in np.linspace(2, 9, 20)]
    described = job(select="kfold", ridge=ridges)
    path, own = (solve_work(described, [size], 1, keeps=False, path=path) for path in (True, False))
    assert own - CHOLESKY * 4096.0**3 > 5 * EIGH * 4096.0**3 > path
    missing = replace(size, patterns=3)
    assert solve_work(described, [missing], 1, keeps=False) == solve_work(
        described, [missing], 1, keeps=False, path=False
    )
    zero = job(select="kfold", ridge=[0.0, *ridges])
    assert solve_work(zero, [size], 1, keeps=False) == solve_work(zero, [size], 1, keeps=False, path=False)


@pytest.mark.parametrize("coupled", [True, False])
def test_noise_of_the_last_fit_is_planned(coupled: bool) -> None:
    size = Size(1024, 2, 2, coupled, 1, 5)
    described = job(select="kfold", ridge=[1e-6, 1e-4])
    classes = job(select="kfold", ridge=[1e-6, 1e-4], targets={"classes": "c"})
    difference = solve_work(described, [size], 1, keeps=False) - solve_work(classes, [size], 1, keeps=False)
    without = CHOLESKY * size.blocks * float(size.k) ** 3  # without a fold, of which a sample is kept
    assert difference == pytest.approx(without + (NOISE * 2048.0**3 if coupled else 0.0))
    kept = solve_work(described, [size], 1, keeps=True) - solve_work(classes, [size], 1, keeps=True)
    more = INVERSE * size.blocks * float(size.k) ** 3
    assert kept == pytest.approx(without + more + (2 * NOISE * 2048.0**3 if coupled else 0.0))
