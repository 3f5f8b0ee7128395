"""What `dorff inspect` says of graphs: those that users give, and those that a state keeps for its manifold terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dorff.data.edges import open_graph
from dorff.errors import InputError
from dorff.manifold.build_spec import GENERATION, GRAPH
from dorff.manifold.edge_store import DONE
from dorff.store import identity, read_plain, unseal


def is_graph(path: Path) -> bool:
    """Whether edges are there: Parquet, or a Zarr group of such arrays."""
    try:
        open_graph(path)
    except InputError:
        return path.suffix == ".parquet"  # and damaged
    return True


def given(path: Path) -> dict[str, Any]:
    """A graph that a user gives. `entries` are those that are stored, an edge once or in both directions."""
    source = open_graph(path)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {
        "kind": "graph",
        "path": str(path),
        "layout": source.kind,
        "nodes": source.n,
        "entries": source.count,
        "bytes": sum(file.stat().st_size for file in files),
    }


def built(folder: Path) -> list[dict[str, Any]]:
    """The graphs that the state `folder` of a pass keeps."""
    return [_built(file) for file in sorted(folder.glob(f"graphs/*/{GRAPH}"))]


def _built(file: Path) -> dict[str, Any]:
    """One of them. `nodes` are the rows that it is of, `edges` those of the generations that are finished."""
    frame, parts = _read(file, identity(file)), sorted(part.parent for part in file.parent.glob(f"*/{GENERATION}"))
    spans = [_read(part / GENERATION, identity(part / GENERATION)) for part in parts]
    done = [_read(part / DONE, identity(part / DONE)) for part in parts if (part / DONE).exists()]
    return {
        "graph": frame["graph"],
        "store": frame["store"],
        "columns": len(frame["columns"]),
        "nodes": sum(span["stop"] - span["start"] for span in spans),
        "edges": sum(owned for one in done for _, owned in one["shards"].values()),
        "shards": len({shard for one in done for shard in one["shards"]}),
        "finished": bool(spans) and len(done) == len(spans),
        "bytes": sum(path.stat().st_size for path in file.parent.rglob("*") if path.is_file()),
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
    content = unseal(read_plain(file), of)
    if content is None:
        raise InputError(f"{file}: is damaged; remove {file.parent} and fit again")
    return content
