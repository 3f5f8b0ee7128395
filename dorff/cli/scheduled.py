"""What a schedule needs beside fits: old versions, old sums and old rows removed; credentials for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dorff.cli.guard import show
from dorff.cli.options import Json, Store


def prune(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A model's root or a state directory.")],
    keep: Annotated[int, typer.Option(min=1, metavar="K", help="How many to keep.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Remove all but the last K versions of a model, or the sums of all but the K plans that were used last.

    Never the current version. What is removed from a state directory would be computed again if its job were fitted.
    """
    from dorff.cli.looking import kind
    from dorff.store import prune_state, prune_versions

    removing = prune_versions if kind(path) == "model" else prune_state
    removed = [str(folder) for folder in removing(path, keep, dry_run=dry_run)]
    verb = "would be removed" if dry_run else "removed"
    text = "\n".join(f"{folder}  {verb}" for folder in removed) or f"{path}: nothing to remove"
    show({"removed": removed, "dry_run": dry_run}, text, as_json=as_json)


def trim(
    store: Store,
    keep: Annotated[int, typer.Option(min=1, metavar="ROWS", help="Rows to keep at least.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Remove the first rows of a data set, whole shards of them; the others keep their numbers.

    For data that grow without end: data.window in a job says how many of the last rows a fit uses.
    """
    from dorff.data import trim as run
    from dorff.data.nodes import committed_first, committed_rows, group_attributes

    def held(path: Path) -> int:
        attributes = group_attributes(path)
        return (committed_rows(path, attributes) or 0) - committed_first(path, attributes)

    before = held(store.absolute())
    rows = run(store, keep=keep)
    text = f"{store}: {rows:,} rows, {before - rows:,} removed"
    show({"rows": rows, "removed": before - rows, "store": str(store)}, text, as_json=as_json)


def credentials(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them.")], as_json: Json = False
) -> None:
    """Make credentials for a Dask cluster of your own: whoever has these files may use it, nobody else."""
    from dorff.engine import credentials as run

    files = dict(zip(("ca", "cert", "key"), map(str, run(directory.absolute())), strict=True))
    # Dask's pages are not under TLS: they stay on loopback.
    ours = (
        "--dashboard-address 127.0.0.1:0 "
        + f"--tls-ca-file {files['ca']} --tls-cert {files['cert']} --tls-key {files['key']}"
    )
    named = ", ".join(f"{name}: {file}" for name, file in files.items())
    text = (
        f"dask scheduler --protocol tls --host HOST {ours}\n"
        f"dask worker {ours} tls://HOST:8786\n"
        f"cluster: {{address: tls://HOST:8786, tls: {{{named}}}}}"
    )
    show(files, text, as_json=as_json)
