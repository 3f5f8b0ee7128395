"""One self-contained HTML page about a model, no scripts, nothing fetched: what the templates here say it of."""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

import dorff.report.describe as describe
import dorff.report.figures as figures
from dorff.errors import InputError
from dorff.errors.shown import printable
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.report.describe import Observations, Subject, mapping, sequence
from dorff.report.fields import (
    LATITUDES,
    LONGITUDES,
    Plane,
    draw_derivatives,
    draw_deviation,
    draw_field,
    draw_maps,
    draw_slices,
    has_gaps,
    planes,
)
from dorff.report.figures import draw_curves
from dorff.solvers import R2, least
from dorff.storage.location import locate
from dorff.store import check_output, load_model, resolve_model, write_atomic

LEVELS: Final = (0.5, 0.8, 0.95)
_FIGURES: Final = ("r2", "rmse", "rmse_mean", "r2_linear", "r2_train")


class Figure(NamedTuple):
    """A plot as a PNG, and its name, of which the template has a title and a caption; and whether cells are grey."""

    name: str
    png: bytes
    gaps: bool = False

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode()

    @property
    def width(self) -> int:
        """In pixels of a page on which text in plots is as large as that beside them."""
        return int.from_bytes(self.png[16:20]) * 100 // figures.DPI


def write_report(
    model_path: Path, out: Path | None = None, *, observations: Observations | None = None, title: str | None = None
) -> Path:
    """Write the page of the model at `model_path` (its root or a version), and return where. `out` left out means
    `report-<version>.html` in the model's root. `observations`, X (n, d) and Y (n, p), are drawn; left out, rows that
    the model keeps are, which its fit held out. InputError where there is no model, or the page cannot be written."""
    version = resolve_model(locate(model_path))
    model = load_model(version, held=True)
    observations = None if observations is None else _checked(observations, model)
    page = out if out is not None else version.parent / f"report-{version.name}.html"
    check_output(page, default=out is None)
    write_atomic(page, [render(model, version.resolve(), observations=observations, title=title).encode()], sync=False)
    return page


def render(model: Model, version: Path, *, observations: Observations | None = None, title: str | None = None) -> str:
    subject, report = Subject.of(model, observations), mapping(model.info.get("report"))
    tried = sorted(figures.from_info(model.info), key=lambda one: one.best[1])
    moved = figures.effects(subject)
    return _template().render(
        title=title or describe.kernel_title(model.kernel),
        kernel=describe.kernel_title(model.kernel),
        model=model,
        version=str(version),
        info=model.info,
        report=report,
        subject=subject,
        whole=observations is not None,
        quality=Quality.of(model, subject),
        r2_of=R2.of_info(model.info, model.kernel, model.observe),
        labels=_labels(model, subject),
        coverage=_coverage(model),
        loss=mapping(report.get("loss")),
        quantiles=_quantiles(model, subject),
        levels=LEVELS,
        judged=_judged(model, subject),
        figures=list(_figures(subject, observations is not None, moved)),
        choice=None if (png := figures.choice_plot(tried, subject)) is None else Figure("choice", png),
        tried=tried,
        measure=figures.criterion(tried).axis,
        named=partial(figures.kernel_name, model.info.get("kernels")),
        terms=describe.kernel_terms(model),
        effects=moved,
        features=describe.features_text(model),
        frequencies=describe.frequencies_text(model),
        most={"inputs": figures.MOST_INPUTS, "outputs": figures.MOST_OUTPUTS, "lines": figures.MOST_LINES},
    )


def _judged(model: Model, subject: Subject) -> list[Figure]:
    """Pictures of rows that the fit held out."""
    if (held := model.held) is None:
        return []
    names = mapping(mapping(model.info.get("data")).get("group_names"))
    return [
        Figure("observed", figures.observed_plot(held, subject.fitted)),
        Figure("residuals", figures.residual_plots(held, subject.fitted, names)),
    ]


def _labels(model: Model, subject: Subject) -> dict[str, str]:
    """The targets that were fitted with their units, by their names in the data."""
    data = mapping(model.info.get("data"))
    names = sequence(data.get("fitted")) or sequence(data.get("targets"))
    return {str(name): column.label for name, column in zip(names, subject.fitted, strict=False)}


def _quantiles(model: Model, subject: Subject) -> Figure | None:
    """A picture of the quantiles, of a model that was fitted to several."""
    if model.held is None or model.loss.levels == 1 or model.p % model.loss.levels:
        return None
    return Figure("quantiles", figures.quantile_plots(model.held, subject.fitted, model))


@cache
def _template() -> Template:
    here = PackageLoader("dorff.report", ".")
    jinja = Environment(
        loader=here,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_controls,
    )
    jinja.filters.update(number=describe.number, real=_real, mapping=mapping, sequence=sequence, root=math.sqrt)
    jinja.filters.update(ranked=_ranked)
    return jinja.get_template("page.html.j2")


def _without_controls(value: object) -> object:
    """Return text from data, such as labels of classes, without characters that hide or turn text."""
    return printable(value, lines=True) if type(value) is str else value


def _ranked(trials: Sequence[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Trials by what the best has least of, and that."""
    return sorted(((least(one["value"], _real(one.get("r2"))), one) for one in trials), key=itemgetter(0))


def _checked(observations: Observations, model: Model) -> Observations | None:
    """Those without NaN, None where there are none."""
    X, Y = (np.asarray(part, dtype=np.float64) for part in observations)
    if X.shape != (len(X), model.d) or Y.shape != (len(X), model.p):
        problem = f"must be X (n, {model.d}) and Y (n, {model.p}) as the model was fitted"
        raise InputError(f"observations: {problem}; got shapes {X.shape} and {Y.shape}")
    good = np.isfinite(X).all(axis=1) & np.isfinite(Y).all(axis=1)
    return (X[good], Y[good]) if good.any() else None


def _figures(subject: Subject, whole: bool, moved: FloatArray) -> Iterator[Figure]:
    """Plots of f: over a plane or planes, where two or three inputs vary, else along the inputs that `moved` it
    (d,) most, and over two of those that have many values."""
    d, p, varied = subject.model.d, subject.model.p, len(subject.varied)
    smooth, sure = subject.model.feature_map.phi.differentiable, subject.model.posterior is not None
    if d == p == 2 == varied:
        gaps = has_gaps(planes(subject))
        yield Figure("field", figures.png(draw_field(subject, whole)), gaps)
        if smooth:
            yield Figure("derivatives", figures.png(draw_derivatives(subject, whole)), gaps)
        if sure:
            yield Figure("deviation", figures.png(draw_deviation(subject, whole)), gaps)
    elif d == p == 3 and smooth and varied > 1:
        yield Figure("planes", figures.png(draw_slices(subject, whole)), has_gaps(planes(subject)))
    else:
        inputs = sorted(subject.varied, key=lambda i: -moved[i])
        many = [i for i in inputs if varied == 2 or not subject.places(i, 2)[1]]
        names = {subject.inputs[i].name.lower(): i for i in many}
        on_map = [names[name] for name in LONGITUDES + LATITUDES if name in names]
        over = on_map if len(on_map) == 2 else sorted(many[:2])
        if varied != 2:
            yield Figure("slices", figures.png(draw_curves(subject, sorted(inputs[: figures.MOST_INPUTS]))))
        if len(over) == 2:
            plane = Plane(subject, *over)
            yield Figure("maps", figures.png(draw_maps(plane, whole)), has_gaps([plane]))


def _real(value: object) -> float | None:
    """`value` where it is a number that is finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


@dataclass(frozen=True)
class Quality:
    """How good the model is on rows not seen, by the fit's own `folds`, or, where these are empty, by the rows that it
    keeps: of each target its name `target`, `r2`, `rmse`, `rmse_mean` (that of their mean), `r2_linear` (a
    linear model's) and `r2_train`, None what is not known."""

    outputs: tuple[Mapping[str, Any], ...]
    folds: Mapping[str, Any]

    @classmethod
    def of(cls, model: Model, subject: Subject) -> "Quality":
        folds, held = mapping(mapping(model.info.get("report")).get("quality")), model.held
        outputs = [mapping(one) for one in sequence(folds.get("outputs"))]
        if not outputs and held is not None:
            errors = np.ma.masked_invalid(held.residuals**2).mean(axis=0).filled(math.nan).tolist()
            whole = np.ma.masked_invalid(held.Y).var(axis=0).filled(math.nan).tolist()
            outputs = [
                {"target": column.name, "r2": 1 - error / (of or math.nan), "rmse": error**0.5, "rmse_mean": of**0.5}
                for column, error, of in zip(subject.fitted, errors, whole, strict=True)
            ]
            folds = {}
        kept = [{"target": str(one.get("target"))} | {key: _real(one.get(key)) for key in _FIGURES} for one in outputs]
        return cls(tuple(kept), folds)

    def r2(self, figure: str, definition: R2) -> float | None:
        """An R2 of all targets together, of those that `figure` has of each; None where one has none.

        The pooled one is the mean of the targets', each with the weight of its variance.
        """
        values = [one[figure] for one in self.outputs]
        weights = [1.0 if definition is R2.MEAN else (output["rmse_mean"] or 0.0) ** 2 for output in self.outputs]
        if None in values or not sum(weights) > 0:
            return None
        return float(np.average(values, weights=weights))


def _coverage(model: Model) -> dict[str, list[list[float]]]:
    """Of each kind of bands, level and target, the share of held-out rows within; NaN where too few say how wide."""
    held, kinds, shares = model.held, ("plain", "conformal"), dict[str, list[list[float]]]()
    if held is None or held.std is None:
        return shares
    for kind in kinds if model.conformal is not None else kinds[:1]:
        highest = 1.0 if kind == "plain" or model.conformal is None else model.conformal.highest
        factors = [model.factor(one, conformal=kind == "conformal") if one <= highest else math.nan for one in LEVELS]
        shares[kind] = [(held.coverage(factor) + 0 * factor).tolist() for factor in factors]
    return shares
