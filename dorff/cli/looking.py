"""`dorff inspect`: says what is at a path, from its metadata alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dorff.data import Classes, open_dataset
from dorff.data.labels import CLASSES, stored_labels
from dorff.data.nodes import committed_rows, group_attributes, open_array, stored_columns, walk
from dorff.errors import InputError
from dorff.plan import leaf_bounds
from dorff.store import Receipt, load_model, resolve_model


def look(path: Path) -> dict[str, Any]:
    """What is there: a model (its root or a version), a state directory or a Zarr group, told by `kind`.

    Raises InputError where it is none of them, or damaged.
    """
    if not path.exists():
        raise InputError(f"{path}: there is nothing; give a data set, a state directory or a model")
    if (path / "current").is_file() or (path / "coefficients").is_dir():
        return _model(path)
    plans = sorted(path.glob("plan.json")) or sorted(path.glob("*/plan.json"))
    return _state(path, plans) if plans else _dataset(path)


def _model(path: Path) -> dict[str, Any]:
    version = resolve_model(path)
    model = load_model(version, posterior=False)
    return {
        "kind": "model",
        "path": str(path),
        "version": version.name,
        "versions": sorted(found.name for found in version.parent.glob("v[0-9]*")),
        "kernel": model.kernel.config(),
        "sampler": dict(model.sampler),
        "seed": model.seed,
        "d": model.d,
        "p": model.p,
        "m": model.feature_map.m,
        **({"observe": model.observe.tolist()} if model.observe is not None else {}),
        **{name: model.info[name] for name in ("labels", "calibration") if name in model.info},
        "data": model.info.get("data"),
        "report": model.info.get("report"),
    }


def _state(path: Path, plans: Sequence[Path]) -> dict[str, Any]:
    return {
        "kind": "state",
        "path": str(path),
        "plans": [_plan(plan) for plan in plans],
        "bytes": _bytes_below(path),
    }


def _plan(path: Path) -> dict[str, Any]:
    try:
        question = json.loads(path.read_bytes())["question"]
        store, rows, m = question["store"], question["rows"], question["count"]
        width = m + 1 + rows["q"]
        names = rows["inputs"], Classes(*rows["targets"]) if "labels" in rows else rows["targets"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is damaged; remove {path.parent} and fit again") from error
    receipts = [
        receipt
        for file in (path.parent / "receipts").glob("*.json")
        if (receipt := Receipt.load(file.parent, int(file.stem))) is not None
    ]
    return {
        "plan": path.parent.name,
        "store": store,
        "m": m,
        "leaves": _leaves(store, names, rows["shard_rows"], width),
        "receipts": len(receipts),
        "rows_used": sum(receipt.rows_used for receipt in receipts),
        "bytes": _bytes_below(path.parent),
    }


def _leaves(
    store: str, names: tuple[Sequence[str], Sequence[str] | Classes], shard_rows: int, width: int
) -> int | None:
    """Leaves of the store as it is now; None where it is gone."""
    try:
        dataset = open_dataset(store, inputs=names[0], targets=names[1])
    except InputError:
        return None
    return len(leaf_bounds(dataset.n, shard_rows, width))


def _dataset(path: Path) -> dict[str, Any]:
    group = path.absolute()
    attributes = group_attributes(group)
    arrays = [_array(group, attributes, found.name) for found in walk(group) if found.is_array]
    return {
        "kind": "dataset",
        "path": str(path),
        "rows": committed_rows(group, attributes),
        "arrays": arrays,
        "bytes": _bytes_below(path),
    }


def _array(group: Path, attributes: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        stored = open_array(group, name, text=True)
        table = stored_labels(attributes, group) if name == CLASSES else None
    except InputError as error:  # an array that dorff cannot use is no reason to hide the others
        return {"name": name, "problem": str(error)}
    shard_rows = stored.files.outer[0]
    labels = {} if table is None else {"labels": list(table.labels), "counts": list(table.counts)}
    return {
        "name": name,
        "rows": stored.rows,
        "columns": list(stored_columns(attributes, name, stored.columns)),
        "dtype": str(stored.array.dtype),
        "shard_rows": shard_rows,
        "unit_rows": stored.files.inner[0],
        "shards": -(-stored.rows // max(1, shard_rows)),
        **labels,
    }


def _bytes_below(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
