"""Options that say how files of rows are read, the same for `ingest`, `predict` and `score`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, Final, Literal

import typer

from dorff.cli.guard import option, pairs
from dorff.errors import InputError

_MISSING = (
    "A number, or a word such as M, that stands for none, made NaN; "
    "none: keep all other numbers that look so, not refuse them."
)
_UNITS = "A column's units, in place of those that files say; none: no units. May be given several times."
_UNKNOWN_ZERO = "What is no category counts as none; else refused."
_WHERE = "Only rows that hold, 'PSAL_QC in (1, 2) and depth < 500'; odd names between backquotes."
_SKIP_ROWS = "Of tables of text: the first N lines are left out."
_COMMENT = "Lines of text that begin so are left out."
_DELIMITER = "What separates fields of text: a character, tab or blanks."
_DECIMAL = "The decimal mark of numbers in text, . or ,; the other may stand in thousands."
_ABSENT_CHUNKS = "Chunks of a Zarr source that are not there: refuse them, or fill, by the array's fill value."
#: Those that `dorff.data.readers.TextOptions` has.
_OF_TEXT: Final = ("skip_rows", "comment", "delimiter", "decimal")


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """How files of rows are read. Each field is an option of the command line."""

    missing: Annotated[list[str] | None, option(metavar="-9999", help=_MISSING)] = None
    units: Annotated[list[str] | None, option(metavar="NAME=UNITS", help=_UNITS)] = None
    unknown_zero: Annotated[bool, typer.Option("--unknown-zero", help=_UNKNOWN_ZERO)] = False
    where: Annotated[str | None, option(metavar="CONDITION", help=_WHERE)] = None
    skip_rows: Annotated[int, option(min=0, metavar="N", help=_SKIP_ROWS)] = 0
    comment: Annotated[list[str] | None, option(metavar="TEXT", help=_COMMENT)] = None
    delimiter: Annotated[str, option(metavar="C", help=_DELIMITER)] = ""
    decimal: Annotated[str, option(metavar="MARK", help=_DECIMAL)] = ""
    absent_chunks: Annotated[Literal["refuse", "fill"], option(help=_ABSENT_CHUNKS)] = "refuse"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `dorff.data.ingest`, which `TableOptions` has too.

        InputError for an empty condition: a shell's variable that is not set would take all rows.
        """
        if self.where == "":
            raise InputError("--where: wanted a condition, got ''; leave the option out to take all rows.")
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        text = {name: given.pop(name) for name in _OF_TEXT}
        return given | {
            "where": self.where or "",
            "missing": self.missing or [],
            "units": pairs("--units", self.units or []),
            "text": {name: value for name, value in text.items() if value},
        }


def with_file_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `FileOptions` in place of its parameter `files`."""
    options = inspect.signature(FileOptions).parameters
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        parameters += options.values() if name == "files" else [parameter]

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        files = FileOptions(**{name: kwargs.pop(name) for name in options})
        command(*args, files=files, **kwargs)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
