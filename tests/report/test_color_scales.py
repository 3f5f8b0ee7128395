"""Colors and arrows of figures where there are no data: they do not set the scales, and they fade."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.quiver import Quiver

from dorff import ORFFRegressor, kernels
from dorff.kernels import FloatArray
from dorff.model import HeldSample, Model
from dorff.report.describe import Subject
from dorff.report.doubt import Doubt, color_limits
from dorff.report.fields import Plane, draw_derivatives, draw_deviation, draw_field, draw_maps, draw_slices
from dorff.report.figures import draw_curves
from tests.report.test_report import a_model

N = 1500
NAMES = ("x_m", "y_m", "z_m", "w_m")


def rows_of_a_band(d: int) -> FloatArray:
    """Rows along the diagonal of the first two inputs, which leave two corners empty."""
    rng = np.random.default_rng(3)
    along = rng.uniform(-1, 1, N)
    X = rng.uniform(-1, 1, (N, d))
    X[:, 0], X[:, 1] = along, along + rng.normal(0, 0.08, N)
    return X


def fitted(kernel: Any, X: FloatArray, Y: FloatArray, ridge: float = 1e-7) -> Model:
    """The model of a fit, with its posterior, its box and the rows of which a report draws some."""
    estimator = ORFFRegressor(kernel, 240, ridge=ridge, posterior=True, random_state=0).fit(X, Y)
    model, (_, d), p = estimator.posterior_model_, X.shape, Y.shape[1]
    data = {"low": X.min(axis=0).tolist(), "high": X.max(axis=0).tolist()}
    names = {"inputs": list(NAMES[:d]), "targets": [f"t{output}" for output in range(p)]}
    held = HeldSample(np.arange(N), X, Y, estimator.predict(X).reshape(Y.shape))
    return replace(model, held=held, info=model.info | {"data": data | names})


@pytest.fixture(scope="module", params=[2, 4])
def table(request: pytest.FixtureRequest) -> Subject:
    """A table of two or four inputs whose model is wild in the corners without rows."""
    X = rows_of_a_band(request.param)
    y = 450 + 20 * np.sin(3 * X[:, 0]) + 15 * (X[:, 1] - X[:, 0]) / 0.08 + 3 * X[:, -1]
    y += np.random.default_rng(4).normal(0, 2, N)
    return Subject.of(fitted(kernels.Gaussian([0.5, 0.5, 2.0, 2.0][: request.param]), X, y[:, None]))


@pytest.fixture(scope="module")
def field() -> Subject:
    """A field of two components along a track through the middle of its box."""
    X = rows_of_a_band(2)
    Y = np.column_stack([np.sin(2 * X[:, 0]), np.cos(2 * X[:, 1])]) + np.random.default_rng(5).normal(0, 0.05, (N, 2))
    curl, div = kernels.CurlFree(kernels.Gaussian(0.3)), kernels.DivergenceFree(kernels.Gaussian(0.3))
    return Subject.of(fitted(kernels.Sum([(0.5, curl), (0.5, div)]), X, Y, 1e-5))


@pytest.fixture(scope="module")
def space() -> Subject:
    """A field of three components in a tube."""
    X = rows_of_a_band(3)
    X[:, 2] *= 0.2
    X[:2, 2] = -1, 1
    Y = np.column_stack([np.sin(2 * X[:, 1]), np.sin(2 * X[:, 0]), X[:, 2]])
    Y += np.random.default_rng(6).normal(0, 0.05, (N, 3))
    return Subject.of(fitted(kernels.Decomposable(kernels.Gaussian(0.3)), X, Y, 1e-6))


def in_corner(places: FloatArray) -> Any:
    """Which places (n, 2) are in the two corners without rows; and which are among the rows."""
    apart = np.abs(places[:, 0] - places[:, 1])
    return apart > 1.2, apart < 0.1


def scale(axes: Axes) -> tuple[float, float]:
    """The ends of the color scale of what a panel is filled with."""
    (mesh,) = (one for one in axes.collections if isinstance(one, QuadMesh))
    low, high = mesh.get_clim()
    assert low is not None and high is not None
    return low, high


def veil(axes: Axes) -> tuple[FloatArray, FloatArray]:
    """Of the white over a panel the places of its pixels (n, 2), and how opaque it is there."""
    (image,) = (one for one in axes.images if np.ndim(one.get_array()) == 3)
    pixels, (left, right, bottom, top) = np.asarray(image.get_array()), image.get_extent()
    rows, columns = pixels.shape[:2]
    x, y = (
        left + (np.arange(columns) + 0.5) / columns * (right - left),
        bottom + (np.arange(rows) + 0.5) / rows * (top - bottom),
    )
    return np.column_stack([part.ravel() for part in np.meshgrid(x, y)]), pixels[..., 3].ravel()


def arrows(axes: Axes) -> tuple[FloatArray, FloatArray]:
    """Of the fitted arrows of a panel their places (n, 2) and how opaque they are."""
    drawn = next(one for one in axes.collections if isinstance(one, Quiver))
    return np.asarray(drawn.get_offsets()), np.asarray(drawn.get_alpha())


def panels(figure: Figure) -> list[Axes]:
    """The panels of a figure, without the color bars."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def test_colors_of_a_map_are_those_of_the_targets(table: Subject) -> None:
    plane = Plane(table, 0, 1)
    _, _, grid = plane.points(40)
    predicted, targets = table.model.predict(grid)[:, 0], np.asarray(table.values)[:, 0]
    least, most = np.percentile(targets, (0.5, 99.5))
    assert np.ptp(predicted) > 2 * (most - least), "the corners have to be wild for this test"

    filled = panels(draw_maps(plane, whole=False))
    low, high = scale(filled[0])
    assert least <= low < high <= most
    places, opaque = veil(filled[0])
    corner, near = in_corner(places)
    assert opaque[corner].min() > 0.8 and np.median(opaque[near]) == 0.0
    assert opaque[corner].min() > opaque[near].mean() + 0.5


def test_deviations_do_not_go_beyond_the_spread_of_targets(table: Subject, field: Subject) -> None:
    for figure, doubt in (
        (draw_maps(Plane(table, 0, 1), whole=False), Doubt(table, output=0)),
        (draw_deviation(field, whole=False), Doubt(field)),
    ):
        image = next(one for axes in panels(figure) for one in axes.images if np.ndim(one.get_array()) == 2)
        assert image.get_clim()[0] == 0.0 and image.get_clim()[1] is not None
        assert 0.0 < float(image.get_clim()[1] or 0) <= doubt.spread * (1 + 1e-12)
    spread = float(np.std(np.asarray(table.values)[:, 0]))
    assert Doubt(table, output=0).spread == pytest.approx(spread)


def test_arrows_fade_where_the_field_is_not_known(field: Subject) -> None:
    figure = draw_field(field, whole=False)
    places, opaque = arrows(figure.axes[0])
    deviations = np.linalg.norm(field.model.std(places), axis=1)
    corner, near = in_corner(places)
    assert opaque[near].min() > 0.9
    assert not corner.any() or opaque[corner].max() < 0.3
    order = np.argsort(deviations)
    assert np.all(np.diff(opaque[order]) < 0.02), "an arrow of more uncertainty is not darker"
    assert len(places) < len(Plane(field, 0, 1).points(26)[2]), "arrows that would hardly be seen are not drawn"


def test_a_wild_corner_does_not_set_the_scales_of_a_field(field: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    predict, jacobian = Model.predict, Model.jacobian
    draws = draw_field, draw_derivatives
    before = [scale(axes) for draw in draws for axes in panels(draw(field, False))]

    def wild(X: FloatArray) -> FloatArray:
        return np.where(in_corner(X)[0], 1e3, 1.0)

    monkeypatch.setattr(Model, "predict", lambda self, X: predict(self, X) * wild(X)[:, None])
    monkeypatch.setattr(Model, "jacobian", lambda self, X: jacobian(self, X) * wild(X)[:, None, None])
    after = [scale(axes) for draw in draws for axes in panels(draw(field, False))]
    assert len(after) == 3 and after == before


def test_planes_of_a_field_in_space_fade_too(space: Subject) -> None:
    figure = draw_slices(space, whole=False)
    filled = panels(figure)
    largest = np.percentile(np.abs(np.asarray(space.values)), 99.5)
    first = filled[0]
    assert 0 < scale(first)[1] <= largest and scale(first)[0] == -scale(first)[1]
    places, opaque = arrows(first)
    corner, near = in_corner(places)
    assert opaque[near].min() > 0.8 and (not corner.any() or opaque[corner].max() < 0.3)
    places, opaque = veil(first)
    corner, near = in_corner(places)
    assert opaque[corner].mean() > 0.8 > 0.2 > opaque[near].mean()


def test_axes_of_curves_end_near_the_targets(table: Subject) -> None:
    known = np.asarray(table.values)[:, 0]
    least, most = np.percentile(known, (0.5, 99.5))
    low, high = draw_curves(table, [0, 1]).axes[0].get_ylim()
    assert low >= 2 * least - most - 1e-9 and high <= 2 * most - least + 1e-9


def test_all_rows_or_a_posterior_tell_of_doubt_and_else_nothing_fades(table: Subject) -> None:
    bare = replace(table, model=replace(table.model, posterior=None))
    corner = np.array([[-0.9, 0.9, 0.0, 0.0][: table.model.d]])
    assert Doubt(table, output=0).at(corner) > 1 > Doubt(table, output=0).at(table.centre[None])
    assert Doubt(bare, output=0).at(corner) == 0 < Doubt(bare, whole=True, output=0).at(corner)
    places, opaque = veil(panels(draw_maps(Plane(bare, 0, 1), whole=False))[0])
    assert opaque.max() == 0.0 and len(places)


def test_limits_of_colors() -> None:
    predicted = np.linspace(0.0, 1.0, 1001)
    assert color_limits(predicted, None) == pytest.approx((0.005, 0.995))
    assert color_limits(predicted, np.array([0.2, 0.5, np.nan])) == pytest.approx((0.2015, 0.4985))
    assert color_limits(predicted, np.array([7.0, 9.0])) == pytest.approx((7.01, 8.99))  # nothing in common
    low, high = color_limits(np.full(5, 3.0), np.full(4, 3.0))
    assert low < 3.0 < high


def test_scores_of_classes_have_the_colors_of_0_and_1() -> None:
    described = {"data": {"low": [-3.0, -3.0], "high": [3.0, 3.0]}, "labels": ["a", "b", "c"]}
    model = a_model(kernels.Decomposable(kernels.Gaussian(0.2)), 2, 3, described)
    subject = Subject.of(replace(model, coefficients=9.0 * model.coefficients))
    ends = [scale(axes) for axes in panels(draw_maps(Plane(subject, 0, 1), whole=False))]
    assert len(ends) == 3 and all(low >= 0.0 and high <= 1.0 for low, high in ends)


def test_inputs_of_unknown_units_are_not_drawn_to_one_scale(table: Subject) -> None:
    plain = replace(table, inputs=tuple(replace(one, unit=None) for one in table.inputs))
    places = [replace(one, name=name) for one, name in zip(plain.inputs, ("lon", "lat"), strict=False)]
    if table.model.d == 4:
        assert Plane(table, 0, 1).square and not Plane(plain, 0, 1).square
        assert Plane(replace(plain, inputs=(*places, *plain.inputs[2:])), 0, 1).square
