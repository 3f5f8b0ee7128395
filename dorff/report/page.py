"""One self-contained HTML page about a model: no scripts, nothing fetched, plots inlined."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dorff.errors import InputError
from dorff.features import Projected
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.report.describe import Subject, kernel_terms, kernel_title, mapping
from dorff.report.fields import Observations, derivative_plots, field_plot, slice_plots
from dorff.report.figures import curve_plots, shown
from dorff.report.selection import MOST_LINES, Candidate, choice_plot, from_info, measure
from dorff.spec.registry import SAMPLERS, kind_of
from dorff.store import check_output, load_model, resolve_model, write_atomic

NOT_KEPT = "not recorded"
SHOWN_ROWS = 12


@final
@dataclass(frozen=True)
class Figure:
    """A plot as a PNG, with its title and its caption."""

    title: str
    caption: str
    png: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode()


def write_report(
    model_path: Path,
    out: Path | None = None,
    *,
    observations: tuple[FloatArray, FloatArray] | None = None,
    candidates: Sequence[Candidate] | None = None,
    title: str | None = None,
) -> Path:
    """Write the page of the model at `model_path` (its root or a version), and return where.

    `out` left out means `report-<version>.html` in the model's root. `observations`, X (n, d) and Y (n, p), are
    drawn on a 2-d field. `candidates` are kernels that were compared, where the model's own report does not
    know them. Raises InputError where there is no model or the page cannot be written there.
    """
    version = resolve_model(Path(model_path))
    model = load_model(version, posterior=False)
    if observations is not None:
        observations = _checked(observations, model)
    page = out if out is not None else version.parent / f"report-{version.name}.html"
    check_output(page, default=out is None)
    html = render(model, version.resolve(), observations=observations, candidates=candidates, title=title)
    write_atomic(page, [html.encode()], sync=False)
    return page


def render(
    model: Model,
    version: Path,
    *,
    observations: Observations | None = None,
    candidates: Sequence[Candidate] | None = None,
    title: str | None = None,
) -> str:
    """The page as text."""
    subject = Subject.of(model)
    tried = list(candidates) if candidates is not None else from_info(model.info)
    environment = Environment(
        loader=PackageLoader("dorff.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        title=title or kernel_title(model.kernel),
        summary=_summary(subject),
        figures=list(_figures(subject, observations)),
        choice=_choice_figure(tried, subject),
        tried=[
            (one.label, *map(_number, one.best)) for one in sorted(tried, key=lambda one: one.best[1])[:SHOWN_ROWS]
        ],
        measure=measure(tried).capitalize(),
        left_out=max(len(tried) - SHOWN_ROWS, 0),
        terms=kernel_terms(model),
        warning=_warning(model),
        groups={
            "Fit": _fit(model),
            "Model": _model(model, version),
            "Data": _data(subject),
            "Versions": _tools(model),
        },
    )


def _checked(observations: Observations, model: Model) -> Observations:
    X, Y = (np.asarray(part, dtype=np.float64) for part in observations)
    if X.shape != (len(X), model.d) or Y.shape != (len(X), model.p):
        raise InputError(
            f"observations: must be X (n, {model.d}) and Y (n, {model.p}) as the model was fitted; "
            f"got shapes {X.shape} and {Y.shape}"
        )
    good = np.isfinite(X).all(axis=1) & np.isfinite(Y).all(axis=1)
    return X[good], Y[good]


def _figures(subject: Subject, observations: Observations | None) -> Iterator[Figure]:
    d, p = subject.model.d, subject.model.p
    smooth = subject.model.feature_map.phi.differentiable
    where = "over the data's bounding box" if subject.known_box else "around the centre (the data's range is unknown)"
    if d == p == 2:
        seen = observations if observations is not None and len(observations[0]) else None
        extra = (
            "; orange: observations (a part of their arrows, so that they can be told apart); fading to white: "
            "two length-scales and more from all of them, where the data say next to nothing"
            if seen is not None
            else ""
        )
        yield Figure("The field", f"Fitted vectors {where}, coloured by length{extra}.", field_plot(subject, seen))
        if not smooth:
            return
        a, b = (column.name for column in subject.inputs)
        u, v = (column.name for column in subject.targets)
        yield Figure(
            "Divergence and vorticity",
            f"∂{u}/∂{a} + ∂{v}/∂{b}, and ∂{v}/∂{a} − ∂{u}/∂{b}, from the model's analytic derivatives.",
            derivative_plots(subject, seen),
        )
    elif d == p == 3 and smooth:
        caption = f"Planes through the middle {where}; derivatives are analytic."
        yield Figure("The field in three planes", caption, slice_plots(subject))
    else:
        yield Figure("Slices", f"Predicted: {shown(subject)}; {where}.", curve_plots(subject))


def _choice_figure(tried: Sequence[Candidate], subject: Subject) -> Figure | None:
    drawn = choice_plot(tried, subject)
    if drawn is None:
        return None
    which = f"the best {MOST_LINES} of {len(tried)} kernels" if len(tried) > MOST_LINES else "each kernel tried"
    caption = f"Estimated error on rows not seen, for {which} and each ridge; the ring marks the best."
    return Figure("How kernel and ridge were chosen", caption, drawn)


def _summary(subject: Subject) -> str:
    rows = mapping(subject.model.info.get("report")).get("rows_used")
    counts = (
        f"{subject.model.d} input{'s' * (subject.model.d > 1)}, {subject.model.p} output{'s' * (subject.model.p > 1)}"
    )
    fitted = f", fitted to {_number(rows)} rows" if rows is not None else ""
    return f"{counts}, {subject.model.feature_map.m} random features{fitted}"


def _warning(model: Model) -> str | None:
    if mapping(model.info.get("report")).get("status") != "ill_conditioned":
        return None
    return "The system was ill-conditioned: few digits of the coefficients can be trusted. Use a larger ridge."


def _fit(model: Model) -> dict[str, str]:
    report = mapping(model.info.get("report"))
    peak, planned = _size(report.get("peak_bytes")), _size(report.get("plan_peak_bytes"))
    share = report.get("syrk_share")
    return {
        "Status": _number(report.get("status")).replace("_", "-"),
        "Rows used": _number(report.get("rows_used")),
        **({"Rows unlabelled": _number(unlabelled)} if (unlabelled := report.get("rows_unlabelled")) else {}),
        "Rows dropped": _number(report.get("rows_dropped")),
        "Leaves": f"{_number(report.get('leaves_computed'))} computed, {_number(report.get('leaves_reused'))} reused"
        if report
        else NOT_KEPT,
        "Time of the fit": _number(report.get("seconds"), " s"),
        "Time inside syrk": f"{share:.0%}" if isinstance(share, float) else NOT_KEPT,
        "Peak memory": f"{peak} of {planned} planned" if report else NOT_KEPT,
        **_held_out(report),
        "Ridge": _number(report.get("ridge")),
        **({"Manifold weights": ", ".join(map(_number, weights))} if (weights := report.get("manifold")) else {}),
        "Condition number": _number(report.get("condition")),
        "Solved by": _number(report.get("rung")),
    }


def _held_out(report: Mapping[str, Any]) -> dict[str, str]:
    """R2 by the job's own folds, where they chose."""
    if report.get("score_by") != "kfold":
        return {}
    return {f"Held-out R2 ({_number(report.get('r2_of'))})": _number(report.get("score"))}


def _model(model: Model, version: Path) -> dict[str, str]:
    intercept = ", ".join(f"{value:.4g}" for value in model.intercept[:8])
    return {
        "Model": str(version),
        "Kernel": kernel_title(model.kernel),
        "Features (m)": str(model.feature_map.m),
        "Frequencies": _frequencies(model),
        "Intercept": intercept + (", …" if model.p > 8 else ""),
        **({"Views": ", ".join(model.views)} if model.views else {}),
        **_targets(model),
    }


def _targets(model: Model) -> dict[str, str]:
    """What the outputs have to do with the targets, where they are not the targets themselves."""
    facts = {}
    if model.observe is not None and not model.views:
        rows = ["(" + ", ".join(f"{value:.4g}" for value in row) + ")" for row in model.observe[:8]]
        facts["Targets are C f, C"] = ", ".join(rows) + (", …" if len(model.observe) > 8 else "")
    if "labels" in model.info:
        labels = [str(label) for label in model.info["labels"]]
        facts["Classes"] = ", ".join(labels[:SHOWN_ROWS]) + (", …" if len(labels) > SHOWN_ROWS else "")
        slope = mapping(model.info.get("calibration"))
        facts["Probabilities"] = (
            f"softmax({slope['slope']:.4g} f), found on {slope['rows']:,} held-out rows" if slope else "not calibrated"
        )
    return facts


def _data(subject: Subject) -> dict[str, str]:
    data = mapping(subject.model.info.get("data"))
    facts = {
        "Store": _number(data.get("store")),
        "Rows": _number(data.get("rows")),
        "Fingerprint": _number(data.get("fingerprint")),
        "Targets": ", ".join(column.label for column in subject.targets[:SHOWN_ROWS])
        + (", …" if len(subject.targets) > SHOWN_ROWS else ""),
    }
    for column, low, high in list(zip(subject.inputs, subject.low, subject.high, strict=True))[:SHOWN_ROWS]:
        facts[f"Input {column.label}"] = f"{low:.5g} to {high:.5g}" if subject.known_box else NOT_KEPT
    if (left := len(subject.inputs) - SHOWN_ROWS) > 0:
        facts["Other inputs"] = f"{left:,}"
    return facts


def _tools(model: Model) -> dict[str, str]:
    versions: Mapping[str, Any] = mapping(model.info.get("versions"))
    return {str(name): str(value) for name, value in sorted(versions.items())} or {"dorff": NOT_KEPT}


def _frequencies(model: Model) -> str:
    if not isinstance(model.feature_map.phi, Projected):
        return f"none: {model.feature_map.phi.kind}, seed {model.seed}"
    options = dict(mapping(model.sampler))
    entry, name = SAMPLERS.get(kind_of(options)), str(options.pop("type", "?")).replace("_", " ")
    words = ", ".join([name, *(f"{key} {value}" for key, value in options.items()), f"seed {model.seed}"])
    return f"{words} ({entry.source})" if entry is not None and entry.source else words


def _number(value: object, unit: str = "") -> str:
    """A number as a reader wants it, a word as it is, and a word for nothing."""
    if value is None:
        return NOT_KEPT
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}{unit}"
    return f"{value:.4g}{unit}" if math.isfinite(value) else str(value)


def _size(value: object) -> str:
    return f"{value / 2**20:,.0f} MiB" if isinstance(value, int) else NOT_KEPT
