"""What every mapping of a job has in common, and the kinds of value that several have."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator

from dorff.spec import checks


@final
@dataclass(frozen=True)
class Idle:
    """Beside a key's type: of the mapping that has it and of the whole job, `why` it has no effect there, "" where it
    has one. Where such a key is set to another value than it has anyway, the job is `refused`; or it warns, where
    another route, criterion or kernel would give the key an effect: a job may be switched between them."""

    why: Callable[[Any, Any], str]
    refused: bool = False


class Part(BaseModel):
    """A mapping of the job: fixed once read, no key that it does not know, no value quietly converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: object) -> object:
        known = cls.model_fields
        for key in value if isinstance(value, dict) else ():
            if key not in known:
                hint = checks.nearest(key, known)
                raise checks.Refusal(f"is not a known key; {hint}use one of: {', '.join(known)}", key=str(key))
        return value


_WRITTEN = PlainSerializer(lambda value: str(value) if isinstance(value, Path) else value)

FilePath = Annotated[Path, BeforeValidator(checks.path), PlainSerializer(str)]
#: The name of an array, or several, stacked.
Names = Annotated[str | tuple[str, ...], BeforeValidator(checks.arrays)]
#: A matrix: the file that holds it, or its rows.
Rows = Annotated[Path | tuple[tuple[float, ...], ...], BeforeValidator(checks.rows), _WRITTEN]
Square = Annotated[Path | tuple[tuple[float, ...], ...], BeforeValidator(checks.square), _WRITTEN]
