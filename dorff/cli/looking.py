"""`dorff inspect`: says what is at a path, a graph, a state, a model or a data set.

Metadata alone are read, but where rows of classes were dropped: those that are left are counted.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dorff import store
from dorff.data import Classes, class_counts, open_dataset
from dorff.data.edges import open_graph
from dorff.data.encoding import with_encoded_times
from dorff.data.labels import CLASSES, stored_labels
from dorff.data.nodes import (
    column_attributes,
    committed,
    group_attributes,
    kept_of,
    open_array,
    stored_columns,
    walk,
)
from dorff.data.row_runs import Runs, clip_runs, count_rows, merge_runs
from dorff.data.source_records import SourceRecord, read_sources
from dorff.data.units import ColumnAttributes
from dorff.errors import InputError
from dorff.manifold.build_spec import GENERATION, GRAPH
from dorff.manifold.leaves import DONE
from dorff.moments import Kind
from dorff.passes import PassSpec, leaf_bounds
from dorff.storage.location import locate
from dorff.store.receipts import HISTORY

_KEPT: Final[dict[str, Any]] = {"encoding": {}, "missing": [], "column_attributes": {}}
_OF_ROWS: Final[dict[str, Any]] = {"unusable": 0, "left_out": {}, "key": [], "missing": []}
SHOWN: Final = 20  # lines of history, and sources


def look(path: Path) -> dict[str, Any]:
    """What is there, by its `kind`; InputError where it is of none, or damaged."""
    if (what := kind(path)) == "state":
        return {"kind": what, "path": str(path), "plans": list(map(_plan, _plans(path))), "bytes": _bytes_below(path)}
    of = {"model": _model, "graph": _given, "dataset": _dataset}[what]
    return {"kind": what, "path": str(path), **of(path)}


@dataclass(frozen=True, kw_only=True)
class KeptColumns:
    """What a model or a data set keeps of its columns.

    `encoding` says how inputs that were no numbers became such, `missing` what stood for
    no number; `column_attributes` is None where it says of none.
    """

    encoding: dict[str, Any]
    missing: list[str]
    column_attributes: ColumnAttributes | None


def kept_columns(path: Path) -> KeptColumns:
    """Return what a model or a data set keeps of its columns."""
    if kind(path) == "model":
        kept = store.load_model(path, posterior=False).info.get("data", {})
    else:
        attributes = group_attributes(path)
        kept = {name: kept_of(attributes, name, empty) for name, empty in _KEPT.items()}
    return KeptColumns(
        encoding=dict(kept.get("encoding", {})),
        missing=list(kept.get("missing", ())),
        column_attributes=kept.get("column_attributes") or None,
    )


def kind(path: Path) -> str:
    """`model`, `state`, `graph`, or `dataset` for whatever else is there."""
    if not path.exists():
        raise InputError(f"{path}: there is nothing; give a data set, a state directory or a model")
    if any((path / name).exists() for name in ("current", HISTORY, "coefficients")):
        return "model"
    if _plans(path):
        return "state"
    try:
        open_graph(path)
    except InputError:  # perhaps damaged
        return "graph" if path.suffix == ".parquet" else "dataset"
    return "graph"


def _plans(path: Path) -> list[Path]:
    return sorted(path.glob("plan.json")) or sorted(path.glob("*/plan.json"))


def _model(path: Path) -> dict[str, Any]:
    published = (path / "coefficients").is_dir() or store.current_version(path) is not None  # none if all were refused
    version = store.resolve_model(path) if published else None
    root = path if version is None else version.parent
    history = store.read_history(root)
    return {
        "version": None if version is None else version.name,
        "versions": [_version(version, history) for version in store.versions(root)],
        "lease": store.lease_state(root / store.LEASE),
        "fits": len(history),
        "history": history[-SHOWN:],
        **({} if version is None else _described(version)),
    }


def _version(version: Path, history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """When a version was made, of how many rows, and its held-out score where it was judged by one."""
    record: dict[str, Any] = next((line for line in reversed(history) if line.get("version") == version.name), {})
    made = datetime.fromtimestamp(version.stat().st_mtime, UTC).isoformat(timespec="seconds")
    rows, score = record.get("rows_used"), record.get("score")
    return {"version": version.name, "time": record.get("time", made), "rows": rows, "score": score}


def _described(version: Path) -> dict[str, Any]:
    model = store.load_model(version, posterior=False)
    return {
        "kernel": model.kernel.config(),
        "sampler": dict(model.sampler),
        **{name: getattr(model, name) for name in ("seed", "d", "p")},
        **({"views": list(model.views)} if model.views else {}),
        "m": model.feature_map.m,
        **({"observe": model.observe.tolist()} if model.observe is not None else {}),
        **{name: model.info[name] for name in ("labels", "calibration") if name in model.info},
        **{name: model.info.get(name) for name in ("data", "report")},
    }


def _plan(path: Path) -> dict[str, Any]:
    folder = path.parent
    try:
        spec = PassSpec.from_config(json.loads(store.read_plain(path))["question"])
        rows, m = spec.rows, spec.count
        width = 0 if spec.sums is Kind.TOEPLITZ else m + 1 + rows["q"]
        names = rows["inputs"], Classes(*rows["targets"]) if "labels" in rows else rows["targets"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is damaged; remove {folder} and fit again") from error
    files = list((folder / "receipts").glob("*.json"))
    loaded = (store.Receipt.load(file.parent, int(file.stem)) for file in files if file.stem.isdigit())
    receipts = [receipt for receipt in loaded if receipt is not None]
    try:
        dataset = open_dataset(spec.store, inputs=names[0], targets=names[1])
        leaves = leaf_bounds(dataset.n, rows["shard_rows"], width, first=dataset.first)
    except InputError:  # it is gone
        leaves = None
    done = {(receipt.number, receipt.start, receipt.stop) for receipt in receipts}
    first = min(done, default=(0, 0, 0))[0]  # leaves before the first that has a receipt have left a window
    missing = [one for one in leaves or () if one.number >= first and (one.number, one.start, one.stop) not in done]
    return {
        "plan": folder.name,
        "store": spec.store,
        "m": m,
        "leaves": None if leaves is None else len(leaves),
        "receipts": len(receipts),
        "missing": None if leaves is None else len(missing),
        "damaged": len(files) - len(receipts),
        "checkpoints": len({file.name.split(".")[0] for file in (folder / "checkpoints").glob("[0-9]*")}),
        "rows_used": sum(receipt.rows_used for receipt in receipts),
        "terms": terms(folder),
        "graphs": [_built(file) for file in sorted(folder.glob(f"graphs/*/{GRAPH}"))],
        "bytes": _bytes_below(folder),
        "last_used": datetime.fromtimestamp(store.last_used(folder), UTC).isoformat(timespec="seconds"),
        "lease": store.lease_state(store.lease_beside(folder)),
    }


def _dataset(path: Path) -> dict[str, Any]:
    group = path.absolute()
    attributes = group_attributes(group)
    rows = committed(group, attributes)
    arrays = [_array(group, attributes, node.name) for node in walk(group) if node.is_array]
    arrays += [{"name": node.name, "problem": node.problem} for node in walk(group) if node.problem]
    if rows is None:
        return {"rows": None, "first": 0, "arrays": arrays, "bytes": _bytes_below(path)}
    return {
        "rows": rows.stop,
        "first": rows.start,
        **_deliveries(group, attributes, rows),
        "arrays": arrays,
        "bytes": _bytes_below(path),
    }


def _deliveries(group: Path, attributes: dict[str, Any], rows: range) -> dict[str, Any]:
    """What a data set says of its sources, the last of them one by one, and of rows that do not count."""
    listed = kept_of(attributes, "sources", list[Any]())
    records, _ = read_sources(listed, group)
    dropped = merge_runs(kept_of(attributes, "dropped", []))
    kept = {name: kept_of(attributes, name, empty) for name, empty in _OF_ROWS.items()}
    return {
        "rows_dropped": count_rows(clip_runs(dropped, rows.start, rows.stop)),
        **{name: value for name, value in kept.items() if value},
        "source_count": len(listed),
        "sources": [_source(record, rows, dropped) for record in records[-SHOWN:]],
    }


def _source(record: SourceRecord, rows: range, dropped: Runs) -> dict[str, Any]:
    """What is known of a source; `rows_left` are not dropped, replaced or trimmed."""
    first, stop = max(record.first, rows.start), max(record.stop, rows.start)
    counts = {name: getattr(record, name) for name in ("duplicates", "corrected", "replaced")}
    return {
        "name": record.name,
        "modified": record.modified or None,
        "first": record.first,
        "rows": record.rows,
        "rows_left": stop - first - count_rows(clip_runs(dropped, first, stop)),
        "dropped": record.dropped,
        **{name: count for name, count in counts.items() if count},
        **({"where": record.where, "left_out": record.left_out} if record.where else {}),
        "content": record.content,
    }


def _array(group: Path, attributes: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        stored = open_array(group, name, text=True)
        labels = _labels(attributes, group) if name == CLASSES else {}
    except InputError as error:  # an array that dorff cannot use is no reason to hide the others
        return {"name": name, "problem": str(error)}
    shard_rows = stored.files.outer[0]
    units = _units(column_attributes(attributes, name, stored), attributes, group)
    return {
        "name": name,
        "rows": stored.rows,
        "columns": list(stored_columns(attributes, name, stored.columns)),
        **({"units": units} if units else {}),
        "dtype": str(stored.array.dtype),
        "shard_rows": shard_rows,
        "unit_rows": stored.files.inner[0],
        "shards": -(-stored.rows // max(1, shard_rows)),
        **labels,
    }


def labels_without_rows(store: Path) -> list[str]:
    """Return the labels of a data set that no row has that counts."""
    known = _labels(group_attributes(store), store)
    pairs = zip(known.get("labels", ()), known.get("counts", ()), strict=False)  # counts may be unknown
    return [str(label) for label, count in pairs if not count]


def _labels(attributes: dict[str, Any], group: Path) -> dict[str, Any]:
    """The labels of a data set, and how many rows that count have each: read if some were dropped.

    Where they cannot be read the `problem` stands in place of the counts.
    """
    table = stored_labels(attributes, group)
    if table is None:
        return {}
    labels = list(table.labels)
    try:
        dataset = open_dataset(group, inputs=CLASSES, targets=Classes(CLASSES))
        counts = list(map(int, class_counts(dataset))) if dataset.dropped else list(table.counts)
    except InputError as error:
        return {"labels": labels, "problem": f"its rows cannot be counted: {error}"}
    return {"labels": labels, "counts": counts}


def _units(of_columns: ColumnAttributes, attributes: dict[str, Any], group: Path) -> dict[str, str]:
    """The units of columns that have some, those of encoded times too, with a calendar that is not the usual one."""
    encoding = kept_of(attributes, "encoding", dict[str, Any]())
    known = with_encoded_times(of_columns, encoding, group)
    return {
        column: ", ".join([known[column]["units"], *filter(None, [known[column].get("calendar")])])
        for column in of_columns
        if "units" in known[column]
    }


def _bytes_below(path: Path) -> int:
    return path.stat().st_size if path.is_file() else locate(path).bytes_below()


def _given(path: Path) -> dict[str, Any]:
    """A graph that a user gives. `entries` are those that are stored, an edge once or in both directions."""
    source = open_graph(path)
    return {"layout": source.kind, "nodes": source.n, "entries": source.count, "bytes": _bytes_below(path)}


def _built(file: Path) -> dict[str, Any]:
    """A kept graph. `nodes` are the rows that it is of, `edges` those of the generations that are finished."""
    parts = sorted(part.parent for part in file.parent.glob(f"*/{GENERATION}"))
    files = [part / GENERATION for part in parts], [part / DONE for part in parts if (part / DONE).exists()]
    frame = _read(file, store.identity(file))
    spans, done = ([_read(one, store.identity(one)) for one in each] for each in files)
    return {
        "graph": frame["graph"],
        "store": frame["store"],
        "columns": len(frame["columns"]),
        "nodes": sum(span["stop"] - span["start"] for span in spans),
        "edges": sum(owned for one in done for _, owned in one["shards"].values()),
        "shards": len({shard for one in done for shard in one["shards"]}),
        "finished": bool(spans) and len(done) == len(spans),
        "bytes": _bytes_below(file.parent),
    }


def terms(folder: Path) -> list[dict[str, Any]]:
    """The manifold terms that the state `folder` of a pass keeps sums of, and how many tasks have a receipt."""
    terms = []
    for file in sorted(folder.glob("terms/*/term.json")):
        term = _read(file)
        recipe = {key: term["recipe"][key] for key in ("graph", "normalised", "power", "form")}
        receipts = sum(path.stem.isdigit() for path in (file.parent / "receipts").glob("*.json"))
        terms.append({**recipe, "store": term["rows"], "receipts": receipts})
    return terms


def _read(file: Path, of: str = "") -> dict[str, Any]:
    if (content := store.unseal(store.read_plain(file), of)) is None:
        raise InputError(f"{file}: is damaged; remove {file.parent} and fit again")
    return content
