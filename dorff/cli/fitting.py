"""`dorff ingest`, `plan` and `fit`, and what a schedule needs beside: `prune`, `trim`, `credentials`."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dorff.cli.guard as options
import dorff.cli.sentences as sentences
from dorff.cli.file_options import FileOptions, with_file_options
from dorff.cli.guard import option, say, warn
from dorff.cli.metrics import meter, of_fit, recorded
from dorff.errors import GateError, InputError

if TYPE_CHECKING:
    from dorff.plan import Plan
    from dorff.plan.costs import Costs

_FOR = "Print a `cluster:` that would do: slurm or kubernetes."
_PATHS = "Files of rows, and the data set to make of them."
_LIKE = "Encode as this model's (or data set's) are; --missing too."
_REPLACE = "Drop rows with the key of a row that is added."
_KEY = "Columns that identify a row (default: the inputs); the data set remembers them."
_ALSO = "One more array, of these columns: another view's inputs, or 1 where a row is labelled, else 0."


@with_file_options
def ingest(
    paths: Annotated[list[str], typer.Argument(metavar="SRC... OUT.zarr", help=_PATHS)],
    inputs: Annotated[str, option(metavar="A,B", help="Columns that are inputs, of any type; =0: zeros.")],
    targets: Annotated[str, option(metavar="U,V", help="Columns that are targets.")] = "",
    classes: Annotated[str, option(metavar="C", help="A column of class labels of any type.")] = "",
    weights: Annotated[str, option(metavar="W", help="A column of rows' weights.")] = "",
    groups: Annotated[str, option(metavar="G", help="A column, equal in a group; FILE: each SRC; none.")] = "",
    also: Annotated[list[str] | None, option(metavar="NAME=A,B", help=_ALSO)] = None,
    ordered: Annotated[list[str] | None, option(metavar="NAME=A,B", help="An input's categories, in order.")] = None,
    one_hot: Annotated[str, option(metavar="A,B", help="Inputs that are categories, numbers too.")] = "",
    like: Annotated[Path | None, option(metavar="MODEL", parser=options.place, help=_LIKE)] = None,
    *,
    files: FileOptions,
    append: Annotated[bool, typer.Option("--append", help="Add the rows to a data set that is there.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Add sources, and rows, that are there already.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help=_REPLACE)] = False,
    key: Annotated[str, option(metavar="A,B", help=_KEY)] = "",
    shard_rows: Annotated[int | None, option(metavar="N", help="Rows of a shard; fitting ones if left out.")] = None,
    as_json: options.Json = False,
) -> None:
    """Turn CSV, Parquet, NPY, NPZ, NetCDF or HDF5 files, or Zarr groups, into a data set, or add them to one.

    Several SRC are put one below the other; a.csv+b.csv side by side. A CSV file without a header has the columns
    c0, c1, ...; the arrays of an NPZ file go by their names. Weights and groups become the arrays of these names: in
    a job, data.weights: weights and solve.folds.by: groups. Of seven SRC or more each is a group by itself, unless
    there are classes, or --groups none.

    An input of text becomes a column of 0 and 1 for each of its categories. ISO dates and times become seconds, and
    when:day, when:week and when:year are two columns, sine and cosine of when's place there. Data set and model
    remember it, so that --append and --like encode new tables alike.

    --also, --missing and --ordered may be given several times. A source whose content is in the data set already,
    under any name, is refused with exit code 3: a job run again after it was killed never adds its rows twice."""
    from dorff.data import ingest as run
    from dorff.data import open_dataset
    from dorff.data.labels import FILE, stored_labels
    from dorff.data.nodes import group_attributes, kept_of
    from dorff.data.output_names import check_ending
    from dorff.data.source_records import read_sources

    kept, reading = None, files.arguments()
    if like is not None:
        from dorff.cli.looking import kept_columns

        kept = kept_columns(like)
        reading["missing"] = [*kept.missing, *reading["missing"]]
        if append:
            raise InputError("--like: rows are appended as the data set says; leave it out")
    if len(paths) < 2:
        raise typer.BadParameter("wanted at least one SRC and then OUT.zarr", param_hint="SRC... OUT.zarr")
    *sources, out = paths
    if not append:
        check_ending(options.place(out), "a data set", (".zarr",))
    labels = options.one("--classes", classes, "labels")
    with meter("ingest") as progress:
        rows = run(
            sources, out, inputs=options.names("--inputs", inputs), targets=options.names("--targets", targets),
            classes=labels, weights=options.one("--weights", weights, "weights"),
            groups=options.one("--groups", groups, "labels"),
            one_hot=options.names("--one-hot", one_hot), ordered=options.further("--ordered", ordered or []),
            encoding=None if kept is None else kept.encoding,
            column_attributes=None if kept is None else kept.column_attributes,
            also=options.further("--also", also or []),
            append=append, again=again, replace_known=replace, key=options.names("--key", key),
            shard_rows=shard_rows, **reading,
            progress=progress, notice=lambda sentence: say(f"dorff: {out}: {sentence}"),
        )  # fmt: skip
    result: dict[str, object] = {"rows": rows, "store": out}
    text = f"{out}: {rows:,} rows"
    attributes = group_attributes(options.place(out))
    records, _ = read_sources(kept_of(attributes, "sources", []), out)
    if dropped := open_dataset(options.place(out), inputs="x", targets=None).rows_dropped:
        result["rows_dropped"] = dropped
        text += f", {dropped:,} of which were dropped"
    if append or len(sources) > 1:  # rows are compared with those before
        delivered = records[-len(sources) :]
        for name in ("duplicates", "corrected", "replaced"):
            result[name] = sum(getattr(record, name) for record in delivered)
    if attributes["columns"].get("groups") == [FILE]:
        result["groups"] = FILE
        text += ", each file a group, whose rows folds hold out together (--groups none: no groups)"
    if left_out := kept_of(attributes, "left_out", dict[str, Any]()):
        result["left_out"] = left_out
    if encoding := kept_of(attributes, "encoding", dict[str, Any]()):
        result["encoding"] = encoding
        text += "".join(f", {name}: {sentences.encoded_text(each)}" for name, each in encoding.items())
    if labels and (table := stored_labels(attributes, out)):
        none = rows - sum(table.counts)
        result["classes"] = {"labels": table.labels, "counts": table.counts, "missing": none}
        text += f", {len(table.labels):,} labels, {none:,} rows without one"
    options.show(result, text, as_json=as_json)


def plan(
    job: options.JobFile,
    root: options.Root = None,
    allow: options.Allow = None,
    policy: options.Policy = None,
    of: Annotated[Literal["slurm", "kubernetes"] | None, typer.Option("--for", help=_FOR)] = None,
    as_json: options.Json = False,
) -> None:
    """What a fit will do and need, without a pass over the rows; exit code 4 if it would not fit."""
    from dorff.fit import expected_passes
    from dorff.plan import make_plan
    from dorff.plan.costs import asked_of_buckets
    from dorff.spec.cluster import KubernetesCluster, RemoteCluster, SlurmCluster

    loaded, words = options.read_job(job, root, allow, policy), None
    if of:  # what it takes where anything fits; and then as it is there
        boundless = loaded.model_copy(update={"cluster": RemoteCluster(address="inproc://boundless")})
        words = make_plan(boundless, anywhere=True).costs.cluster_for(of, loaded)
        there = KubernetesCluster if of == "kubernetes" else SlurmCluster
        loaded = loaded.model_copy(update={"cluster": there.model_validate(words)})
    planned = make_plan(loaded, anywhere=bool(of))
    costs, terms = planned.costs, [term.manifold.config() for term in planned.terms]
    if costs.route == "streaming" and (passes := expected_passes(planned)):
        costs = costs.of_passes(passes)
    elif costs.route == "streaming":
        few = "too few of the rows that were looked at can be used to tell how many passes a fit will take"
        say(f"plan: {few}; {costs.passes} are counted", "warning")
    keys = (
        "leaves", "peak_bytes", "disk_bytes", "flops", "seconds", "m", "rank", "worker_bytes", "exact_is_cheaper",
        "route", "reason", "passes",
    )  # fmt: skip
    buckets = asked_of_buckets(planned.job, planned.dataset, costs)
    iterates = costs.route == "streaming" or planned.job.solve.other_loss
    missing = None if terms or iterates else planned.missing_rows()
    costs = costs if missing is None else costs.of_passes(missing / planned.dataset.rows)
    text = _costs_text(planned, costs, buckets, missing)
    result = {key: getattr(costs, key) for key in keys} | {"in_driver": planned.cluster().in_driver} | buckets
    result |= ({"manifold": terms} if terms else {}) | ({} if missing is None else {"missing_rows": missing})
    if planned.crowded:
        text["targets"], result["patterns"] = sentences.patterns_text(planned.patterns), planned.patterns
    # Landmarks are no more than the rows, and a lattice may have fewer features than are counted.
    is_crowded = planned.recipe.landmarks is None and not planned.recipe.on_lattice
    if crowd := sentences.crowd_text(costs.m, planned.dataset.rows) if is_crowded and not terms else "":
        say(f"plan: {crowd}", "warning")
    if costs.exact_is_cheaper and is_crowded and not terms:  # the exact model has no terms
        smaller = f"an exact kernel model is the smaller system ({costs.m * costs.rank:,} unknowns here, no more there)"
        text["advice"] = f"so few rows that {smaller}: see dorff.exact.ExactRidge, or lower features.count"
    warnings, unusable = [*planned.warnings, *planned.foreseen()], planned.dataset.unusable
    if unusable and planned.job.data.nan == "refuse":
        dataset = planned.dataset
        came = f"{unusable:,} of {dataset.rows:,} rows came with NaN or infinity in some column"
        refused = "a fit refuses such inputs and targets, and names the first"
        remedy = "set data.nan: drop, which leaves these rows out"
        warnings.append(f"{dataset.path}: {came}: {refused}; {remedy}")
    warn(warnings)
    result |= {"choices": [asdict(one) for one in planned.choices], "warnings": warnings}
    if words:
        result["cluster"] = words
        text["cluster"] = "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in words.items()) + "}"
    options.show(result, options.rows_of(text | sentences.choices_text(result["choices"])), as_json=as_json)


def _costs_text(planned: "Plan", costs: "Costs", buckets: dict[str, int], missing: int | None) -> dict[str, str]:
    rows, ceiling = planned.dataset.rows, planned.recipe.on_lattice and planned.recipe.lattice is None
    text = {
        "leaves": f"{costs.leaves:,}",
        "memory": f"{options.size(costs.peak_bytes)} at the peak, {options.size(costs.worker_bytes)} of it a worker",
        "disk": options.size(costs.disk_bytes),
        "work": f"{costs.flops:.3g} flops, about {costs.seconds:.3g} s",
        "features": f"{'at most ' * ceiling}{costs.m:,}",
        "route": costs.reason,
        "passes": f"{costs.passes:,} over the rows",
    }
    if missing is not None and missing < rows:
        here = f"the sums of {rows - missing:,} of {rows:,} rows are in the state"
        text["passes"] = f"{costs.passes:,}; {here}" if missing else "none: the sums of all rows are in the state"
    for number, term in enumerate(planned.terms, 1):
        text[f"term {number}"] = sentences.term_text(term.manifold.config(), planned.job.data.unlabelled)
    if buckets:
        text["buckets"] = f"about {buckets['requests']:,} requests, {options.size(buckets['bytes_read'])} read"
    if planned.cluster().in_driver and not planned.job.cluster.in_driver:
        text["workers"] = "none: one process has done it before they would have started"
    return text


def fit(
    job: options.JobFile,
    root: options.Root = None,
    allow: options.Allow = None,
    policy: options.Policy = None,
    metrics: options.Metrics = None,
    as_json: options.Json = False,
) -> None:
    """Fit, or go on with a fit, and publish the model; what earlier runs of the job did is used again."""
    from dorff.fit import fit as run
    from dorff.plan.lengthscale import lengthscale_words
    from dorff.spec.data import ClassTargets

    read = partial(options.read_job, job, root, allow, policy)
    with recorded(metrics, "fit", job, read) as figures:
        described = read()
        words = lengthscale_words([kernel.model_dump() for kernel in described.kernels])
        if any(word.startswith(("tune", "auto")) for word in words):
            say("fit: length-scales are found first, on a sample of rows, unless they were before")
        for number, term in enumerate(described.manifold, 1):
            shown = sentences.term_text(term.model_dump(mode="json"), described.data.unlabelled)
            say(f"fit: manifold term {number}: {shown}")
        between = any(term.between for term in described.manifold)
        if not between and any(one.type == "multi_view" for one in described.kernels):
            problem = "the targets see the mean of the views alone, so that one view by itself may be anywhere"
            remedy = "add manifold: {between: true, weight: ...} where views are to predict alone"
            say(f"fit: {problem}; {remedy}", level="warning")
        try:
            with meter("fit") as progress:
                report = run(described, progress=progress)
        except GateError as error:
            if as_json:
                options.show(error.result, "", as_json=True)
            raise
        figures.update(of_fit(report))
        warn(report.warnings)
        if report.in_driver and not described.cluster.in_driver and report.outcome != "unchanged":
            say("fit: it ran in this process, which had done so little before workers would have started")
    classes = isinstance(described.data.targets, ClassTargets)
    summary = sentences.fit_text(report, [term.weights for term in described.manifold], classes=classes)
    if as_json:
        say(summary)
    rows = sentences.loss_text(report.loss) | sentences.quality_text(report.quality)
    rows |= sentences.bands_text(report.bands)
    rows |= sentences.choices_text(report.choices)
    table = options.rows_of({} if report.outcome == "unchanged" else rows)
    options.show(asdict(report), f"{summary}\n{table}" if table else summary, as_json=as_json)


def prune(
    path: Annotated[Path, options.at(metavar="PATH", help="A model's root or a state directory.")],
    keep: Annotated[int, option(min=1, metavar="K", help="How many to keep.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    as_json: options.Json = False,
) -> None:
    """Remove all but the last K versions of a model, or the sums of all but the K plans that were used last.

    Never the current version. What is removed from a state directory is computed again if its job is fitted."""
    from dorff.cli.looking import kind
    from dorff.store import prune_state, prune_versions

    removing = prune_versions if kind(path) == "model" else prune_state
    removed = [str(folder) for folder in removing(path, keep, dry_run=dry_run)]
    verb = "would be removed" if dry_run else "removed"
    text = "\n".join(f"{folder}  {verb}" for folder in removed) or f"{path}: nothing to remove"
    options.show({"removed": removed, "dry_run": dry_run}, text, as_json=as_json)


def trim(
    store: options.Store,
    keep: Annotated[int, option(min=1, metavar="ROWS", help="Rows to keep at least.")],
    as_json: options.Json = False,
) -> None:
    """Remove the first rows of a data set, whole shards of them; the others keep their numbers.

    For data that grow without end: data.window in a job says how many of the last rows a fit uses."""
    from dorff.data import trim as run
    from dorff.data.nodes import committed, group_attributes

    before = len(committed(store.absolute(), group_attributes(store.absolute())) or ())
    rows = run(store, keep=keep)
    text = f"{store}: {rows:,} rows, {before - rows:,} removed"
    options.show({"rows": rows, "removed": before - rows, "store": str(store)}, text, as_json=as_json)


def drop(
    store: options.Store,
    source: Annotated[str, option(metavar="SRC", help="A source as it was named, its file name, or its content.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be dropped, and drop nothing.")] = False,
    as_json: options.Json = False,
) -> None:
    """Take the rows of one source out of a data set, as if they weighed nothing; the others keep their numbers.

    The next fit sums again only the leaves that had some of these rows. Rows that the source had replaced
    stay dropped."""
    import dorff.cli.looking as looking
    from dorff.data import drop as run

    dropped = run(store, source, dry_run=dry_run)
    record = dropped.source
    verb = "would be dropped" if dry_run else "dropped"
    text = f"{store}: {dropped.rows:,} rows of {record.name} {verb}, {dropped.rows_left:,} are left"
    if record.replaced:
        text += f"; the {record.replaced:,} rows that it had replaced stay dropped: deliver them again by --replace"
    result = {"store": str(store), "source": record.name, "content": record.content, "dry_run": dry_run}
    result["replaced"] = record.replaced
    if empty := looking.labels_without_rows(store):
        result["labels_without_rows"] = empty
        named = ", ".join(map(repr, empty[:8])) + (", ..." if len(empty) > 8 else "")
        text += (
            f"; no row that is left has the label {named}, which stays a class: ingest all rows anew to be rid of it"
        )
    options.show(result | {"dropped": dropped.rows, "rows": dropped.rows_left}, text, as_json=as_json)


def credentials(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them.")],
    as_json: options.Json = False,
) -> None:
    """Make credentials for a Dask cluster of your own: whoever has these files may use it, nobody else."""
    from dorff.engine.clusters import credentials as run

    files = dict(zip(("ca", "cert", "key"), map(str, run(directory.absolute())), strict=True))
    # Dask's pages are not under TLS: they stay on loopback.
    tls = f"--tls-ca-file {files['ca']} --tls-cert {files['cert']} --tls-key {files['key']}"
    ours = f"--dashboard-address 127.0.0.1:0 {tls}"
    named = ", ".join(f"{name}: {file}" for name, file in files.items())
    text = (
        f"dask scheduler --protocol tls --host HOST {ours}\n"
        f"dask worker {ours} tls://HOST:8786\n"
        f"cluster: {{address: tls://HOST:8786, tls: {{{named}}}}}"
    )
    options.show(files, text, as_json=as_json)
