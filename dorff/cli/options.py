"""The arguments and options that several commands have, and how their text is read."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, final

import typer
from typer.core import TyperCommand, TyperOption

from dorff.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        envvar="DORFF_ROOT",
        show_default=False,
        help="Refuse a job with a path that leads out of this folder.",
    ),
]
Metrics = Annotated[
    Path | None,
    typer.Option(
        "--metrics",
        metavar="FILE.prom",
        show_default=False,
        help="Write figures for Prometheus' textfile collector, whether the run succeeds or not.",
    ),
]
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model's root (its current version) or one version.")
]
Store = Annotated[Path, typer.Argument(metavar="DATA.zarr", help="The data set.")]
Inputs = Annotated[
    str,
    typer.Option(
        metavar="A,B",
        show_default=False,
        help="The arrays that hold the inputs, stacked; x, or those that a model of views was fitted to, if left out.",
    ),
]
Views = Annotated[
    str, typer.Option(metavar="V,W", help="Views of the model to use, others may be missing.", show_default=False)
]
Pooled = Annotated[bool, typer.Option("--pooled", help="R2 of all outputs together; else by the kernel.")]
Mean = Annotated[bool, typer.Option("--mean", help="R2 as the mean of the outputs'; else by the kernel.")]
Workers = Annotated[int, typer.Option(min=1, help="Worker processes at most; 1 works in this process.")]


@final
class Command(TyperCommand):
    """A command that takes each option of one value once: of several only the last would count."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(order).items():
            if isinstance(option, TyperOption) and count > 1 and not (option.multiple or option.is_flag):
                ctx.fail(f"{option.opts[-1]} is given {count} times; give it once (several names as A,B).")
        return super().parse_args(ctx, args)


def names(option: str, text: str) -> list[str]:
    """Comma-separated names; quotes, as in CSV, keep a comma in one."""
    parts = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not all(parts):
        raise InputError(f"{option} {text}: a name is empty; write names with single commas between, such as a,b")
    return parts


def level(text: str) -> float:
    """The level of a band."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--bands: {text!r} is not a level; write such as 0.5,0.95") from None


def further(given: Sequence[str]) -> dict[str, list[str]]:
    """The columns of further arrays by their names, each written NAME=A,B."""
    arrays: dict[str, list[str]] = {}
    for text in given:
        name, equals, columns = text.partition("=")
        if not equals:
            raise InputError(f"--also {text}: has no name; write NAME=A,B, an array's name and its columns")
        if name in arrays:
            raise InputError(f"--also {text}: {name} is there already; name each array once")
        arrays[name] = names("--also", columns)
    return arrays


def one(option: str, text: str, what: str) -> str | None:
    """A name, or none."""
    given = names(option, text)
    if len(given) > 1:
        raise InputError(f"{option} {text}: wanted one column of {what}, got {len(given)}; name one")
    return given[0] if given else None
