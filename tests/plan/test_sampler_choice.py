"""`features.sampler: auto`: a lattice where its features are closer to the kernel than random ones, and what else keeps
it from one."""

import re
import tracemalloc
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dorff import frequencies, kernels
from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.features import Recipe
from dorff.fit import fit
from dorff.kernels import FloatArray
from dorff.model import operator_weights
from dorff.moments import Kind
from dorff.passes import blocks as leaf_sizes
from dorff.plan import Plan, choosing, lattice, make_plan
from dorff.plan.lattice import box_of
from dorff.spec.job import Job
from dorff.store import load_model

GAUSS = {"type": "gaussian", "lengthscale": 0.3}
KERNELS: dict[str, Any] = {
    "gaussian": kernels.Gaussian,
    "matern32": lambda s: kernels.Matern(s, nu=1.5),
    "matern52": lambda s: kernels.Matern(s, nu=2.5),
}
#: Inputs, kernel, length-scale over the box's side, features: where either way of drawing is the better one.
LIMITS = [
    (1, "matern32", 0.05, 512), (2, "gaussian", 0.2, 256), (2, "matern52", 0.1, 1024), (2, "gaussian", 0.01, 1024),
    (3, "gaussian", 0.3, 1024), (3, "matern52", 0.2, 4096), (3, "matern32", 0.5, 2048), (3, "matern32", 0.1, 1024),
    (3, "gaussian", 0.04, 1024), (3, "matern52", 0.04, 4096), (4, "gaussian", 0.5, 1024), (4, "matern52", 0.1, 1024),
    (5, "gaussian", 1.0, 1024), (5, "matern52", 1.0, 1024), (5, "matern32", 0.3, 1024),
]  # fmt: skip


def write(path: Path, X: FloatArray, Y: FloatArray | None = None) -> Path:
    noise = np.random.default_rng(len(X)).standard_normal((len(X), 1))
    Y = np.sin(X[:, :1]) + 0.1 * noise if Y is None else Y
    group = zarr.open_group(str(path), mode="w")
    for name, values in (("x", X), ("y", Y)):
        group.create_array(name, data=values, chunks=(64, values.shape[1]))
    return path


def box(d: int, n: int = 200) -> FloatArray:
    X = np.random.default_rng([8, d, n]).uniform(0.0, 1.0, (n, d))
    X[:2] = [[0.0] * d, [1.0] * d]
    return X


def job(folder: Path, **parts: Any) -> Job:
    body = {"data": {"store": "data.zarr"}, "kernel": {"type": "decomposable", "scalar": GAUSS},
            "solve": {"ridge": 1e-4}, "cluster": {"type": "serial"}, "state": "state", "model": "model"}  # fmt: skip
    for key, value in parts.items():
        body[key] = {**body[key], **value} if isinstance(value, dict) and key in ("data", "solve") else value
    return Job.model_validate(body, context={"folder": folder})


def sampler(plan: Plan) -> tuple[str, str]:
    """What was chosen, and why."""
    (one,) = [one for one in plan.choices if one.key == "features.sampler"]
    assert plan.own.sampler == one.value
    return one.value["type"], one.why


@cache
def errors(d: int, scalar: kernels.ScalarKernel, m: int) -> tuple[float, float]:
    """Root mean squared errors of k by the best of four lattices of m features; by orthogonal ones, of three draws."""
    rng = np.random.default_rng(17)
    X, Z = rng.uniform(0.0, 1.0, (2, 400, d))
    Z[200:] = np.clip(X[200:] + 0.5 * scalar.config()["lengthscale"] * rng.standard_normal((200, d)), 0.0, 1.0)
    exact = np.array([scalar.gram(x[None], z[None])[0, 0] for x, z in zip(X, Z, strict=True)])

    def rmse(one: frequencies.Sampler, seed: int = 0) -> float:
        recipe = Recipe.of(scalar, one, d=d, n_features=m, intercept=False)
        drawn = recipe.draw(seed)
        sizes = operator_weights(recipe.kernel, recipe.m, drawn.density).sizes
        made = (drawn.phi.transform(X) * drawn.phi.transform(Z)) @ sizes
        return float(np.sqrt(np.mean((made - exact) ** 2)))

    of_lattice = [frequencies.Lattice(10.0**-power).over(np.ones(d), constant=True) for power in range(1, 5)]
    random = [rmse(frequencies.Orthogonal(), seed) for seed in range(3)]
    return min(map(rmse, of_lattice)), float(np.sqrt(np.mean(np.square(random))))


@pytest.mark.statistical
@pytest.mark.parametrize(("d", "name", "length", "m"), LIMITS)
def test_the_features_that_are_closer_to_the_kernel_are_chosen(
    d: int, name: str, length: float, m: int, tmp_path: Path
) -> None:
    scalar = KERNELS[name](length)
    write(tmp_path / "data.zarr", box(d))
    # A job of several kernels has no landmarks.
    kernel = [{"type": "decomposable", "scalar": scalar.config()}] * 2
    described = job(tmp_path, kernel=kernel, features={"count": m}, solve={"select": "gcv"})
    kind, why = sampler(make_plan(described))
    of_lattice, random = errors(d, scalar, m)
    assert not 0.8 < of_lattice / random < 1.25, "no limit: neither is much better"
    assert kind == ("lattice" if of_lattice < random else "orthogonal"), (why, of_lattice, random)
    far = [float(number) for number in re.findall(r"(\S+) from the kernel, \d+ of orthogonal (\S+) \(", why)[0]]
    assert 0.4 < far[0] / max(of_lattice, 5e-3) < 2.5 or max(far[0], of_lattice) < 5e-3, (why, of_lattice)
    assert 0.4 < far[1] / random < 2.5 and ("neither are close" in why) == (min(far) > 0.1), (why, random)


def test_both_are_chosen_at_the_limits() -> None:
    """The cases above are on either side."""
    sides = [np.subtract(*errors(d, KERNELS[name](length), m)) > 0 for d, name, length, m in LIMITS]
    assert 4 <= sum(sides) <= len(sides) - 4


@pytest.mark.parametrize(
    ("d", "name", "length", "m", "auto", "wanted"),
    [
        (2, "matern52", 0.1, 2048, False, None), (2, "matern52", 0.1, 1024, False, "about 1,932; raise features.count"),
        (2, "matern52", 0.1, 1024, True, None), (3, "matern52", 0.2, 4096, True, None),
        (3, "gaussian", 0.1, 1024, False, "about 3,694; raise features.count"),
        (3, "matern32", 0.5, 2048, False, "more than 8,192; raise features.count"),
        (3, "matern32", 0.2, 8192, False, "was wanted; raise features.count"),
        (3, "matern32", 0.5, 2048, True, "raise features.count, or set features.sampler: {type: orthogonal}"),
    ],
)  # fmt: skip
def test_a_plan_says_what_a_lattice_takes(
    d: int, name: str, length: float, m: int, auto: bool, wanted: str | None, tmp_path: Path
) -> None:
    """Of several kernels for the one that needs most; where rows must be read to tell, nothing."""
    write(tmp_path / "data.zarr", box(d))
    each = [
        {"type": "decomposable", "scalar": KERNELS[name](of).config()} for of in (2.0 * length, length, 4.0 * length)
    ]
    features: dict[str, Any] = {"count": m} | ({} if auto else {"sampler": {"type": "lattice"}})
    alone = [each[1]] * 2 if auto else each[1]  # of one kernel alone landmarks may be the choice
    several, one = (make_plan(job(tmp_path, kernel=kernel, features=features)) for kernel in (each, alone))
    said = [text.removeprefix("kernel[0]: ") for text in one.foreseen()]
    if wanted is None:
        assert said == []
    else:
        assert len(said) == 1 and said[0].startswith(f"the lattice's {m:,} features") and said[0].endswith(wanted)
    if not auto:  # else several may have another sampler
        assert len(several.foreseen()) == len(said)
        assert all(re.match(r"kernel\[[012]\]: the lattice's", text) for text in several.foreseen())
        for planned, kernel in ((several, each), (one, each[1])):  # who does so has enough
            for number in re.findall("takes about ([0-9,]+);", " ".join(planned.foreseen())):
                enough = int(number.replace(",", ""))
                for count in (enough, enough // 3):  # of which twice as many are looked at a time
                    more = make_plan(job(tmp_path, kernel=kernel, features=features | {"count": count}))
                    assert (more.foreseen() == []) == (count == enough), (count, more.foreseen())
    words = {"type": "decomposable", "scalar": {**each[1]["scalar"], "lengthscale": "median"}}
    assert make_plan(job(tmp_path, kernel=words, features=features)).foreseen() == []
    assert make_plan(job(tmp_path, kernel=each[1], features=features, solve={"standardize": True})).foreseen() == []


@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_kernels_that_share_their_features_are_judged_by_these(precision: str, tmp_path: Path) -> None:
    """In mixed precision sums are of Gram matrices, and each kernel has the features of all."""
    write(tmp_path / "data.zarr", box(2))
    each = [
        {"type": "decomposable", "scalar": {**GAUSS, "lengthscale": lengths}} for lengths in ([0.5, 0.02], [0.02, 0.5])
    ]
    said = []
    for count in (800, 2400):
        features = {"count": count, "sampler": {"type": "lattice"}, "precision": precision}
        made = make_plan(job(tmp_path, kernel=each, features=features))
        (text,) = made.foreseen() or [""]
        said.append(text)
        if precision == "mixed":
            errors = [choosing.kernel_error(kernel.fix(2, 1), made.recipe.draw(0).density, made.recipe)
                      for kernel in made.candidates]  # fmt: skip
            assert (max(errors) > 2e-3) == (text != "") and (not text or f"by {max(errors):.1g}," in text)
            assert not text or text.startswith(f"kernel[{np.argmax(errors)}]: ")
    if precision == "mixed":
        (number,) = re.findall("takes about ([0-9,]+);", said[0])
        assert 800 < int(number.replace(",", "")) <= 2400 and said[1] == ""
    else:  # each has its own on the lattice that they share
        assert said == ["", ""]


def test_inputs_that_do_not_vary_take_little_memory_of_what_is_said() -> None:
    """Along them the spectrum is integrated, of each frequency at hundreds of places."""
    recipe = Recipe.of(
        kernels.Matern(0.01, nu=1.5), frequencies.Lattice(1e-3).over(np.array([1.0, 0, 0]), constant=False), d=3,
        n_features=64,
    )  # fmt: skip
    density = recipe.draw(0).density
    assert density is not None
    tracemalloc.start()
    found = choosing.measure_lattice(
        recipe.kernel,
        density,
        recipe,
        sums=Kind.TOEPLITZ,
        auto=False,
    )
    text = found.warning or ""
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**28 and text.endswith("0.001 was wanted; raise features.count"), (peak, text)


@pytest.mark.parametrize(("d", "wanted"), [(1, "lattice"), (2, "lattice"), (3, "landmarks"), (4, "landmarks")])
def test_the_sampler_is_chosen_once_rows_told_the_length_scales(d: int, wanted: str, tmp_path: Path) -> None:
    write(tmp_path / "data.zarr", box(d, 1500))
    for kernel in ({"type": "decomposable"}, {"type": "decomposable", "scalar": {**GAUSS, "lengthscale": "median"}}):
        assert sampler(make_plan(job(tmp_path, kernel=kernel)))[0] == wanted
    report = fit(job(tmp_path, kernel=kernel), engine=SerialEngine())
    assert {one["key"]: one["value"] for one in report.choices}["features.sampler"]["type"] == wanted


@pytest.mark.parametrize("output", ["identity", "learned", {"learned": "frobenius"}, "covariance", {"factor": [[1.0]]}])
def test_the_sampler_is_chosen_for_every_output_matrix(output: Any, tmp_path: Path) -> None:
    """Also for those that only the fit knows."""
    write(tmp_path / "data.zarr", box(2))
    kernel = {"type": "decomposable", "scalar": GAUSS, "output": output}
    report = fit(job(tmp_path, kernel=kernel), engine=SerialEngine())
    assert report.status == "ok"


def test_an_input_that_does_not_vary_does_not_count(tmp_path: Path) -> None:
    """As the height of a walk on one level: with z it has three inputs, of which two vary."""
    walk = np.column_stack([box(2), np.full(200, 7.0)])
    np.savez(tmp_path / "rows.npz", x=walk, y=np.sin(walk[:, :1]))
    ingest([tmp_path / "rows.npz"], tmp_path / "data.zarr", inputs=["x"], targets=["y"])
    report = fit(job(tmp_path, kernel={"type": "decomposable"}), engine=SerialEngine())
    chosen = {one["key"]: one["value"] for one in report.choices}
    assert "the least and the largest of the rows, as the store says" in [one["why"] for one in report.choices]
    assert chosen["features.sampler"]["type"] == "lattice" and chosen["data.box"]["x2"] == [7.0, 7.0]


def test_an_input_that_does_not_vary_takes_no_memory(tmp_path: Path) -> None:
    """Of a lattice that is not known, as the length-scale is found from the rows; one more that varies does."""
    peaks = list[int]()
    for third in (np.empty((200, 0)), np.full((200, 1), 7.0), box(1)):
        write(tmp_path / "data.zarr", np.column_stack([box(2), third]))
        plan = make_plan(job(tmp_path, kernel={"type": "decomposable"}, features={"sampler": {"type": "lattice"}}))
        assert plan.recipe.lattice is None
        peaks.append(plan.costs.peak_bytes)
    assert peaks[0] <= peaks[1] < 1.02 * peaks[0] and peaks[2] > 1.5 * peaks[0], peaks


@pytest.mark.parametrize("kernel", [{}, {"kernel": {"type": "decomposable", "scalar": {**GAUSS, "lengthscale": 0.05}}}])
def test_appended_rows_are_added_to_the_same_sums(kernel: dict[str, Any], tmp_path: Path) -> None:
    """Of a job that leaves the length-scale and the number of features to dorff, too: both stay, and what is fitted."""
    (tmp_path / "data.zarr").parent.mkdir(exist_ok=True)
    write(tmp_path / "data.zarr", box(2, 1280))
    described = job(tmp_path, **({"kernel": {"type": "decomposable"}} | kernel))
    first = fit(described, engine=SerialEngine())
    assert sampler(make_plan(described))[0] == "lattice"
    again = fit(described, engine=SerialEngine())
    assert (again.outcome, again.m) == ("unchanged", first.m)
    appended(tmp_path / "data.zarr", 0.5 * box(2, 64) + 0.2)
    more = fit(described, engine=SerialEngine())
    assert more.rows_used == 1344 and len(list((tmp_path / "state").glob("*/plan.json"))) == 1
    assert (more.lengthscale, more.m) == (first.lengthscale, first.m)


@pytest.mark.parametrize(
    ("scalar", "wanted"),
    [
        (GAUSS, 1e-6),
        ({"type": "matern", "nu": 2.5, "lengthscale": 0.3}, 1e-3),
        ({**GAUSS, "lengthscale": "median"}, 1e-6),
    ],
)
def test_where_it_takes_few_features_the_error_is_small(scalar: Any, wanted: float, tmp_path: Path) -> None:
    """So that targets without noise are fitted as well as by random features."""
    X = box(2, 400)
    write(tmp_path / "data.zarr", X, np.sin(3 * X[:, :1]) * np.cos(2 * X[:, 1:]))
    kernel = {"type": "decomposable", "scalar": scalar}
    several = [kernel] * 2 if wanted == 1e-3 else kernel  # of which there are no landmarks
    parts: dict[str, Any] = {"kernel": several, "features": {"count": 1024}}
    plan = make_plan(job(tmp_path, **parts))
    assert plan.own.sampler["error"] == wanted
    if wanted == 1e-6:
        solve = {"ridge": 1e-12, "standardize": False}
        fit(job(tmp_path, **parts, solve=solve), engine=SerialEngine())
        fit(job(tmp_path, **parts | {"features": {"count": 1024, "sampler": {"type": "orthogonal"}}},
                solve=solve, model="random", state="random's"), engine=SerialEngine())  # fmt: skip
        at = 0.05 + 0.9 * box(2, 300)
        truth = np.sin(3 * at[:, :1]) * np.cos(2 * at[:, 1:])
        away = [np.abs(load_model(tmp_path / one).predict(at) - truth).max() for one in ("model", "random")]
        assert away[0] < 1e-4 and away[0] < 30 * away[1]


def test_a_store_is_not_looked_through_for_nothing(tmp_path: Path) -> None:
    """Of four inputs no lattice comes where the length-scale is not known, and no box: the rows past the first ones and
    the samples are not read. What are no numbers would be found."""
    X = box(4, 2**15)
    X[10_000:10_064] = np.nan
    write(tmp_path / "data.zarr", X, np.sin(X[:, :1]))
    zarr.open_group(str(tmp_path / "data.zarr"), mode="a").create_array("z", data=np.sin(X), chunks=(64, 4))
    kind, why = sampler(make_plan(job(tmp_path, kernel={"type": "curl_free"}, data={"targets": "z", "nan": "drop"})))
    assert kind == "orthogonal" and why.endswith(
        "is found from the rows is for 2 inputs or fewer that vary, here are 4"
    )


SCALAR = {"type": "decomposable", "scalar": GAUSS}
NONE: dict[str, tuple[dict[str, Any], str, str]] = {
    "mixed": ({"features": {"precision": "mixed"}}, "landmarks", "the kernel is exact"),
    "streaming": ({"solve": {"route": "streaming"}}, "landmarks", "the kernel is exact"),
    "mixed, a field": (
        {
            "features": {"precision": "mixed"},
            "kernel": {"type": "curl_free", "scalar": GAUSS},
            "data": {"targets": "z"},
        },
        "orthogonal",
        "needs sums of the features' products",
    ),
    "counts": ({"features": {"count": [64, 128]}, "solve": {"select": "kfold"}}, "landmarks", "held out in turn"),
    "drawn for": ({"features": {"drawn_for": SCALAR}}, "orthogonal", "kernels to draw for"),
    "a graph": ({"manifold": {"weight": 1e-3}, "features": {"count": 256}}, "landmarks", "held out in turn"),
    "a spectrum": (
        {"kernel": {**SCALAR, "scalar": {"type": "spectral_density", "density": "exp(-abs(w))", "support": [-9, 9]}}},
        "iid",
        "needs a kernel with a length-scale",
    ),
    "a slow decay": (
        {"kernel": {**SCALAR, "scalar": {"type": "rational_quadratic", "alpha": 0.5, "lengthscale": 0.3}}},
        "landmarks",
        "the kernel is exact",
    ),
    "arc-cosine": ({"kernel": {**SCALAR, "scalar": {"type": "arccos"}}}, "orthogonal", "arc"),
}


@pytest.mark.parametrize("name", [name for name in NONE if name not in ("a spectrum", "arc-cosine")])
def test_what_a_lattice_cannot_do_is_done_without(name: str, tmp_path: Path) -> None:
    parts, kind, why = NONE[name]
    rng = np.random.default_rng(3)
    X = rng.uniform(0.0, 1.0, (600, 2))
    write(tmp_path / "data.zarr", X, np.sin(9 * X[:, :1]) + 0.1 * rng.standard_normal((600, 1)))
    zarr.open_group(str(tmp_path / "data.zarr"), mode="a").create_array("z", data=np.sin(X), chunks=(64, 2))
    found = sampler(make_plan(job(tmp_path, **parts)))
    assert found[0] == kind and why in found[1]


@pytest.mark.parametrize("loss", ["squared", "huber", {"quantiles": [0.1, 0.9]}])
def test_a_lattice_is_chosen_whatever_the_loss(loss: Any, tmp_path: Path) -> None:
    """Other losses than the square evaluate its features, so that Gram matrices are summed."""
    write(tmp_path / "data.zarr", box(2, 600))
    plan = make_plan(job(tmp_path, solve={"loss": loss}))
    assert sampler(plan)[0] == "lattice"
    assert plan.spec.sums is (Kind.TOEPLITZ if loss == "squared" else Kind.GRAM)


def test_leaves_of_a_lattice_may_be_too_few_to_be_dealt(tmp_path: Path) -> None:
    """They are large: a job of folds of leaves is fitted by other features, whose leaves are not."""
    write(tmp_path / "data.zarr", box(2, 40_000))
    solve = {"select": "kfold", "ridge": [1e-6, 1e-4], "folds": {"by": "leaves", "count": 2}}
    plan = make_plan(job(tmp_path, solve=solve, features={"count": 2048}))
    assert sampler(plan)[0] == "landmarks" and len(plan.leaves) > 1
    field = {"type": "curl_free", "scalar": GAUSS}
    two = np.sin(box(2, 40_000))
    zarr.open_group(str(tmp_path / "data.zarr"), mode="a").create_array("z", data=two, chunks=(64, 2))
    random = make_plan(job(tmp_path, solve=solve, features={"count": 2048}, kernel=field, data={"targets": "z"}))
    kind, why = sampler(random)
    assert kind == "orthogonal" and "has only 1 (a leaf is a run of whole shards)" in why and len(random.leaves) > 1


def test_many_inputs_are_not_looked_through(tmp_path: Path) -> None:
    """Nobody reads all inputs for a box of six: rows that have no numbers would be found."""
    X = box(6, 2**15)
    X[10_000:10_064] = np.nan
    write(tmp_path / "data.zarr", X, np.zeros((2**15, 6)) + np.arange(6))
    plan = make_plan(job(tmp_path, kernel={"type": "curl_free", "scalar": GAUSS}))
    assert sampler(plan)[0] == "orthogonal"
    assert "a lattice is for 5 inputs or fewer that vary, here are 6" in sampler(plan)[1]
    write(tmp_path / "data.zarr", box(6))
    boxed = make_plan(job(tmp_path, data={"box": [[0, 1]] * 6}))
    assert any("data.box and data.outside have no effect" in one for one in boxed.warnings)


@pytest.mark.parametrize("weigh", [False, True])
def test_a_box_of_a_few_rows_far_away_is_no_box_for_a_lattice(tmp_path: Path, *, weigh: bool) -> None:
    """A lattice would spend its features between; rows that weigh nothing count for nothing, whatever they hold."""
    X, w = box(2, 3000), np.ones((3000, 1))
    X[1234], w[1234] = 1e6, 0.0
    write(tmp_path / "data.zarr", X)
    zarr.open_group(str(tmp_path / "data.zarr"), mode="a").create_array("w", data=w[:, 0], chunks=(64,))
    parts = {"data": {"weights": "w"}} if weigh else {}
    plan = make_plan(job(tmp_path, kernel={"type": "decomposable"}, **parts))
    assert (sampler(plan)[0] == "lattice") == weigh


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_without_numbers_are_not_outside_of_the_box(tmp_path: Path, bad: float) -> None:
    X = box(2)
    X[9, 1] = bad
    write(tmp_path / "data.zarr", X)
    with pytest.raises(InputError, match=r"row 9 .*column .*finite number"):
        fit(job(tmp_path), engine=SerialEngine())
    assert fit(job(tmp_path, data={"nan": "drop"}), engine=SerialEngine()).rows_dropped == 1


MATRIX = np.array([[2.0, 0.5], [0.5, 1.0]])


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Decomposable(kernels.Gaussian(0.3)),
        kernels.Decomposable(kernels.Matern(0.5, nu=2.5), MATRIX),
        kernels.DivergenceFree(kernels.Gaussian(0.4)),
        0.2 * kernels.CurlFree(kernels.Gaussian(0.4)) + 0.8 * kernels.Decomposable(kernels.Gaussian(0.2)),
    ],
    ids=["identity", "matrix", "divergence-free", "sum"],
)
@pytest.mark.parametrize("one", [frequencies.Lattice(1e-2), frequencies.IID()], ids=["lattice", "iid"])
def test_the_distance_from_the_kernel_is_that_of_its_matrices(
    kernel: kernels.OperatorKernel, one: frequencies.Sampler
) -> None:
    """The trace of what products of features give, matrix by matrix, less that of the kernel, over that at x = z."""
    kernel, sides = kernel.fix(2, 2, np.eye(2)), np.array([[0.0, 0.0], [1.0, 1.5]])
    recipe = Recipe(kernel, one, 2, 2, 200, True).over(sides)
    own = replace(recipe, intercept=False).over(sides)
    drawn, lags, zero = own.draw(0), choosing._lags(kernel, sides[1]), np.zeros((1, 2))
    psi = operator_weights(kernel, own.m, drawn.density).psi
    F, origin = drawn.phi.transform(lags), drawn.phi.transform(zero)[0]
    made = np.einsum("na,a,arp,arq->npq", F, origin, *[np.broadcast_to(psi, (own.m, *psi.shape[1:]))] * 2)
    away = np.trace(made - kernel.gram(lags, zero)[:, 0], axis1=1, axis2=2) / np.trace(kernel.gram(zero, zero)[0, 0])
    found = choosing.kernel_distance([recipe], sides)
    assert found == pytest.approx(np.sqrt(np.mean(away**2)), rel=1e-9) and found > 1e-5
    assert choosing.kernel_distance([recipe, replace(recipe, n_features=40)], sides) > found


def test_several_kernels_have_the_lattice_that_each_of_them_needs(tmp_path: Path) -> None:
    """Together they would need more features than there may be; each alone does not."""
    write(tmp_path / "data.zarr", box(2))
    scales = [{"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": s}} for s in (0.08, 0.8)]
    plan = make_plan(job(tmp_path, kernel=scales, features={"count": 1024}, solve={"select": "gcv"}))
    assert (
        sampler(plan)[0] == "lattice" and plan.own.sampler["error"] == 1e-3 and plan.costs.m < 1024 < plan.recipe.m + 2
    )


def test_a_kernel_with_features_of_its_own_has_no_sampler(tmp_path: Path) -> None:
    write(tmp_path / "data.zarr", box(2))
    described = job(tmp_path, kernel={**SCALAR, "scalar": {"type": "polynomial", "degree": 2}}, features={"count": 64})
    plan = make_plan(described)
    assert not plan.chose("features.sampler") and not any("sampler" in one for one in plan.warnings)


def test_a_box_that_is_wrong_is_refused_whatever_the_sampler(tmp_path: Path) -> None:
    write(tmp_path / "data.zarr", box(2))
    with pytest.raises(InputError, match=r"data\.box: wanted the least and the largest of each of the 2 inputs"):
        make_plan(job(tmp_path, data={"box": [[0, 1]]}))


def test_sums_in_the_state_are_gone_on_with(tmp_path: Path) -> None:
    """A state of an earlier version, or of another sampler, keeps it: appended rows are no reason to begin anew."""
    write(tmp_path / "data.zarr", box(2))
    first = fit(job(tmp_path, features={"count": 128, "sampler": {"type": "orthogonal"}}), engine=SerialEngine())
    again = fit(job(tmp_path, features={"count": 128}), engine=SerialEngine())
    assert again.outcome == "unchanged" and again.leaves_computed == 0 and first.leaves_computed > 0
    assert sampler(make_plan(job(tmp_path, features={"count": 128}))) == ("orthogonal", "as the sums in the state are")
    other = make_plan(job(tmp_path, features={"count": 128}, state="other"))
    assert sampler(other)[0] == "lattice"


def test_going_back_to_the_default_goes_back_to_what_it_chose(tmp_path: Path) -> None:
    write(tmp_path / "data.zarr", box(4, 400))
    first = fit(job(tmp_path), engine=SerialEngine())
    chosen = sampler(make_plan(job(tmp_path)))[0]
    fit(job(tmp_path, features={"sampler": {"type": "orthogonal"}}), engine=SerialEngine())
    again = fit(job(tmp_path), engine=SerialEngine())
    assert chosen == "landmarks" == sampler(make_plan(job(tmp_path)))[0]
    assert again.leaves_computed == 0 and again.score == first.score


def test_landmarks_of_few_rows_are_chosen_again_once_there_are_twice_as_many(tmp_path: Path) -> None:
    """A state that was begun with a first night of few rows is not bound to them."""
    X = np.random.default_rng(8).uniform(-1.0, 1.0, (200, 4))
    write(tmp_path / "data.zarr", X[:20])
    counts, start = [], 20
    for stop in (20, 39, 40, 79, 80, 200):
        appended(tmp_path / "data.zarr", X[start:stop])
        start = stop
        report = fit(job(tmp_path), engine=SerialEngine())
        model = load_model(report.model)
        assert model.sampler == {"type": "landmarks"} and "anew" not in " ".join(report.warnings)
        counts.append(model.feature_map.m)
    assert counts == [20, 20, 40, 40, 80, 200]
    assert fit(job(tmp_path), engine=SerialEngine()).outcome == "unchanged"


def appended(path: Path, X: FloatArray) -> None:
    group = zarr.open_group(str(path), mode="a")
    for name, values in (("x", X), ("y", np.sin(X[:, :1]))):
        stored = group[name]
        assert isinstance(stored, zarr.Array)
        stored.append(values)


@pytest.mark.slow
def test_rows_beyond_a_box_that_nobody_gave_make_it_wider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are then summed again; there is room for the next ones, which are added to what is there."""
    for name in ("LIGHT_LEAF", "SMALLEST_LEAF", "LARGE_FIRST_LEAF"):
        monkeypatch.setattr(leaf_sizes, name, 128)
    monkeypatch.setattr(lattice, "LATTICE_ROWS", 64)
    X = box(2, 640)
    write(tmp_path / "data.zarr", X)
    first = fit(job(tmp_path), engine=SerialEngine())
    appended(tmp_path / "data.zarr", box(2, 64) + np.array([0.5, -0.3]))
    wider = fit(job(tmp_path), engine=SerialEngine())
    assert wider.rows_used == 704 and wider.leaves_reused == 0
    (chosen,) = [one for one in wider.choices if one["key"] == "data.box"]
    np.testing.assert_allclose([*chosen["value"].values()], [[0.0, 1.5 * 1.25], [-0.3 - 1.3 * 0.25, 1.0]])
    assert "wider than that of the sums in the state" in chosen["why"] and first.rows_used == 640
    appended(tmp_path / "data.zarr", box(2, 64) + np.array([0.8, 0.0]))
    more = fit(job(tmp_path), engine=SerialEngine())
    assert more.rows_used == 768 and more.leaves_reused > 0
    given = job(tmp_path, data={"box": [[0, 2], [-1, 1]]})
    assert fit(given, engine=SerialEngine()).leaves_reused == 0
    appended(tmp_path / "data.zarr", box(2, 64) + np.array([2.0, 0.0]))
    with pytest.raises(InputError, match=r"outside of the box .*, from 0.0 to 2.0; give a data\.box"):
        fit(given, engine=SerialEngine())
    dropping = fit(job(tmp_path, data={"outside": "drop"}, state="drops"), engine=SerialEngine())
    assert dropping.rows_dropped == 0
    appended(tmp_path / "data.zarr", box(2, 64) + np.array([9.0, 0.0]))
    assert fit(job(tmp_path, data={"outside": "drop"}, state="drops"), engine=SerialEngine()).rows_dropped == 64


def test_only_new_rows_are_looked_at_for_the_box(tmp_path: Path) -> None:
    write(tmp_path / "data.zarr", box(2, 640))
    plan = make_plan(job(tmp_path))
    fit(job(tmp_path), engine=SerialEngine())
    frozen = make_plan(job(tmp_path)).frozen()
    ends = lattice._ends(frozen, plan.dataset, plan.leaves)
    assert np.array_equal(ends, box_of(frozen.spec)), "no row is new"
    appended(tmp_path / "data.zarr", box(2, 64) + np.array([3.0, 4.0]))
    later = make_plan(job(tmp_path, features={"sampler": {"type": "iid"}}, state="other"))
    ends = lattice._ends(frozen, later.dataset, later.leaves)
    np.testing.assert_allclose(ends, [[3.0, 4.0], [4.0, 5.0]])
