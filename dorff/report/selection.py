"""How kernel and ridge were chosen: scores against the ridge, a line a candidate, of a fit or of a grid of trials."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dorff.errors import InputError
from dorff.report.describe import ColumnLabel, Subject, common_unit, mapping, sequence
from dorff.report.figures import ACCENT, FAINT, INK, LINES, drawable, label_axes, new_figure, png
from dorff.solvers.scores import Criterion, criterion_of, root

MOST_LINES: Final = 8

_ERROR: Final = Criterion("error", "root mean squared error", root, in_units=True)


@final
@dataclass(frozen=True)
class Candidate:
    """A kernel that was tried: what to call it, and its (ridge, mean squared error) pairs; or, by `held_out`, pairs of
    a ridge and 1 - R2 on held-out rows."""

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
    features and weights of manifold terms; none where the report has none, or scores that are no errors, such as
    evidences."""
    report = mapping(info.get("report"))
    rows = report.get("table") if report.get("select", "gcv") in ("gcv", "kfold") else ()
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
    held_out = report.get("select") == "kfold"
    return [Candidate(names[key], tuple(scores), held_out) for key, scores in sorted(paths.items())]


def kernel_name(names: object, number: object) -> str:
    """What tells a kernel of a job's list from the others: of the `names` that the model has, or its number."""
    place = number if isinstance(number, int) else 0
    return str(sequence(names)[place]) if 0 <= place < len(sequence(names)) else f"kernel {place + 1}"


def measure(candidates: Sequence[Candidate]) -> str:
    """What the roots of the scores are."""
    return _criterion(candidates).axis


def _criterion(candidates: Sequence[Candidate]) -> Criterion:
    return criterion_of("kfold") if any(one.held_out for one in candidates) else _ERROR


def choice_plot(candidates: Sequence[Candidate], subject: Subject) -> bytes | None:
    """The root of the scores against the ridge, the best marked; None where there is no line to draw."""
    drawn = sorted((one for one in candidates if len(one.finite) > 1), key=lambda one: one.best[1])[:MOST_LINES]
    if not drawn:
        return None
    trials = [(one.label, 0, ridge, value) for one in drawn for ridge, value in one.scores]
    ridge, root = drawn[0].best
    return trial_plot(trials, _criterion(drawn), (ridge, root**2), common_unit(subject.targets))


T = TypeVar("T", bound=Hashable)
STYLES: Final = ("-", "--", "-.", ":")


def trial_plot(
    trials: Sequence[tuple[str, int, float, float]],
    criterion: Criterion,
    winner: tuple[float, float],
    unit: str | None = None,
) -> bytes:
    """A PNG of the values of trials (kernel's name, m, ridge, minimised value) against the ridge, `winner` (ridge,
    value) marked; of more kernels or m than there are colours or styles the best. InputError where no trial has a
    value that is a number."""
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
    label = criterion.axis + (f" ({unit})" if unit and criterion.in_units else "")
    label_axes(axes, ColumnLabel("ridge"), label)
    axes.margins(y=0.12)
    axes.grid(color=FAINT, alpha=0.3, lw=0.6)
    _legend(axes, colours, styles)
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


def _legend(axes: Axes, colours: Mapping[str, str], styles: Mapping[int, str]) -> None:
    """A line for each kernel and, where there are several, for each m."""
    lines = [Line2D([], [], color=colour, lw=2.2, label=drawable(kernel)) for kernel, colour in colours.items()]
    if len(styles) > 1:
        lines += [Line2D([], [], color=INK, ls=style, lw=1.4, label=f"m = {m:,}") for m, style in styles.items()]
    place = (1.01, 0.5)
    axes.legend(handles=lines, loc="center left", bbox_to_anchor=place, frameon=False, fontsize=9, labelcolor=INK)
