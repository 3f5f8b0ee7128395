"""`dorff tune`: the best kernel, number of features and ridge of a job, from one pass over the data."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dorff.cli.guard import Allow, JobFile, Json, Metrics, Policy, Root, option, read_job, show, warn
from dorff.cli.metrics import Progress, meter, recorded
from dorff.errors import InputError

if TYPE_CHECKING:
    from dorff.fit.tune import Trial, TuneResult
    from dorff.spec.job import Job

FEW_DIGITS = 3


def tune(
    job: JobFile,
    out: Annotated[Path | None, option("-o", "--out", metavar="DIR", help="If not JOB-tune, beside the job.")] = None,
    root: Root = None,
    allow: Allow = None,
    policy: Policy = None,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Choose among the kernels, feature counts and ridges that a job lists, from one pass over the data.

    Writes DIR/best.yaml, the job with the winner alone, which `dorff fit` takes without reading the data again; every
    trial in DIR/path.csv, and drawn in DIR/path.png."""
    from dorff.fit.choice import kernel_names
    from dorff.spec.checks import AUTO
    from dorff.store import check_output

    folder = job.with_name(f"{job.stem}-tune") if out is None else out
    read = partial(read_job, job, root, allow, policy)
    with recorded(metrics, "tune", job, read) as figures:
        described = read()
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--out {folder}: is a file; name a folder, which need not exist yet")
        if root is not None and out is None and not folder.resolve().is_relative_to(root.resolve()):
            raise InputError(f"{folder}: is a link that leads out of the root {root}; remove it, or give --out")
        for name in ("best.yaml", "path.csv", "path.png"):
            check_output(folder / name)
        tuned = _tuned(described)
        names = kernel_names([kernel.model_dump(mode="json") for kernel in described.kernels])
        files = _write(folder, job, described, tuned, names)
        figures.update(trials=len(tuned.table), reads=tuned.reads, ridge=tuned.trial.ridge, digits=tuned.trial.digits)
    warn([*tuned.warnings, *_warnings(tuned, auto=described.solve.ridge == AUTO)])
    best = {**asdict(tuned.trial), "name": names[tuned.trial.kernel], "select": described.criterion}
    result = {"best": best, "files": files, "table": [asdict(trial) for trial in tuned.table]}
    for name in ("warnings", "reads", "pass_seconds", "grid_seconds", "r2_of"):
        result[name] = getattr(tuned, name)
    show(result, _sentence(described, tuned, names, files), as_json=as_json)


def _tuned(described: "Job") -> "TuneResult":
    """The pass and the grid, one bar after the other."""
    from dorff.fit.tune import tune as run

    with ExitStack() as shown:
        progress = shown.enter_context(meter("tune: pass"))
        grid: list[Progress] = []

        def told(done: int, total: int) -> None:
            if not grid:
                shown.close()
                grid.append(shown.enter_context(meter("tune: grid", "trials")))
            grid[0](done, total)

        return run(described, progress=progress, told=told)


def _write(folder: Path, job: Path, described: "Job", tuned: "TuneResult", names: Sequence[str]) -> dict[str, Path]:
    import yaml

    from dorff.report import trial_plot
    from dorff.solvers import criterion_of
    from dorff.store import write_atomic

    head = f"# The best of what `dorff tune {job.name}` tried; `dorff fit` of it uses the same moments.\n"
    best = tuned.best.model_dump(mode="json", exclude_unset=True)
    single = [trial for trial in tuned.table if trial.ridges is None]  # lines of one ridge for all outputs
    contents = {
        "best.yaml": (head + yaml.safe_dump(best, sort_keys=False, allow_unicode=True)).encode(),
        "path.csv": _csv(tuned.table, names),
        "path.png": trial_plot(
            [(_named(t, names), t.m, t.ridge, t.least) for t in single or tuned.table],
            criterion_of(described.criterion),
            (tuned.trial.ridge, tuned.trial.least),
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomic(folder / name, [content], sync=False)
    return {name.split(".")[0] if name == "best.yaml" else name.replace(".", "_"): folder / name for name in contents}


def _named(trial: "Trial", names: Sequence[str]) -> str:
    """What tells a line of the plot: the kernel, and the weights of manifold terms."""
    weights = ", ".join(f"{weight:.3g}" for weight in trial.manifold)
    return names[trial.kernel] + (f", weights {weights}" if weights else "")


def _csv(table: "Sequence[Trial]", names: Sequence[str]) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["kernel", "name", "m", "manifold", "ridge", "ridges", "value", "rung", "digits", "r2", "error"])
    for trial in table:
        each, weights = (" ".join(map(repr, several or ())) for several in (trial.ridges, trial.manifold))
        left = "" if trial.digits is None else f"{trial.digits:.1f}"
        start = [trial.kernel, names[trial.kernel], trial.m, weights, repr(trial.ridge)]
        last = ["" if one is None else repr(one) for one in (trial.r2, trial.error)]
        rows.writerow([*start, each, repr(trial.value), trial.rung, left, *last])
    return text.getvalue().encode()


def _warnings(tuned: "TuneResult", *, auto: bool) -> Iterator[str]:
    """Where the best is at an end of what was tried (`auto` ridges go on past it), or rounding may have chosen it."""
    best = tuned.trial
    if best.digits is not None and best.digits < FEW_DIGITS:
        problem = f"keeps only {best.digits:.1f} decimal digits: its score may be rounding rather than the data"
        remedy = "`dorff fit` of best.yaml takes the QR of the features, which keeps more (or list larger ridges)"
        yield f"the best trial {problem}; {remedy}"
    chosen = best.ridges or (best.ridge,)
    tried = sorted({trial.ridge for trial in tuned.table if trial.ridges is None and not auto})
    if len(tried) > 1 and min(chosen) <= tried[0]:
        yield f"the best ridge, {tried[0]:.3g}, is the smallest tried; list smaller ones"
    if len(tried) > 1 and max(chosen) >= tried[-1]:
        yield f"the best ridge, {tried[-1]:.3g}, is the largest tried; list larger ones"
    for number, weight in enumerate(best.manifold):
        weights = sorted({trial.manifold[number] for trial in tuned.table})
        if len(weights) > 1 and weight > 0 and weight in (weights[0], weights[-1]):
            side, more = ("smallest", "smaller") if weight == weights[0] else ("largest", "larger")
            yield f"the best weight of manifold term {number + 1}, {weight:.3g}, is the {side} tried; list {more} ones"
    counts = {trial.m for trial in tuned.table if trial.kernel == best.kernel}
    if len(counts) > 1 and best.m == max(counts):
        yield f"the best number of features, {best.m:,}, is the largest tried; more may be better still"


def _sentence(described: "Job", tuned: "TuneResult", names: Sequence[str], files: Mapping[str, Path]) -> str:
    from dorff.solvers import criterion_of

    best, criterion = tuned.trial, criterion_of(described.criterion)
    kernel = f"kernel[{best.kernel}] of {len(names)} ({names[best.kernel]}), " if len(names) > 1 else ""
    ridge = f"ridge {best.ridge:.3g}" if best.ridges is None else f"a ridge for each output about {best.ridge:.3g}"
    weights = "".join(f"manifold weight {weight:.3g}, " for weight in best.manifold)
    score = f"{criterion.axis} {criterion.shown(best.least):.6g}"
    value = score if best.r2 is None else f"R2 {best.r2:.4f}, {tuned.r2_of}"
    read = "not read, its moments were there" if tuned.reads == 0 else f"read {tuned.reads:.3g} times"
    winner = f"by {criterion.title} is {kernel}{weights}{ridge}, {best.m:,} features: {value}"
    took = f"data {read}, {tuned.pass_seconds:.1f} s; trials {tuned.grid_seconds:.1f} s"
    return f"tune: the best of {len(tuned.table):,} trials {winner}; {took}; fit it with: dorff fit {files['best']}"
