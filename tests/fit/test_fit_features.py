"""Every feature map through a whole fit: from JOB.yaml and from ORFFRegressor, published and loaded again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import slow
from scipy.spatial.distance import pdist

from dorff import ORFFRegressor, frequencies, kernels, load_model
from dorff.data import ingest
from dorff.errors import InputError
from dorff.fit import fit
from dorff.plan import freeze_constants, make_plan
from dorff.report import write_report
from dorff.spec.job import Job

N, D_SMALL, D_LARGE = 700, 3, 120
SCALARS: list[dict[str, Any]] = [
    {"type": "gaussian", "lengthscale": 3.0}, {"type": "matern", "lengthscale": 3.0, "nu": 2.5},
    {"type": "rational_quadratic", "lengthscale": 3.0}, {"type": "arc_cosine", "order": 0},
    {"type": "arc_cosine", "order": 1}, {"type": "pointwise", "function": "tanh"},
]  # fmt: skip
SAMPLERS: list[dict[str, Any]] = [
    {"type": "orthogonal"}, {"type": "sorf"}, {"type": "rom", "blocks": 2}, {"type": "fastfood"}, {"type": "qmc"},
    {"type": "quadrature"}, {"type": "quadrature", "degree": [1, 3], "mixing": "haar"},
]  # fmt: skip
CASES = [
    *((scalar, SAMPLERS[i % len(SAMPLERS)]) for i, scalar in enumerate(SCALARS)),
    *((SCALARS[(i + 4) % len(SCALARS)], sampler) for i, sampler in enumerate(SAMPLERS)),
    ({"type": "gaussian", "lengthscale": 3.0}, {"type": "gauss_quadrature", "points": 4}),
    ({"type": "laplacian", "lengthscale": 30.0}, {"type": "iid"}),
    ({"type": "cauchy", "lengthscale": 3.0}, {"type": "qmc", "sequence": "halton"}),
    ({"type": "polynomial", "degree": 2}, {"type": "orthogonal"}),
    ({"type": "polynomial", "degree": 6, "scale": 0.1}, {"type": "orthogonal"}),
]


def data(d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(d)
    X = (rng.standard_normal((N, d)) + 1.0) * np.sqrt(3 / d)  # not centred
    w = rng.standard_normal((d, 2)) / np.sqrt(3)
    return X, np.sin(X @ w) + (X @ w[:, ::-1]) ** 2 / 4 + 0.5


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("features")
    found = {}
    for d in (D_SMALL, D_LARGE):
        X, Y = data(d)
        np.savez(folder / f"{d}.npz", X=X, Y=Y)
        ingest([folder / f"{d}.npz"], folder / f"{d}.zarr", inputs=["X"], targets=["Y"], shard_rows=128)
        found[d] = folder / f"{d}.zarr"
    return found


def job(store: Path, place: Path, scalar: dict[str, Any], sampler: dict[str, Any], **solve: Any) -> Job:
    return Job.model_validate(
        {
            "data": {"store": str(store)},
            "kernel": {"type": "decomposable", "scalar": scalar},
            "features": {"count": 201, "sampler": sampler, "seed": 3},
            "solve": {"ridge": 1e-4, **solve},
            "cluster": {"type": "serial"},
            "state": str(place / "state"),
            "model": str(place / "model"),
        }
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:random_state=3 has no effect")
@pytest.mark.parametrize("d", [D_SMALL, D_LARGE])
@pytest.mark.parametrize(("scalar", "sampler"), CASES, ids=str)
def test_a_job_and_the_regressor_agree(
    stores: dict[int, Path], tmp_path: Path, d: int, scalar: dict[str, Any], sampler: dict[str, Any]
) -> None:
    """Two ways to the same model: durable moments of leaves, and sums in memory."""
    report = fit(job(stores[d], tmp_path, scalar, sampler))
    model = load_model(tmp_path / "model")
    X, Y = data(d)
    kernel = kernels.from_config({"type": "decomposable", "scalar": scalar, "output": "identity"})
    drawn = frequencies.from_config(sampler)
    of_its_own = pytest.warns(UserWarning, match="sampler=.*has no effect") if "degree" in scalar else nullcontext()
    with of_its_own:
        twin = ORFFRegressor(kernel, 201, sampler=drawn, ridge=1e-4, random_state=3).fit(X, Y)
    assert report.m == model.feature_map.m == twin.model_.feature_map.m <= 201
    assert report.status == "ok" and report.rows_used == N
    np.testing.assert_allclose(model.predict(X), twin.predict(X), rtol=1e-6, atol=1e-6)
    assert twin.score(X, Y) > 0.4
    again = fit(job(stores[d], tmp_path, scalar, sampler))
    assert again.leaves_computed == 0  # the question is the same, so are its moments


def test_mercer_features_in_a_fit(tmp_path: Path) -> None:
    """Brownian motion on [0, 1]: inputs are not centred, for its functions are of x itself."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (400, 1))
    y = np.minimum(x, 0.3) + 0.5 * np.minimum(x, 0.8)
    np.savez(tmp_path / "a.npz", X=x, Y=y)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["X"], targets=["Y"])
    scalar = {"type": "mercer", "system": "brownian", "count": 300}
    report = fit(job(tmp_path / "a.zarr", tmp_path, scalar, {"type": "orthogonal"}))
    assert report.m == 201
    assert np.abs(load_model(tmp_path / "model").predict(x) - y).max() < 0.05


def test_centring_is_left_out_where_it_would_change_the_kernel(stores: dict[int, Path], tmp_path: Path) -> None:
    sampler = {"type": "orthogonal"}
    for scalar, standardize, centred in (
        (SCALARS[0], False, True), (SCALARS[4], False, False), (SCALARS[4], True, True),
    ):  # fmt: skip
        plan = make_plan(job(stores[D_SMALL], tmp_path, scalar, sampler, standardize=standardize))
        this = freeze_constants(plan)
        assert bool(np.any(this.features.center)) is centred


def test_a_centre_without_an_intercept_is_a_column(stores: dict[int, Path], tmp_path: Path) -> None:
    sampler = {"type": "quadrature", "centre": "redraw", "mixing": "haar"}
    report = fit(job(stores[D_SMALL], tmp_path, SCALARS[0], sampler, intercept=False))
    assert report.m == 201
    X, Y = data(D_SMALL)
    twin = ORFFRegressor(
        kernels.Gaussian(3.0), 201, sampler=frequencies.from_config(sampler), ridge=1e-4, random_state=3,
        intercept=False,
    ).fit(X, Y)  # fmt: skip
    np.testing.assert_allclose(load_model(tmp_path / "model").predict(X), twin.predict(X), rtol=1e-6, atol=1e-6)


def test_structured_maps_are_planned_as_small_as_they_are(stores: dict[int, Path], tmp_path: Path) -> None:
    """The plan of a structured map has O(m) numbers and O(m log d) operations; a dense one m d of both."""
    dense, structured = (
        make_plan(job(stores[D_LARGE], tmp_path, SCALARS[0], {"type": kind})).costs for kind in ("orthogonal", "rom")
    )
    assert structured.flops < dense.flops and structured.m == dense.m == 200
    (tmp_path / "x").mkdir()
    this = freeze_constants(make_plan(job(stores[D_LARGE], tmp_path / "x", SCALARS[0], {"type": "rom"})))
    assert (this.directory / "arrays.npz").stat().st_size < 8 * 100 * D_LARGE  # half of omega


@pytest.mark.parametrize(
    ("kernel", "sampler", "words"),
    [
        ({"type": "curl_free", "scalar": SCALARS[0], "measure": "trace"}, {"type": "quadrature"},
         "use iid, orthogonal or qmc"),
        ({"type": "decomposable", "scalar": {"type": "laplacian", "lengthscale": 1.0}}, {"type": "orthogonal"},
         "no rotation changes.*use iid or qmc"),
        ({"type": "decomposable", "scalar": {"type": "polynomial", "degree": 2}}, {"type": "rom"}, "of its own"),
        ({"type": "decomposable", "scalar": {"type": "matern", "lengthscale": 1.0, "nu": 0.5}},
         {"type": "quadrature"}, "nu"),
        ({"type": "decomposable", "scalar": {"type": "mercer", "system": "brownian", "count": 9}},
         {"type": "iid"}, "one input"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_at_plan_time(
    stores: dict[int, Path], tmp_path: Path, kernel: dict[str, Any], sampler: dict[str, Any], words: str
) -> None:
    base = job(stores[D_SMALL], tmp_path, SCALARS[0], {"type": "iid"}).model_dump(mode="json")
    changed = {**base, "kernel": kernel, "features": {**base["features"], "sampler": sampler}}
    if kernel["type"] == "curl_free":
        np.savez(tmp_path / "field.npz", x=data(D_SMALL)[0], y=-data(D_SMALL)[0])  # d = p
        ingest([tmp_path / "field.npz"], tmp_path / "field.zarr", inputs=["x"], targets=["y"])
        changed["data"] = {**changed["data"], "store": str(tmp_path / "field.zarr")}
    with pytest.raises(InputError, match=words):
        make_plan(Job.model_validate(changed))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("kind", "metric"), [("gaussian", "euclidean"), ("laplacian", "cityblock")])
def test_the_median_is_of_the_kernels_own_distance(
    stores: dict[int, Path], tmp_path: Path, kind: str, metric: str
) -> None:
    plan = make_plan(job(stores[D_SMALL], tmp_path, {"type": kind, "lengthscale": "median"}, {"type": "iid"}))
    freeze_constants(plan)
    (kernel,) = plan.fitted()
    X, _ = data(D_SMALL)
    (_, base), = kernel.terms()  # fmt: skip
    assert base.scalar.config()["lengthscale"] == pytest.approx(np.median(pdist(X, metric)), rel=1e-6)


def test_the_default_sampler_suits_the_kernel() -> None:
    X, Y = data(D_SMALL)
    for kernel, name in ((kernels.Laplacian(5.0), "iid"), (kernels.Gaussian(2.0), "orthogonal")):
        assert ORFFRegressor(kernel, 64).partial_fit(X, Y).model_.sampler == {"type": name}


def test_a_job_without_a_sampler_takes_the_same_default(stores: dict[int, Path], tmp_path: Path) -> None:
    base = job(stores[D_LARGE], tmp_path, {"type": "laplacian", "lengthscale": 5.0}, {"type": "iid"})
    given = base.model_dump(mode="json")
    del given["features"]["sampler"]
    assert make_plan(Job.model_validate(given)).spec == make_plan(base).spec


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scalar", "sampler", "words"),
    [
        (SCALARS[1], {"type": "quadrature"}, ["Matérn", "nu 2.5", "degree [3, 3]"]),
        (SCALARS[4], {"type": "rom"}, ["w·x", "order 1", "rom, blocks 3"]),
        ({"type": "polynomial", "degree": 2}, {"type": "orthogonal"}, ["degree 2", "none: monomials"]),
    ],
    ids=str,
)
def test_the_report_tells_of_any_kernel_and_sampler(
    stores: dict[int, Path], tmp_path: Path, scalar: dict[str, Any], sampler: dict[str, Any], words: list[str]
) -> None:
    fit(job(stores[D_SMALL], tmp_path, scalar, sampler))
    page = write_report(tmp_path / "model", tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(word in page for word in words)


@pytest.mark.parametrize(
    ("scalar", "d"),
    [(SCALARS[4], 2), *slow((SCALARS[3], 2), (SCALARS[3], 3), (SCALARS[4], 3))],
    ids=str,
)
def test_the_report_of_a_vector_field_without_derivatives(tmp_path: Path, scalar: dict[str, Any], d: int) -> None:
    """Divergence and vorticity only where the features have derivatives."""
    X = np.random.default_rng(0).standard_normal((200, d))
    np.savez(tmp_path / "a.npz", X=X, Y=np.tanh(X))
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["X"], targets=["Y"])
    fit(job(tmp_path / "a.zarr", tmp_path, scalar, {"type": "orthogonal"}))
    page = write_report(tmp_path / "model", tmp_path / "page.html").read_text(encoding="utf-8")
    assert ("analytic" in page) is (scalar["order"] == 1)
