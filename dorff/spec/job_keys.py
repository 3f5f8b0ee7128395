"""Keys that a job may have, written with dots, such as `cluster.image`: which are known, and which look alike."""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BaseModel

from dorff.errors import InputError
from dorff.errors.shown import show
from dorff.spec import registry
from dorff.spec.checks import nearest
from dorff.spec.job import Job
from dorff.spec.registry import Keyed, Registry, Word

#: Kinds of words that other packages may add, as an operator allows them: `dorff.kernels=WORD`.
WORD_GROUPS: Final = (
    *(value.group for value in vars(registry).values() if isinstance(value, Registry)),
    "dorff.storage",
)


@dataclass
class _Below:
    """What may stand below a key: mappings of known keys, or `anything`."""

    models: list[type[BaseModel]] = field(default_factory=list)
    named: list[Any] = field(default_factory=list)  # types of a mapping's values, by names of the user's
    anything: bool = False

    def names(self) -> list[str]:
        """Return the keys of all its mappings."""
        return list(dict.fromkeys(name for model in self.models for name in model.model_fields))

    def types_of(self, name: str) -> list[Any]:
        """Return the types that a key has in them."""
        having = [model for model in self.models if name in model.model_fields]
        return [typing.get_type_hints(model, include_extras=True)[name] for model in having]


def check_allowed_key(key: str, where: str) -> None:
    """Raise InputError, naming `where`, unless a job may have this key, or it is a kind of words."""
    if key.startswith("dorff."):
        if key not in WORD_GROUPS:
            raise _unknown_key(key, key, list(WORD_GROUPS), where)
        return
    types: list[Any] = [Job]
    for part in key.split("."):
        below = _Below()
        for annotation in types:
            _collect(annotation, below)
        types = below.types_of(part)
        if not types and below.anything:
            return  # options of another package's words, which is not imported for this
        if not types and not below.named:
            raise _unknown_key(key, part, below.names(), where)
        types = types or below.named


def _unknown_key(key: str, part: str, known: list[str], where: str) -> InputError:
    expected = f"{nearest(part, known)}use one of: {', '.join(known)}" if known else "nothing stands below it"
    shown = show(key) if part == key else f"{show(key)}: {show(part)}"
    return InputError(f"{where}: {shown} is no key of a job; {expected}")


def _collect(annotation: Any, below: _Below) -> None:
    """Add what may stand below a key of this type."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        for mark in annotation.__metadata__:
            if isinstance(mark, Word | Keyed):
                _collect_words(mark.registry, below)
        _collect(annotation.__origin__, below)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        below.named.append(typing.get_args(annotation)[1])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        below.models.append(annotation)
    else:
        for part in typing.get_args(annotation):
            _collect(part, below)


def _collect_words(words: Registry, below: _Below) -> None:
    """Add the options of a registry's words; those of other packages may be called anything."""
    entries = [words.own(name) for name in words.names]
    below.models += [entry.options for entry in entries if entry is not None]
    below.anything = below.anything or None in entries
