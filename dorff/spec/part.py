"""What every mapping of a job has in common, and the kinds of value that several have."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema, model_validator
from pydantic.annotated_handlers import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from dorff.errors import InputError
from dorff.spec import checks
from dorff.spec.trust import Harmless

_WRITTEN = PlainSerializer(lambda value: str(value) if isinstance(value, Path) else value)
_ROWS: Final = {"type": "array", "minItems": 1, "items": {"type": "array", "items": {"type": "number"}, "minItems": 1}}
_NAME: Final = {"type": "string", "minLength": 1}  # or path
_NAMES: Final = {"anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1, "uniqueItems": True}]}
_NUMBERS: Final = {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 1}
_SHARE: Final = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
_COUNT: Final = {"type": "integer", "minimum": 2}
_NOT_NEGATIVE: Final = {"type": "number", "minimum": 0}
_ENDS: Final = {"from": _NUMBERS["items"], "to": _NUMBERS["items"], "count": _COUNT}
_RANGE: Final = {"type": "object", "properties": _ENDS, "required": [*_ENDS], "additionalProperties": False}
_LABELS: Final = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
_AUTO: Final = {"const": checks.AUTO}
_GIVEN: Final = [_NOT_NEGATIVE, {"type": "array", "items": _NOT_NEGATIVE, "minItems": 1}, _RANGE]
_OR_AUTO: Final = WithJsonSchema({"anyOf": [*_GIVEN, _AUTO]})
FilePath = Annotated[Path, BeforeValidator(checks.path), PlainSerializer(str), WithJsonSchema(_NAME)]
HARMLESS: Final = Harmless()
ArrayName = Annotated[str, Field(min_length=1), BeforeValidator(partial(checks.text, "the name of an array")), HARMLESS]
#: The name of an array, or several, stacked.
Names = Annotated[str | tuple[str, ...], BeforeValidator(checks.arrays), WithJsonSchema(_NAMES), HARMLESS]
_MATRIX = WithJsonSchema({"anyOf": [_NAME, _ROWS]})
#: A matrix: the file that holds it, or its rows.
Rows = Annotated[Path | tuple[tuple[float, ...], ...], BeforeValidator(checks.rows), _WRITTEN, _MATRIX]
Square = Annotated[Path | tuple[tuple[float, ...], ...], BeforeValidator(checks.square), _WRITTEN, _MATRIX]
_PAIR: Final = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_PAIRS = WithJsonSchema({"type": "array", "minItems": 1, "items": _PAIR})
#: The least and the largest value of each input.
Box = Annotated[tuple[tuple[float, float], ...], BeforeValidator(checks.box), _PAIRS]
_PERIODS = WithJsonSchema({"type": "array", "minItems": 1, "items": {"anyOf": [_NUMBERS["items"], {"type": "null"}]}})
#: The period of each input, or none.
Periods = Annotated[tuple[float | None, ...], BeforeValidator(checks.periods), _PERIODS]
Positive = Annotated[float, Field(gt=0), BeforeValidator(checks.positive)]
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(checks.not_negative)]
#: A positive number, or one for each of several.
Positives = Annotated[
    float | tuple[float, ...],
    BeforeValidator(checks.positives),
    WithJsonSchema({"anyOf": [_NUMBERS["items"], _NUMBERS]}),
]
#: A number, several, or {from, to, count}.
Penalties = Annotated[float | tuple[float, ...], BeforeValidator(checks.penalties), WithJsonSchema({"anyOf": _GIVEN})]
#: The same, or auto.
Ridges = Annotated[
    float | tuple[float, ...] | Literal["auto"],
    BeforeValidator(lambda value: value if value == checks.AUTO else checks.penalties(value)),
    _OR_AUTO,
]
#: A whole number of 2 or more, several, or auto.
Counts = Annotated[
    int | tuple[int, ...] | Literal["auto"],
    BeforeValidator(checks.counts),
    WithJsonSchema({"anyOf": [_COUNT, {"type": "array", "items": _COUNT, "minItems": 1, "uniqueItems": True}, _AUTO]}),
]
#: How much the rows of each class count, besides their own weights.
ClassWeight = Annotated[
    Literal["none", "balanced"] | tuple[tuple[str, float], ...],
    BeforeValidator(checks.class_weight),
    PlainSerializer(lambda weights: dict(weights) if isinstance(weights, tuple) else weights),
    WithJsonSchema({"anyOf": [{"enum": ["none", "balanced"]}, _LABELS]}),
    HARMLESS,
]
#: The largest error of sums that are not exact, relative to what is summed.
Tolerance = Annotated[float, Field(ge=1e-13, le=1e-3), BeforeValidator(checks.positive)]
#: A number between 0 and 1.
Share = Annotated[float, Field(gt=0, lt=1), BeforeValidator(checks.share)]
#: Several of these, in order.
Levels = Annotated[tuple[float, ...], BeforeValidator(checks.levels), WithJsonSchema({**_NUMBERS, "items": _SHARE})]
ViewName = Annotated[str, Field(min_length=1), BeforeValidator(partial(checks.text, "the name of a view")), HARMLESS]
_BY = "leaves, rows or the name of a column"
FoldsBy = Annotated[str, Field(min_length=1), BeforeValidator(partial(checks.text, _BY)), HARMLESS]
#: Radial and spherical degree of a quadrature rule.
Degrees = Annotated[tuple[int, int], BeforeValidator(checks.degree), WithJsonSchema({"enum": [[1, 1], [1, 3], [3, 3]]})]
#: A number, one an input, or how it is found.
Lengthscale = Annotated[
    float | tuple[float, ...] | Literal["median", "tune", "tune each", "auto"],
    BeforeValidator(checks.lengthscale),
    WithJsonSchema({"anyOf": [_NUMBERS["items"], _NUMBERS, {"enum": [*checks.WORDS]}, {"const": {"tune": "each"}}]}),
]


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


class Typed(Part):
    """A mapping whose `type` is a word of a registry; options, where the word has some, are fields of a subclass."""

    type: Annotated[str, HARMLESS]  # the registry refuses words that are not allowed


def within(least: int, most: int | None = None) -> Any:
    """Beside `int`: a whole number from `least` on, up to `most`."""
    return Field(ge=least, le=most)


class OneOf(Harmless):
    """Beside `str`: one of these names."""

    def __init__(self, *names: str) -> None:
        self.names = checks.KnownNames(names)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.names.name, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, _: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.names.built)}


class Takes(Harmless):
    """Beside a type: what `make` takes, left as it is written; what it says of anything else. `schema` is its JSON
    Schema, where the type does not say it."""

    def __init__(self, make: Callable[[Any], object], schema: dict[str, Any] | None = None) -> None:
        self._make, self._schema = make, schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return handler(schema) if self._schema is None else self._schema

    def _checked(self, value: Any) -> Any:
        try:
            self._make(value)
        except InputError as error:
            raise checks.Refusal(f"does not fit: {error}") from None
        return value


class OneOrMore:
    """Beside a tuple: an item that is given without a list is a list of one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: tuple(value) if isinstance(value, list | tuple) else (value,), handler(source)
        )

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}


class LengthscaleSpec(Typed):
    """The options of a kernel with a length-scale: a number, a list with one an input, `median` (a sample's median
    distance), `tune` or `tune each` (one an input), which maximise the evidence of a sample; left out, `tune each`,
    but `tune` in vector fields and sums, and `median` in views."""

    lengthscale: Lengthscale = "auto"


class HuberSpec(Part):
    """The residual, in the scaled targets' units, up to which it is squared."""

    huber: Positive = 1.35


class EpsilonSpec(Part):
    """The residual, in the scaled targets' units, up to which it costs nothing."""

    epsilon_insensitive: Positive = 0.1


class QuantilesSpec(Part):
    """Which quantiles, in order; and how freely those of one target differ in shape: at `coupling` 0 they are constants
    apart."""

    quantiles: Levels
    coupling: NotNegative = 1.0


GAUSSIAN: Final = LengthscaleSpec(type="gaussian")
