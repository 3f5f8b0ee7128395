"""Results as sentences."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dorff.cli.guard import rows_of, size

if TYPE_CHECKING:
    from dorff.fit import FitReport
    from dorff.predict import Scores

SHOWN: Final = 12  # of many values
MANY: Final = 4  # features a row: more than a feature map is for


def fit_text(report: "FitReport", weights: Sequence[Sequence[float]] = (), *, classes: bool = False) -> str:
    """A fit in one line; `weights` are those tried of each manifold term, `classes`: the targets are such."""
    if report.outcome == "unchanged":
        count = report.leaves_computed
        again = f", its sums of {count:,} lea{'f' if count == 1 else 'ves'} made again" if count else ""
        stays = f"the model of {report.rows_used:,} rows stays{again}{_scored(report, classes)}"
        return f"fit: nothing new: {stays}; {report.seconds:.1f} s; model {report.model}"
    alone = "".join(  # a list of edges may be of fewer rows than there are
        f", {lonely:,} of {graph['rows']:,} without an edge in the graph of manifold term {number}"
        for number, graph in enumerate(report.graphs, 1)
        if (lonely := graph.get("rows_without_edges"))
    )
    # Terms see more rows than those with targets, and an exact model has none.
    crowd = "" if report.manifold else crowd_text(report.m, report.rows_used)
    before = "sums of targets done before" if report.graphs else "the sums of all rows were in the state"
    of = "of the syrk limit" if report.kernel_error is None else "of it in the sums"
    share = before if report.syrk_share is None else f"{report.syrk_share:.0%} {of}"
    winner = f", kernel[{report.kernel}]" if len({row["candidate"] for row in report.table}) > 1 else ""
    read = size(report.buckets.get("bytes_read", 0))
    asked = f"{report.buckets.get('requests', 0):,} requests of buckets, {read} read; "
    peak = "peak memory not measured" if report.peak_bytes is None else f"peak memory {size(report.peak_bytes)}"
    return (
        f"fit: {report.rows_used:,} rows used, {_dropped(report)}{alone}{_rewritten(report)}; "
        f"{report.seconds:.1f} s, {share}; {asked if report.buckets else ''}{peak} of "
        f"{size(report.plan_peak_bytes)} planned; {report.m:,} features, condition {report.condition:.2g} "
        f"({report.rung}, {report.status}), ridge {report.ridge:.3g}{winner}{_weighed(report, weights)}{_tuned(report)}"
        f"{_scored(report, classes)}; model {report.model}{_guessed(report)}"
        f"{f'; {crowd}' if crowd else ''}"
    )


def choices_text(choices: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What dorff chose of what the job leaves out, by its key, and why; a box with all digits, to be copied."""

    def shown(value: Any, form: Callable[[float], str]) -> str:
        if isinstance(value, dict):
            return shown([f"{name}: {shown(one, form)}" for name, one in value.items()], form)
        if isinstance(value, list | tuple):
            return ", ".join(shown(one, form) for one in value[:SHOWN]) + (", ..." if len(value) > SHOWN else "")
        if isinstance(value, float):
            return form(value)
        return str(value).lower() if value is None or isinstance(value, bool) else str(value)

    forms = {"data.box": repr}
    texts = {one["key"]: shown(one["value"], forms.get(one["key"], "{:.3g}".format)) for one in choices}
    return {one["key"]: f"{texts[one['key']]}  ({one['why']})" for one in choices}


def quality_text(quality: Mapping[str, Any] | None) -> dict[str, str]:
    """How good each target or class is on held-out rows, by its name; that of the worst first where there are many."""
    if quality is None:
        return {}
    if quality.get("accuracy") is not None:
        classes = sorted(quality["classes"], key=lambda one: math.inf if one["recall"] is None else one["recall"])
        kept = quality["classes"] if len(classes) <= SHOWN else classes[:SHOWN]
        known = f"{quality['accuracy']:.4f} (most frequent class {quality['accuracy_frequent']:.4f})"
        each = {one["label"]: f"recall {_number(one['recall'])} of {one['rows']:,} rows" for one in kept}
        whole = {"held-out accuracy": f"{known}, {quality['rows']:,} rows"}
        return whole | {f"held-out {label}": text for label, text in each.items()}
    outputs = sorted(quality["outputs"], key=lambda one: -math.inf if one["r2"] is None else one["r2"])
    kept = quality["outputs"] if len(outputs) <= SHOWN else outputs[:SHOWN]
    return {
        f"held-out {one['target']}": f"R2 {_number(one['r2'])} (linear model {_number(one['r2_linear'])}, own rows "
        f"{_number(one['r2_train'])})  rmse {_number(one['rmse'], 'g')} (mean {_number(one['rmse_mean'], 'g')})"
        for one in kept
    }


def bands_text(bands: Mapping[str, Any] | None) -> dict[str, str]:
    """Of which new rows conformal bands hold what they say; nothing where there are none."""
    return {} if bands is None else {"conformal bands": f"hold of {bands['scope']}"}


def encoded_text(encoding: Mapping[str, Sequence[str]]) -> str:
    """How an input that is no number became columns."""
    kind, words = next(iter(encoding.items()))
    if kind in ("time", "cycle"):
        cycles = "(its cycles, where they matter: add :day, :week or :year to its name)"
        return f"{words[0]} {cycles}" if kind == "time" else f"sine and cosine of the {words[0]}"
    return f"{len(words):,} {'categories' if kind == 'one_hot' else 'in order'}"


def patterns_text(kept: Sequence[str] | None) -> str:
    """What becomes of rows that miss targets; `kept` are the patterns that were chosen, where they were."""
    from dorff.moments import MOST_PATTERNS

    if kept is None:
        more = "where there are more, the commonest of the first leaf, and rows of others are dropped and counted"
        return f"of rows that miss some, {MOST_PATTERNS} patterns of what is there have sums; {more}"
    every = ", ".join(pattern or "all" for pattern in kept)
    return f"rows count whose pattern of what is there (1) and missing (0) is one of {every}; others are dropped"


def crowd_text(m: int, rows: int) -> str:
    """A word of warning where there are far more features than rows; "" elsewhere."""
    if m <= MANY * rows:
        return ""
    better = "an exact kernel model of so few rows is smaller and has no error of features (dorff.exact.ExactRidge)"
    return f"{m:,} features for {rows:,} rows: {better}; take it, or lower features.count to {MANY * rows:,} or less"


def _dropped(report: "FitReport") -> str:
    """Rows that the targets' sums are without; manifold terms see those of them whose inputs are finite."""
    unlabelled = f"{report.rows_unlabelled:,} unlabelled, " if report.rows_unlabelled else ""
    still = " from the targets (manifold terms still see those of finite inputs)"
    some = f", those among them that miss targets in other ways than the {len(report.patterns or ())} that have sums"
    dropped = f"{report.rows_dropped:,} dropped{some if report.patterns else ''}"
    return f"{unlabelled}{dropped}{still if report.manifold and report.rows_dropped else ''}"


def _weighed(report: "FitReport", weights: Sequence[Sequence[float]]) -> str:
    pairs = zip(report.manifold, weights or [()] * len(report.manifold), strict=True)
    parts = [f"{weight:.3g}{_at_the_edge(weight, tried if weight else ())}" for weight, tried in pairs]
    return f", manifold {'weight' if len(parts) == 1 else 'weights'} {', '.join(parts)}" if parts else ""


def term_text(term: Mapping[str, Any], unlabelled: object = None) -> str:
    """A manifold term as a job says it; `unlabelled` is the path of the second data set, where there is one."""
    graph, weight = term["graph"], term["weight"]
    known = {
        "knn": "{neighbours} nearest neighbours within the {within}, {weights} weights",
        "given": "the graph {path}",
        "identity": "agreement between views" if term["between"] else "every row by itself",
    }
    what = known.get(graph["type"], "the graph {type}").format_map(graph)
    view = f"view {term['view']}: " if term["view"] is not None else ""
    power = f" to the power {term['power']}" if term["power"] > 1 else ""
    linked = ", appended rows linked" if graph.get("append") == "link" else ""
    form = f" by {term['form']}" if term["form"] != "auto" else ""
    shape = "" if graph["type"] == "identity" else f"{linked}, {term['laplacian']} Laplacian{power}{form}"
    several = weight if isinstance(weight, list | tuple) else [weight]
    numbers = ", ".join(f"{one:.3g}" for one in several)
    mean = " (scale: mean)" if term["scale"] == "mean" else ""
    more = f", rows of {unlabelled} too" if unlabelled is not None and graph["type"] != "given" else ""
    return f"{view}{what}{shape}, weight{'s' if len(several) > 1 else ''} {numbers}{mean}{more}"


def _rewritten(report: "FitReport") -> str:
    """Leaves that had other rows before."""
    if not (changed := report.rewritten):
        return ""
    shown = ", ".join(map(str, changed[:8])) + (", ..." if len(changed) > 8 else "")
    return f", those of lea{'f' if len(changed) == 1 else 'ves'} {shown} rewritten since they were first used"


def _scored(report: "FitReport", classes: bool) -> str:
    """How good the model is on held-out rows, and by what."""
    if report.score is None:
        return ""
    accuracy = classes and report.score_by == "holdout"
    name, of = ("accuracy", "") if accuracy else ("R2", " of one-hot rows" if classes else f", {report.r2_of}")
    seen = ", which the graphs see" if report.score_by == "kfold" and any(report.manifold) else ""
    other = "" if accuracy or classes else _other_r2(report)
    return f", held-out {name} {report.score:.4f}{of}{seen} ({report.score_by}{other})"


def _other_r2(report: "FitReport") -> str:
    """Held-out R2 by the definition that the score is not of, where there are several outputs."""
    quality = report.quality or {}
    by_definition = quality.get("r2_by_definition") or {}
    if len(quality.get("outputs", ())) < 2 or report.score_by == "holdout":
        return ""
    others = [(name, value) for name, value in by_definition.items() if name != report.r2_of and value is not None]
    return "".join(f"; {name} {value:.4f}" for name, value in others)


def _guessed(report: "FitReport") -> str:
    """A word of warning where rows were to be held out to calibrate probabilities, and none could be."""
    if report.held_by is None or report.folds > 1:
        return ""
    remedy = "label more rows" if report.held_by == "rows" else "set solve.folds.by: rows, or label more rows"
    why = f"no row was held out, for all that are labelled are in one fold of {report.held_by}"
    return f"; its probabilities are not calibrated: {why}: {remedy}"


def _at_the_edge(best: float, tried: Sequence[float]) -> str:
    """A word of warning where the best is the last one tried on its side."""
    if len(set(tried)) < 2 or min(tried) < best < max(tried):
        return ""
    return f" (the {'smallest' if best == min(tried) else 'largest'} tried: list ones beyond it)"


def _tuned(report: "FitReport") -> str:
    """The length-scale that was found, and a word of warning where the search was not a plain success."""
    if report.tuned is None or not report.lengthscale_in_units:
        return ""
    from dorff.plan.lengthscale import lengths_text

    warning = "" if report.tuned == "converged" else f" ({report.tuned})"
    return f", length-scale {lengths_text(report.lengthscale_in_units[0])}{warning}"


def score_text(scores: "Scores") -> str:
    """A line for all outputs together, and one for each."""
    dropped = "" if scores.weights is None else f" by {scores.weights}"
    if scores.rows_dropped:
        dropped += f", {scores.rows_dropped:,} left out (dropped, of weight 0, or with NaN or infinity)"
    each = scores.per_output.items()
    outputs = {name: f"r2 {_number(one['r2'])}  rmse {one['rmse']:.6g}" for name, one in each}
    if scores.accuracy is not None:
        loss = "" if scores.log_loss is None else f"  log loss {scores.log_loss:.4f}"
        loss += "" if scores.loss is None else f"  loss {scores.loss:.4f}"
        return f"{scores.rows:,} rows{dropped}: accuracy {scores.accuracy:.4f}{loss}"
    bands = {
        f"inside {100 * float(level):g}% ({kind})": f"{100 * shares[kind]:.1f}%  "
        + "  ".join(f"{name} {100 * each[kind]:.1f}%" for name, each in shares["per_output"].items())
        for level, shares in (scores.coverage or {}).items()
        for kind in ("plain", "conformal")
        if shares[kind] is not None
    }
    others = {} if scores.r2_by_definition is None else scores.r2_by_definition
    also = "".join(f"; {name} {_number(value)}" for name, value in others.items() if name != scores.r2_of)
    of = f" ({scores.r2_of}{also})" if len(outputs) > 1 else ""
    together = f"r2 {_number(scores.r2)}{of}  rmse {scores.rmse:.6g}"
    together += "" if scores.loss is None else f"  loss {scores.loss:.6g}"
    below = {f"below the quantiles of {name}": shares_text(each) for name, each in (scores.below or {}).items()}
    return rows_of({f"all ({scores.rows:,} rows{dropped})": together, **outputs, **bands, **below})


def shares_text(shares: Mapping[str, float]) -> str:
    """Of quantiles, the share of targets below each."""
    return "  ".join(f"{quantile}: {100 * share:.1f}%" for quantile, share in shares.items())


def loss_text(loss: Mapping[str, Any] | None) -> dict[str, str]:
    """What a fit by another loss than the square came to."""
    if loss is None:
        return {}
    held = "" if loss["held_out_loss"] is None else f", of rows held out {loss['held_out_loss']:.4g}"
    text = f"{loss['mean_loss']:.4g} a row{held}; {loss['passes']:,} passes ({loss['solver']}), "
    if loss["objective"] is None:
        text += "rows of the last one each before its step"
    else:
        text += f"about {loss['left'] / abs(loss['objective'] or 1.0):.1g} of the objective left to gain"
    below = loss.get("below") or {}
    named = below.items() if isinstance(below, Mapping) else enumerate(below)
    return {"loss": text} | {f"held out, below the quantiles of {name}": shares_text(each) for name, each in named}


def _number(value: float | None, form: str = "f") -> str:
    return "unknown" if value is None else f"{value:.4{form}}"
