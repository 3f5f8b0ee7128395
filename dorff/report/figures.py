"""What every figure shares; plots of held-out rows, of outputs along inputs, and of scores against the ridge."""

import io
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.special import ndtri

from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model.calibration import HeldSample
from dorff.report.dates import show_dates
from dorff.report.describe import ColumnLabel, Subject, common_unit, mapping, sequence
from dorff.report.doubt import OUTER_QUANTILES
from dorff.solvers.scores import Criterion, criterion_of, root
from dorff.spec.registry import HELD_OUT

INK: Final = "#1f2933"
FAINT: Final = "#9aa5b1"
ACCENT: Final = "#d9480f"
LINES: Final = ("#1c5d99", "#d9480f", "#2b8a3e", "#8e44ad", "#b08900", "#0b7285", "#a61e4d", "#5c677d")
LONGEST_NAME: Final = 40
DPI: Final = 130
MOST_INPUTS: Final = 4
MOST_OUTPUTS: Final = 4
MOST_GROUPS: Final = 12
LONGEST_GROUP: Final = 16  # letters of a group's name
LONG_LABELS: Final = 40  # letters of all of them that fit side by side
POINTS: Final = 1200  # of the curves of a picture, next to each other
BAND: Final = float(ndtri(0.975))
MOST_LINES: Final = 8
_ERROR: Final = Criterion("error", "root mean squared error", root, in_units=True)
T = TypeVar("T", bound=Hashable)
Point = tuple[float, float]
STYLES: Final = ("-", "--", "-.", ":")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that keeps its labels apart; belongs to no global state."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()


def drawable(text: str) -> str:
    """`text` cut to a sensible length, without what the font lacks and without the signs of TeX."""
    shown = "".join(letter if _in_font(letter) else "?" for letter in " ".join(text.split()))
    shown = shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"
    return shown.replace("\\", "\\\\").replace("$", r"\$") if "$" in shown else shown


@cache
def _in_font(letter: str) -> bool:
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    return letter == " " or (letter.isprintable() and font.get_char_index(ord(letter)) != 0)


def label_axes(axes: Axes, x: ColumnLabel, y: ColumnLabel | str, *, title: str | None = None) -> None:
    """Names and units on both axes, and a quiet frame."""
    axes.set_xlabel(drawable(x.label), color=INK)
    axes.set_ylabel(drawable(y if isinstance(y, str) else y.label), color=INK)
    if x.time is not None:
        show_dates(axes.xaxis, x.time)
    if isinstance(y, ColumnLabel) and y.time is not None:
        show_dates(axes.yaxis, y.time)
    if title is not None:
        axes.set_title(drawable(title), color=INK, fontsize=11)
    axes.tick_params(colors=INK, labelsize=9)
    for side in axes.spines.values():
        side.set_color(FAINT)


def observed_plot(held: HeldSample, targets: Sequence[ColumnLabel]) -> bytes:
    """What the model says of held-out rows against what was observed: a panel for each of the first few targets."""
    count = min(len(targets), MOST_OUTPUTS)
    figure = new_figure(max(4.3 * count, 5.5), 4.4)
    for j, axes in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        there = np.isfinite(held.Y[:, j])
        x, y = held.values[there, j], held.Y[there, j]
        axes.plot(x, y, ".", ms=4, color=LINES[0], alpha=0.4, mew=0)
        ends = [min(x.min(), y.min()), max(x.max(), y.max())] if len(x) else [0.0, 1.0]
        axes.plot(ends, ends, color=ACCENT, lw=1.2)
        axes.set_aspect("equal", adjustable="datalim")
        axes.grid(color=FAINT, alpha=0.3, lw=0.6)
        label_axes(axes, ColumnLabel("predicted"), "observed", title=targets[j].label)
    return png(figure)


def quantile_plots(held: HeldSample, targets: Sequence[ColumnLabel], model: Model) -> bytes:
    """Quantiles of held-out rows, in order of the middle one, and what was observed: a panel for each of the first few
    targets. They are the model's, which was fitted to these rows too."""
    count, levels = min(len(targets), MOST_OUTPUTS), model.loss.levels
    f = model.predict(held.X).reshape(len(held.X), -1, levels)
    middle = int(np.argmin(np.abs(np.array(getattr(model.loss, "quantiles", [0.5])) - 0.5)))
    figure = new_figure(max(4.6 * count, 5.5), 4.0)
    for j, axes in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        order = np.argsort(f[:, j, middle], kind="stable")
        place = np.arange(len(order))
        axes.plot(place, held.Y[order, j], ".", ms=3, color=INK, alpha=0.5, mew=0)
        for k in range(levels // 2):
            axes.fill_between(place, f[order, j, k], f[order, j, -1 - k], color=LINES[0], alpha=0.25, lw=0)
        axes.plot(place, f[order, j, middle], color=ACCENT, lw=1.2)
        axes.grid(color=FAINT, alpha=0.3, lw=0.6)
        label_axes(axes, ColumnLabel("held-out rows in order"), targets[j].label)
    return png(figure)


def residual_plots(
    held: HeldSample, targets: Sequence[ColumnLabel], group_names: Mapping[str, str] | None = None
) -> bytes:
    """Residuals of held-out rows along the file, by group, and against the normal law: a row for each target.
    `group_names` are those of groups that are no numbers, by the bits of their keys."""
    count, across = min(len(targets), MOST_OUTPUTS), 2 if held.groups is None else 3
    figure = new_figure(4.4 * across, 2.9 * count + 0.4)
    for j, panels in enumerate(figure.subplots(count, across, squeeze=False)):
        if not (there := np.isfinite(held.Y[:, j])).any():
            continue
        residuals = held.residuals[there, j]
        panels[0].plot(held.numbers[there], residuals, ".", ms=3, color=LINES[0], alpha=0.5, mew=0)
        for part in np.array_split(np.flatnonzero(there), min(20, max(1, len(residuals) // 20))):
            if len(part):  # the mean of some twenty rows or more
                panels[0].plot(held.numbers[part[[0, -1]]], [held.residuals[part, j].mean()] * 2, color=ACCENT, lw=2)
        label_axes(panels[0], ColumnLabel("row of the data"), f"residual of {targets[j].label}")
        if held.groups is not None:
            _by_group(panels[1], residuals, held.groups[there], held.numbers[there], group_names or {})
        with np.errstate(divide="ignore", invalid="ignore"):  # no noise was found
            _normal(panels[-1], residuals if held.std is None else residuals / held.std[there, j])
        for axes in panels:
            axes.axhline(0.0, color=INK, lw=0.6)
            axes.grid(color=FAINT, alpha=0.3, lw=0.6)
    return png(figure)


def _by_group(
    axes: Axes,
    residuals: FloatArray,
    groups: FloatArray,
    rows: npt.NDArray[np.int64],
    group_names: Mapping[str, str],
) -> None:
    """Boxes from quartile to quartile; of many groups the largest. One that has another name than a number, which the
    data do not keep, is called by its first row."""
    values, first, counts = np.unique(groups, return_index=True, return_counts=True)
    largest = np.sort(np.argsort(-counts, kind="stable")[:MOST_GROUPS])
    names = [_group_name(values[place], int(rows[first[place]]), group_names) for place in largest]
    boxes = [residuals[groups == value] for value in values[largest]]
    axes.boxplot(boxes, flierprops={"ms": 2, "alpha": 0.4}, whis=(5, 95))
    long = sum(map(len, names)) > LONG_LABELS
    axes.set_xticklabels(names, rotation=45 if long else 0, ha="right" if long else "center")
    label_axes(axes, ColumnLabel("group"), "residual")


def _group_name(key: float, row: int, names: Mapping[str, str]) -> str:
    """Return what a group is called; its key is a number, or the bits of what stands for other names."""
    bits = str(int(np.float64(key).view(np.uint64)))
    if bits in names:
        return drawable(shortened(names[bits]))
    is_number = key == 0 or (abs(key) > 1e-9 and abs(key) < 2**53)
    return f"{key:g}" if is_number else f"row {row}…"


def shortened(name: str) -> str:
    """Return a name that fits below a box: the end, which tells files of a folder apart."""
    return name if len(name) <= LONGEST_GROUP else f"…{name[1 - LONGEST_GROUP :]}"


def _normal(axes: Axes, residuals: FloatArray) -> None:
    """Ordered residuals against the quantiles of the normal law of as many, both in standard deviations."""
    ordered = np.sort(residuals[np.isfinite(residuals)])
    quantiles = ndtri((np.arange(len(ordered)) + 0.5) / max(len(ordered), 1))
    axes.plot(quantiles, ordered, ".", ms=4, color=LINES[0], alpha=0.6, mew=0)
    axes.axline((0.0, 0.0), slope=1.0, color=ACCENT, lw=1.2)
    label_axes(axes, ColumnLabel("quantile of the normal law"), "residual / deviation")


def effects(subject: Subject) -> FloatArray:
    """(d,): how far the output that moves most moves along each input where most data are, the others held at the
    centre, over how far the model says that outputs move on the whole; 0 of constant inputs."""
    parts = []
    for i in subject.varied:
        values, _ = subject.places(i, 9)
        parts.append(np.ptp(subject.model.predict(subject.along(i, values)), axis=0))
    moved, out = np.array(parts), np.zeros(subject.model.d)
    whole = moved.max(axis=0)
    if subject.data is not None and subject.data[1].shape[1] == len(whole):
        whole = np.ma.masked_invalid(subject.data[1]).std(axis=0).filled(0.0)
    out[list(subject.varied)] = (moved / np.where(whole > 0, whole, 1.0)).max(axis=1)
    return out


def draw_curves(subject: Subject, inputs: Sequence[int]) -> Figure:
    """A panel for each of these inputs and the first few outputs: f with its own 95% band where it is known, and the
    data, the paler the farther their other inputs are from the centre."""
    model, down = subject.model, min(subject.model.p, MOST_OUTPUTS)
    figure = new_figure(max(3.1 * len(inputs), 7.0), max(2.5 * down, 3.6) + 0.4)
    panels = figure.subplots(down, len(inputs), squeeze=False, sharey="row", sharex="col")
    for column, i in enumerate(inputs):
        x, few = subject.places(i, POINTS // len(inputs))
        grid = subject.along(i, x)
        values = model.predict(grid)
        half = np.zeros_like(values) if model.posterior is None else BAND * model.std(grid)
        low, high = values - half, values + half
        for j in range(down):
            axes, colour = panels[j, column], LINES[j % len(LINES)]
            _near(axes, subject, i, j)
            axes.plot(x, values[:, j], color=colour, lw=1.8, ls="--" if few else "-", marker="o" if few else None)
            axes.fill_between(x, low[:, j], high[:, j], color=colour, alpha=0.2, lw=0)
            axes.grid(color=FAINT, alpha=0.3, lw=0.6)
            label_axes(axes, subject.inputs[i], subject.targets[j])
            axes.label_outer()
    for j, (axes, *_) in enumerate(panels):
        _keep_to_targets(axes, None if subject.values is None else subject.values[:, j])
    return figure


def _keep_to_targets(axes: Axes, known: FloatArray | None) -> None:
    """End the y-axis where a band or curve is far beyond all the values `known` (k,) where data are."""
    known = np.zeros(0) if known is None else known[np.isfinite(known)]
    if not len(known):
        return
    least, most = np.percentile(known, OUTER_QUANTILES)
    low, high = axes.get_ylim()
    if most > least:
        axes.set_ylim(max(low, 2 * least - most), min(high, 2 * most - least))


def _near(axes: Axes, subject: Subject, i: int, j: int) -> None:
    """The rows to draw, as dark as `shades` say."""
    if subject.data is None:
        return
    X, y = subject.data[0], subject.data[1][:, j]
    places, _ = subject.places(i, 2)
    seen = np.isfinite(y) & (X[:, i] >= places[0]) & (X[:, i] <= places[-1])
    dark = 0.6 * shades(X, subject, [i])[seen] if seen.any() else None
    axes.scatter(X[seen, i], y[seen], s=7, color=INK, alpha=dark, lw=0)


def shades(X: FloatArray, subject: Subject, along: Sequence[int]) -> FloatArray:
    """How dark rows X (n, d) are, (n,): 1, but paler the more are nearer to the centre, not `along` axes, scaled."""
    spread = X.std(axis=0)
    apart = np.delete((X - subject.centre) / np.where(spread > 0, spread, 1.0), along, axis=1)
    distance = (apart**2).sum(axis=1)
    return np.asarray(np.exp(-4.0 * np.searchsorted(np.sort(distance), distance) / len(X)))


@dataclass(frozen=True)
class Candidate:
    """A kernel that was tried: its name, and (ridge, mean squared error) pairs or, `held_out`, (ridge, 1 - R2)."""

    label: str
    scores: tuple[tuple[float, float], ...]
    held_out: bool = False

    @property
    def finite(self) -> list[tuple[float, float]]:
        """(ridge, root of the score), by ridge, where both are numbers."""
        return sorted((ridge, math.sqrt(v)) for ridge, v in self.scores if math.isfinite(v) and v >= 0)

    @property
    def best(self) -> tuple[float, float]:
        """The ridge of the least root score, and that; (nan, inf) where none is a number."""
        return min(self.finite, key=lambda pair: pair[1], default=(math.nan, math.inf))


def from_info(info: Mapping[str, Any]) -> list[Candidate]:
    """The candidates in a model's fit report, by held-out R2 where k-fold chose: kernels with their numbers of
    features and weights of manifold terms; none where the report has none, or scores that are no errors."""
    report = mapping(info.get("report"))
    rows = report.get("table") if report.get("select", "gcv") in ("gcv", *HELD_OUT) else ()
    paths: dict[tuple[int, int, tuple[float, ...]], list[tuple[float, float]]] = {}
    for row in rows if isinstance(rows, Sequence) else ():
        entry = mapping(row)
        ridge, r2 = entry.get("ridge"), entry.get("r2")
        value = 1.0 - r2 if isinstance(r2, int | float) else entry.get("value")
        if isinstance(ridge, int | float) and isinstance(value, int | float) and not entry.get("ridges"):
            weights = tuple(float(weight) for weight in entry.get("manifold", ()))
            key = int(entry.get("candidate", 0)), int(entry.get("m", 0)), weights
            paths.setdefault(key, []).append((float(ridge), float(value)))
    kernels, counts, weighed = (len({key[place] for key in paths}) > 1 for place in range(3))
    names = {
        (number, m, weights): (kernel_name(info.get("kernels"), number) if kernels else "this kernel")
        + (f", {m:,} features" if counts else "")
        + (f", manifold {', '.join(f'{weight:g}' for weight in weights)}" if weighed else "")
        for number, m, weights in paths
    }
    held_out = report.get("select") in HELD_OUT
    return [Candidate(names[key], tuple(scores), held_out) for key, scores in sorted(paths.items())]


def kernel_name(names: object, number: object) -> str:
    """What tells a kernel of a job's list from the others: of the `names` that the model has, or its number."""
    place = number if isinstance(number, int) else 0
    return str(sequence(names)[place]) if 0 <= place < len(sequence(names)) else f"kernel {place + 1}"


def criterion(candidates: Sequence[Candidate]) -> Criterion:
    """What the roots of the scores are."""
    return criterion_of("kfold") if any(one.held_out for one in candidates) else _ERROR


def choice_plot(candidates: Sequence[Candidate], subject: Subject) -> bytes | None:
    """The root of the scores against the ridge, the best marked; None where there is no line to draw."""
    drawn = sorted((one for one in candidates if len(one.finite) > 1), key=lambda one: one.best[1])[:MOST_LINES]
    if not drawn:
        return None
    trials = [(one.label, 0, ridge, value) for one in drawn for ridge, value in one.scores]
    ridge, root = drawn[0].best
    return trial_plot(trials, criterion(drawn), (ridge, root**2), common_unit(subject.targets))


def trial_plot(
    trials: Sequence[tuple[str, int, float, float]], criterion: Criterion, winner: Point, unit: str | None = None
) -> bytes:
    """A PNG of the values of trials (kernel's name, m, ridge, minimised value) against the ridge, `winner` (ridge,
    value) marked; of more kernels or m than colours or styles the best. InputError where no value is a number."""
    trials = [trial for trial in trials if math.isfinite(criterion.shown(trial[3]))]
    if not trials:
        raise InputError("path plot: none of the trials has a score that is a number; try larger ridges")
    colours = dict(zip(_best([(kernel, value) for kernel, _, _, value in trials], LINES), LINES, strict=False))
    counts = _best([(m, value) for _, m, _, value in trials], STYLES)
    styles = dict(zip(sorted(counts, reverse=True), STYLES, strict=False))
    paths: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for kernel, m, ridge, value in trials:
        if kernel in colours and m in styles:
            paths.setdefault((kernel, m), []).append((ridge, criterion.shown(value)))
    figure = new_figure(9.5, 5.2)
    axes = figure.add_subplot()
    for (kernel, m), points in paths.items():
        ridges, values = zip(*sorted(points), strict=True)
        axes.plot(ridges, values, ls=styles[m], marker="o", ms=3, lw=1.4, color=colours[kernel])
    best, least = winner[0], criterion.shown(winner[1])
    axes.plot([best], [least], "o", ms=13, mfc="none", mew=2.0, color=ACCENT, zorder=5)
    axes.annotate(f"best: {least:.5g}", (best, least), (0, -22), textcoords="offset points", ha="center", color=ACCENT)
    scores = [value for points in paths.values() for _, value in points]
    if min(scores) > 0 and max(scores) > 10 * min(scores):
        axes.set_yscale("log")
    _scale(axes, [ridge for points in paths.values() for ridge, _ in points])
    label_axes(axes, ColumnLabel("ridge"), criterion.axis + (f" ({unit})" if unit and criterion.in_units else ""))
    axes.margins(y=0.12)
    axes.grid(color=FAINT, alpha=0.3, lw=0.6)
    lines = [Line2D([], [], color=colour, lw=2.2, label=drawable(kernel)) for kernel, colour in colours.items()]
    if len(styles) > 1:
        lines += [Line2D([], [], color=INK, ls=style, lw=1.4, label=f"m = {m:,}") for m, style in styles.items()]
    axes.legend(handles=lines, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, labelcolor=INK)
    return png(figure)


def _best(found: Sequence[tuple[T, float]], most: Sequence[str]) -> list[T]:
    """The first things, in the order they came, of those with the least values."""
    least: dict[T, float] = {}
    for one, value in found:
        least[one] = min(value, least.get(one, math.inf))
    kept = sorted(least, key=lambda one: least[one])[: len(most)]
    return [one for one in least if one in kept]


def _scale(axes: Axes, ridges: Sequence[float]) -> None:
    """Ridges on a logarithmic axis, a ridge of zero too; room about a single one."""
    if min(ridges) == max(ridges) > 0:
        axes.set_xlim(min(ridges) / 10, 10 * min(ridges))
    if min(ridges) > 0:
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=min((one for one in ridges if one > 0), default=1.0))
