"""The words of a job: each kind of thing has a registry, which knows those of dorff and of other installed packages.

A package adds a word by an entry point of the group `dorff.KIND`, an `Entry` named as the word, imported when used."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Final, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import core_schema

from dorff.errors import InputError
from dorff.errors.shown import show
from dorff.spec.checks import KnownNames, Refusal, nearest
from dorff.spec.part import Part, Typed
from dorff.spec.trust import Harmless, check_word

Config: TypeAlias = dict[str, Any]  # the description of a thing, as JSON or YAML has it


def kind_of(config: object) -> Any:
    """What stands under `type` in a description; None where that is missing, or it is no mapping."""
    return config.get("type") if isinstance(config, Mapping) else None


@dataclass(frozen=True)
class Entry:
    """A word: what `build`s the thing of the options as keyword arguments, the `options` with their types and help.
    `formula` and `source` (author, year) are for the report and the JSON Schema; `written` as a mapping's key."""

    name: str
    build: Callable[..., Any]
    options: type[Part] = Typed
    formula: str = ""
    source: str = ""
    written: str = ""

    @property
    def alone(self) -> bool:
        """Whether the word says all: none of its options is needed."""
        return not any(field.is_required() for name, field in self.options.model_fields.items() if name != "type")


class Registry:
    """The entries of one kind. Importing the module `home` adds those of dorff itself."""

    def __init__(self, kind: str, home: str) -> None:
        self.kind = kind
        self.group: Final = f"dorff.{kind}"
        self._home = home
        self._entries: dict[str, Entry] = {}
        self._foreign: set[str] = set()  # words of other packages that were imported

    def add(self, *entries: Entry) -> None:
        self._entries |= {entry.name: entry for entry in entries}

    @property
    def names(self) -> tuple[str, ...]:
        """Every word, dorff's first; other packages are not imported for it."""
        importlib.import_module(self._home)
        return tuple(dict.fromkeys([*self._entries, *sorted(_entry_points(self.group, tuple(sys.path)).names)]))

    def get(self, name: object) -> Entry | None:
        """The entry of a word; None where no installed package has it. InputError where its package is broken."""
        importlib.import_module(self._home)
        if not isinstance(name, str):
            return None
        if name in self._foreign:
            check_word(self.group, name)
        if name not in self._entries:
            for point in _entry_points(self.group, tuple(sys.path)).select(name=name):
                check_word(self.group, name)
                try:
                    entry = point.load()
                except Exception as error:  # whatever another package's code raises
                    raise InputError(f"{self.group} {name}: {point.value} cannot be loaded ({error})") from error
                if not isinstance(entry, Entry) or entry.name != name:
                    raise InputError(f"{self.group} {name}: {point.value} is no dorff.spec.registry.Entry so named")
                self._entries[name] = entry
                self._foreign.add(name)
        return self._entries.get(name)

    def own(self, name: str) -> Entry | None:
        """The entry of a word where it is dorff's own, or its package was imported already."""
        return self._entries.get(name)

    def entries(self, names: Sequence[str] = ()) -> list[Entry]:
        """Those of these words, or of every word; without the words of packages that cannot be loaded."""
        entries = list[Entry]()
        for name in names or self.names:
            with suppress(InputError):  # who uses that word is told
                entries += filter(None, [self.get(name)])
        return entries

    def formula(self, config: Mapping[str, Any]) -> str:
        """The formula of what a configuration describes, for the report; a letter where it has none."""
        entry = self.get(kind_of(config))
        return entry.formula if entry is not None and entry.formula else "K"


Refer: TypeAlias = Callable[[Entry, Registry], Config]  # gives a "$ref" to the schema of a word's options


@dataclass(frozen=True)
class Word(Harmless):
    """Beside a field's type: a mapping whose `type` is a word of the registry, and whose other keys are its options.
    `default` is the word where `type` is left out; `later` are known but not built, `without` do not go here. `alone`
    stands for itself, in the place of a mapping."""

    registry: Registry
    default: str | None = None
    later: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    alone: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The words that may stand here."""
        keys = [name for name in self.registry.names if (entry := self.registry.own(name)) and entry.written]
        return tuple(name for name in self.registry.names if name not in (*self.without, *keys))

    def read(self, value: object, info: ValidationInfo) -> str | Part:
        if isinstance(value, Part):
            return value
        if self.alone is not None and value == self.alone:
            return self.alone
        if value in self.names:
            raise Refusal(f"must be a mapping of keys, came {show(value)}; write {{type: {value}}}")
        if isinstance(value, str):
            alone = () if self.alone in (None, *self.names) else (self.alone,)
            KnownNames((*self.names, *alone), self.later).name(value)
        if not isinstance(value, dict):
            return Typed.model_validate(value, context=info.context)
        if (keyed := _keyed(self.registry, value)) is not None:
            return keyed.options.model_validate(value, context=info.context)
        kind = value.get("type", self.default)
        entry = None if kind in self.without else _entry(self.registry, kind, key="type")
        if entry is None or entry.written:
            KnownNames(self.names, self.later, self.default).typed(value)
            raise Refusal(f"must be a word, came {show(kind)}; correct it", key="type")
        return entry.options.model_validate({**value, "type": kind}, context=info.context)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return {"words": self}  # in whose place `job_schema` puts `schema`

    def schema(self, refer: Refer) -> Config:
        typed = [
            {**refer(one, self.registry), **({} if one.name == self.default else {"required": ["type"]})}
            for one in self.registry.entries(self.names)
        ]
        alone = [] if self.alone is None else [{"const": self.alone}]
        return {"anyOf": [*alone, *typed, *_of_keys(self.registry, refer)]}


@dataclass(frozen=True)
class Keyed(Harmless):
    """Beside a field's type: a word that needs no options, or a mapping with a word as a key; `only`: which."""

    registry: Registry
    only: tuple[str, ...] = ()

    def read(self, value: object, info: ValidationInfo) -> str | Part:
        """The word, or the options of the mapping's word, checked."""
        if isinstance(value, Part):
            return value
        if isinstance(value, dict) and value:
            if (keyed := _keyed(self.registry, value, self.only)) is not None:
                return keyed.options.model_validate(value, context=info.context)
            keys, key = [entry.name for entry in self._keyed()], next(iter(value))
            raise Refusal(f"is not a known key; {nearest(key, keys)}use one of: {', '.join(keys)}", key=str(key))
        entry = _entry(self.registry, value, key=None) if not self.only or value in self.only else None
        if entry is not None and entry.alone:
            return entry.name
        KnownNames((*self._alone(), *(entry.written for entry in self._keyed()))).name(value)
        raise Refusal(f"needs a value, came {show(value)}; write it as a mapping")

    def _alone(self) -> list[str]:
        return [entry.name for entry in self.registry.entries(self.only) if entry.alone]

    def _keyed(self) -> list[Entry]:
        return [entry for entry in self.registry.entries(self.only) if entry.written]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return {"words": self}

    def schema(self, refer: Refer) -> Config:
        return {"anyOf": [{"enum": self._alone()}, *_of_keys(self.registry, refer, self.only)]}


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    """What packages on the path declare: read once, as it takes ten milliseconds."""
    return entry_points(group=group)


def _entry(registry: Registry, name: object, *, key: str | None) -> Entry | None:
    """The entry of a word; a package that is broken is a Refusal."""
    try:
        return registry.get(name)
    except InputError as error:
        raise Refusal(str(error), key=key) from None


def _keyed(registry: Registry, value: dict[str, object], only: Sequence[str] = ()) -> Entry | None:
    """The entry whose word is a key of the mapping, where that is how it is written."""
    entries = (_entry(registry, name, key=name) for name in only or registry.names if name in value)
    return next((entry for entry in entries if entry is not None and entry.written), None)


def _of_keys(registry: Registry, refer: Refer, only: Sequence[str] = ()) -> list[Config]:
    return [{**refer(one, registry), "required": [one.name]} for one in registry.entries(only) if one.written]


@dataclass(frozen=True)
class NameOf(Harmless):
    """Beside `str`: a word of a registry, none of which has options, or one `more`."""

    registry: Registry
    more: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        says = [f"{one.name}: {one.source}" for one in self.registry.entries() if one.source]
        return {"enum": [*self.registry.names, self.more], "description": "; ".join(says)}

    def _checked(self, value: object) -> object:
        return KnownNames((*self.registry.names, self.more)).name(value)


def lazily(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that is imported when it is called: what few jobs need is not loaded for all."""
    return lambda *arguments, **options: getattr(importlib.import_module(module), name)(*arguments, **options)


SCALARS: Final = Registry("scalars", "dorff.kernels")
KERNELS: Final = Registry("kernels", "dorff.kernels")
SPACES: Final = Registry("spaces", "dorff.kernels")  # of a skeleton's inputs
OUTPUTS: Final = Registry("outputs", "dorff.kernels")
SAMPLERS: Final = Registry("samplers", "dorff.frequencies")
GRAPHS: Final = Registry("graphs", "dorff.graphs")  # `build` gives one of the graphs of `dorff.graphs`
LOSSES: Final = Registry("losses", "dorff.model.losses")  # `build` gives a `Loss`
CRITERIA: Final = Registry("criteria", "dorff.solvers.scores")  # `build` gives a `Criterion`
HELD_OUT: Final = ("kfold", "loo")  # those that score predictions of rows held out
#: `build` is called with the options and with seconds of patience, and gives an `engine.Engine`.
CLUSTERS: Final = Registry("clusters", "dorff.spec.cluster")
READERS: Final = Registry("readers", "dorff.data.readers")  # a word is the end of a file's name, such as .npy
