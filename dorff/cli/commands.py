"""The commands. Each imports what it needs when it runs, so that `--help` is quick."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dorff.cli.fitting as fitting
import dorff.cli.guard as options
import dorff.cli.tuning as tuning
from dorff import __version__
from dorff.cli.file_options import FileOptions, with_file_options
from dorff.cli.guard import P, Style, guarded, logging, put, say, show
from dorff.cli.metrics import meter
from dorff.cli.sentences import score_text
from dorff.errors import InputError

if TYPE_CHECKING:
    from dorff.engine import Engine

Names = Sequence[str] | None
_TARGETS = "Arrays of targets (y; of classes classes), of files columns: those of the model, if left out."

app = typer.Typer(
    name="dorff",
    help="Vector-valued kernel models of data larger than memory, by random Fourier features.",
    epilog=(
        "Exit codes: 0 done, 1 a bug, 2 usage, 3 bad input, 4 would not fit, 5 incomplete (run it again to go on), "
        "6 a gate refused the new model, 7 another run holds the lease."
    ),
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(*, goes_on: bool = False) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command; `goes_on`: stopped, it goes on from there when run again."""
    return lambda function: app.command(cls=options.Command)(guarded(function, goes_on=goes_on))


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=lambda on: _version(on))] = False,
    log: Annotated[Style, typer.Option(envvar="DORFF_LOG", help="Lines on stderr: sentences or JSON.")] = Style.TEXT,
) -> None:
    context.with_resource(logging(log, context.invoked_subcommand or ""))


@command(goes_on=True)
def demo(
    directory: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="Where to write, or dorff-demo.")] = None,
    as_json: options.Json = False,
) -> None:
    """Run the whole job on the ocean drifters that ship with dorff: data, fit, choice, predictions, a page."""
    from dorff.cli.demo import run_demo

    with meter("demo") as progress:
        result = run_demo(directory, echo=say if as_json else put, progress=progress)
    if as_json:
        show(asdict(result), "", as_json=True)


command()(fitting.ingest)


@command()
def verify(store: options.Store, as_json: options.Json = False) -> None:
    """List every missing or damaged chunk; exit code 3 if there is any."""
    from dorff.data import verify as run

    faults = run(store)
    lines = [f"{fault.array}  {fault.chunk}  {fault.kind}" for fault in faults]
    show([asdict(fault) for fault in faults], "\n".join(lines) or f"{store}: whole", as_json=as_json)
    if faults:
        remedy = "restore them from a copy or ingest again"
        say(f"dorff: {store}: missing or damaged chunks: {len(faults)}; {remedy}", "error")
        raise typer.Exit(InputError.exit_code)


command()(fitting.plan)
command(goes_on=True)(fitting.fit)
command(goes_on=True)(tuning.tune)


@command(goes_on=True)
@with_file_options
def predict(
    model: options.ModelPath,
    store: Annotated[Path, options.at(metavar="IN", help="The data set, or file of rows, with the inputs.")],
    out: Annotated[Path, options.at(metavar="OUT", help="OUT.zarr, with the array y, or OUT.csv, or OUT.nc.")],
    inputs: options.Inputs = "",
    views: options.Views = "",
    rename: options.Rename = "",
    std: Annotated[bool, typer.Option("--std", help="Standard deviations too, of what is predicted.")] = False,
    noise: Annotated[bool, typer.Option("--noise", help="With --std: of new targets, noise in them.")] = False,
    bands: options.Bands = "",
    *,
    files: FileOptions,
    workers: options.Workers = 2,
    as_json: options.Json = False,
) -> None:
    """Write the model's predictions for a data set, or a file that ingest reads, into a new one.

    OUT.csv and OUT.nc hold the inputs too, OUT.nc on the grid of a file that has one, and of a target u the columns
    u_predicted, u_std, u_low_95 and u_high_95 (of quantiles u_q5). Of a classifier y holds the classes' probabilities
    (f itself, where not calibrated), in columns red_probability (red_decision), and an array classes the code of the
    likeliest (column class_predicted); labels are in the attributes. --std adds an array std, of the function itself or
    of rates and probabilities (red_std), of losses that are likelihoods; --bands 0.95 adds low_95 and high_95, always
    with noise: conformal where the job had solve.conformal, else plain (the attribute dorff.uncertainty says which).
    --views takes the mean of some of a model's views, reading their arrays alone.
    --missing, --units, --unknown-zero, --where and those of text are of files, as in ingest; --where has the names of
    IN, and OUT the rows that hold. Columns in other units than the model's are converted, where the data say units.
    --rename longitude=lon: what IN calls longitude is the model's lon."""
    import dorff.predict as predicting
    from dorff.data.nodes import group_attributes
    from dorff.predict.renaming import Renaming
    from dorff.predict.tables import TableOptions, Tables
    from dorff.store import load_model, resolve_model

    extra = predicting.Uncertainty(std, noise, tuple(options.level(text) for text in options.names("--bands", bands)))
    named, some = options.names("--inputs", inputs) or None, options.names("--views", views) or None
    each, wanted = (1 + std + 2 * len(extra.bands), 0), extra.option if extra else ""
    renaming = Renaming.parse(options.names("--rename", rename))
    tell_units = _tell_once(store)
    tables = TableOptions(**files.arguments(), renaming=renaming, notice=tell_units)
    with Tables.opened(model, store, out, asked=extra, options=tables, arrays=named, views=some) as table:
        arrays, place = table.inputs or named, table.store
        with _engine(workers, model, place, (arrays, some), wanted, each) as (engine, peak), meter("predict") as tell:
            model = resolve_model(model)  # which another fit may replace meanwhile
            rows = predicting.predict(
                model, place, table.out, engine=engine, inputs=arrays, uncertainty=extra, views=some,
                renaming=renaming, progress=tell, notice=tell_units,
            )  # fmt: skip
        written = group_attributes(table.out)["dorff"]
        empty, far = written[predicting.NAN_ROWS], written.get(predicting.REPEATING_ROWS, 0)
        table.finish(model, arrays, some)
    if empty:
        say(f"dorff: {out}: {empty:,} of {rows:,} rows are NaN, as their inputs hold NaN or infinity", "warning")
    if far:
        say(f"dorff: {store}: {load_model(model, posterior=False).beyond(far, rows)}", "warning")
    text = f"{out}: {rows:,} rows of y{', std' if std else ''}{', bands' if bands else ''}"
    show({"rows": rows, predicting.NAN_ROWS: empty, "store": str(out), "plan_peak_bytes": peak}, text, as_json=as_json)


@command()
@with_file_options
def score(
    model: options.ModelPath,
    data: Annotated[list[Path], options.at(metavar="DATA...", help="The data set, or files of rows.")],
    inputs: options.Inputs = "",
    views: options.Views = "",
    rename: options.Rename = "",
    targets: Annotated[str, options.option(metavar="U,V", help=_TARGETS)] = "",
    *,
    files: FileOptions,
    coverage: Annotated[bool, typer.Option("--coverage", help="Targets inside bands of 50 to 99%, too.")] = False,
    pooled: options.Pooled = False,
    mean: options.Mean = False,
    workers: options.Workers = 2,
    as_json: options.Json = False,
) -> None:
    """How far predictions are from the targets of a data set, or of files: R2 and RMSE, of each output too; accuracy
    of classes.

    DATA is a data set, or any files that ingest reads, one below the other: columns are found by the names that the
    model has for them (--rename longitude=lon: what they call longitude is lon), and read as in ingest, into a
    temporary data set (in TMPDIR).

    R2 is the mean of the outputs', each over its own deviation; with kernels of vector fields, whose components are of
    one unit, and of classes it is pooled over the outputs. To compare models of both kinds say which. Rows count by
    the weights that the model was fitted by, where the data have a column of that name (--json: `weights`).

    --coverage: of plain bands (the posterior's, noise in them) and of conformal ones, where the model has them."""
    from dorff.predict import COVERAGE_LEVELS, ROWS
    from dorff.predict import score as run
    from dorff.predict.renaming import Renaming
    from dorff.predict.tables import TableOptions, rows_to_score
    from dorff.solvers import R2
    from dorff.store import load_model

    arrays, some = options.names("--inputs", inputs) or None, options.names("--views", views) or None
    if pooled and mean:
        raise InputError("--pooled and --mean: are two kinds of R2; give one")
    wanted, of = "--coverage" if coverage else "", R2.POOLED if pooled else R2.MEAN if mean else None
    named, renaming = options.names("--targets", targets), Renaming.parse(options.names("--rename", rename))
    tell_units = _tell_once(data[0])
    tables = TableOptions(**files.arguments(), renaming=renaming, notice=tell_units)
    with rows_to_score(model, data, named, options=tables, arrays=arrays, views=some) as rows:
        reads = (rows.inputs, some)
        with _engine(workers, model, rows.store, reads, wanted, (6, ROWS)) as (engine, _), meter("score") as progress:
            scores = run(
                model, rows.store, engine=engine, inputs=rows.inputs, targets=rows.targets, weights=rows.weights,
                labelled=rows.labelled, coverage=COVERAGE_LEVELS if coverage else (), views=some, r2_of=of,
                renaming=rows.renaming, progress=progress, notice=tell_units,
            )  # fmt: skip
    if far := scores.rows_repeating:
        say(f"dorff: {data[0]}: {load_model(model, posterior=False).beyond(far, scores.rows)}", "warning")
    figures = {name: value for name, value in asdict(scores).items() if value is not None or name == "weights"}
    show(figures, score_text(scores), as_json=as_json)


@command()
def report(
    model: options.ModelPath,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="PAGE.html", help="Where to write it.")] = None,
    as_json: options.Json = False,
) -> None:
    """Write a page with the model's figures and plots."""
    from dorff.data.output_names import check_ending
    from dorff.report import write_report

    if out is not None:
        check_ending(out, "a report", (".html", ".htm"))
    page = write_report(model, out)
    show({"report": str(page)}, str(page), as_json=as_json)


@command()
def inspect(
    path: Annotated[Path, options.at(metavar="PATH", help="A data set, a state directory or a model.")],
    as_json: options.Json = False,
) -> None:
    """Say what is at a path."""
    import yaml

    from dorff.cli.looking import look

    description = look(path)
    show(description, yaml.safe_dump(description, sort_keys=False).rstrip(), as_json=as_json)


command()(fitting.prune)
command()(fitting.trim)
command()(fitting.drop)
command()(fitting.credentials)


@command()
def schema() -> None:
    """Print the JSON Schema of job files, by which editors complete and check them."""
    from dorff.spec.reader import job_schema

    show(job_schema(), "", as_json=True)


@command()
def bench(
    d: Annotated[int, typer.Option("-d", help="Inputs.")] = 16,
    m: Annotated[int, typer.Option("-m", help="Features.")] = 1024,
    sampler: Annotated[str, typer.Option(help="Frequencies come from: orthogonal, rom, sorf ...")] = "orthogonal",
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    rows: Annotated[int | None, options.option(help="Rows of the larger fit, at least.")] = None,
    repeats: Annotated[int, typer.Option(help="Times that it is measured.")] = 3,
    as_json: options.Json = False,
) -> None:
    """Measure how near a fit comes to this machine's limit, bare BLAS syrk."""
    from dorff.cli.bench import bench as run

    result = run(d=d, m=m, sampler=sampler, workers=workers, rows=rows, repeats=repeats, echo=say)
    pace = f"{result.rows_per_s:,.0f} rows/s, {result.share:.3f} (worst {result.worst:.3f}) of bare syrk's"
    spent = f"{result.inside_syrk:.0%} of the workers' time is inside syrk, {result.in_features:.0%} goes to features"
    show(asdict(result), f"{pace} {result.syrk_rows_per_s:,.0f} rows/s; {spent}", as_json=as_json)


def _version(on: bool) -> None:
    if on:
        put(__version__)
        raise typer.Exit


def _tell_once(store: Path) -> Callable[[str], None]:
    """Return what says sentences about a data set or file, each of them once."""
    told: set[str] = set()

    def tell(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            say(f"dorff: {store}: {sentence}")

    return tell


@contextmanager
def _engine(
    workers: int, model: Path, store: Path, reads: tuple[Names, Names], wanted: str, each: tuple[int, int]
) -> "Iterator[tuple[Engine, int]]":
    """Local workers, as many as have a shard to read and fit this machine, and the most bytes that all processes need;
    one works in this process. They start when all is there, a posterior too where an option `wanted` needs one.
    `reads` are inputs and views; `each` how many numbers come of a row and output, and of how many rows at a time."""
    from dorff.data import open_dataset
    from dorff.engine import open_engine
    from dorff.predict import check_uncertain
    from dorff.predict.shared import ModelInputs, planned_workers
    from dorff.spec.cluster import LocalCluster, SerialCluster
    from dorff.store import load_model

    fitted = load_model(model, posterior=bool(wanted))
    if wanted:
        check_uncertain(fitted, model, wanted, of_targets=wanted != "--std")
    if fitted.info.get("report", {}).get("status", "ok") != "ok":
        say(f"dorff: {model}: its fit was {fitted.info['report']['status']}; its values may be far off", "warning")
    dataset = open_dataset(store, inputs=ModelInputs.of(fitted, *reads).arrays, targets=None)
    most, (numbers, rows) = min(workers, -(-dataset.n // dataset.shard_rows)), each
    busy, needed, peak = planned_workers(fitted, dataset, numbers, rows=max(rows, dataset.unit_rows), most=most)
    del fitted
    cluster = LocalCluster(workers=max(busy, 1))
    cluster = cluster.model_copy(update={"memory": max(cluster.memory, int(needed / 0.94))})
    with open_engine(cluster if busy > 1 else SerialCluster()) as engine:
        yield engine, peak
