"""What a job that others wrote may say: below a root its paths stay, and keys that name machines, code, secrets or
addresses are refused unless the operator allows them.

Each key of a job declares what it is, by its type or by a mark beside it (`Harmless`, `Guarded`); a key that declares
nothing is refused below a root. `Trust` holds the root and what the operator allows."""

import os
import typing
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel

from dorff.errors import InputError
from dorff.errors.secrets import redact
from dorff.errors.shown import printable, show
from dorff.storage.location import is_remote, locate

Allowed = Mapping[str, tuple[str, ...] | None]
BUCKETS: Final = ("s3", "gs", "az")  # schemes of dorff's own
MOST_LINKS: Final = 40  # of a path, as the kernel has it


class Harmless:
    """Beside a type: no value of it names a machine, code, a secret or an address."""


@dataclass(frozen=True)
class Guarded:
    """Beside a key's type: below a root the key is refused unless the operator allows it.

    `names` completes "it names ...". Values in `free` are taken anyway, and so is the key's default, except where
    `always` is set.
    """

    names: str
    free: tuple[str, ...] = ()
    always: bool = False


class Key(NamedTuple):
    """One key of a job as it was read: where it stands, the mapping that has it, and its value."""

    place: str
    owner: BaseModel
    name: str
    value: Any

    @property
    def path(self) -> str:
        """The place without the numbers of list items, as an operator allows it."""
        return "".join(part.partition("]")[2] if "]" in part else part for part in self.place.split("["))


@dataclass(frozen=True, kw_only=True)
class Trust:
    """The folder that a job's paths have to stay in, and what its operator allows beyond.

    `allowed` maps a key such as `cluster.address` to the values that it may have, or to None for any value.
    """

    root: Path
    allowed: Allowed = field(default_factory=dict)

    def allows(self, key: str, value: object) -> bool:
        """Return whether the operator allows this value of a key."""
        if key not in self.allowed:
            return False
        values = self.allowed[key]
        given = value if isinstance(value, list | tuple) else (value,)
        return values is None or all(any(_matches(text, item) for text in values) for item in given)

    def check(self, job: BaseModel) -> None:
        """Raise InputError for the first key of a job that is not allowed, or whose path leads out of the root."""
        for key in _keys(job, ""):
            if isinstance(key.value, Path):
                self._check_path(key)
            if key.name in key.owner.model_fields_set or _is_always_guarded(key):
                self._check_key(key)

    def _check_key(self, key: Key) -> None:
        mark = trust_of(type(key.owner), key.name)
        default = type(key.owner).model_fields[key.name].get_default(call_default_factory=True, validated_data={})
        harmless = key.value == default and key.name != "type"
        if isinstance(mark, Guarded):
            harmless = key.value in mark.free or (harmless and not mark.always)
        if isinstance(mark, Harmless) or harmless or self.allows(key.path, key.value):
            return
        names = mark.names if isinstance(mark, Guarded) else "what dorff does not know"
        came = "" if isinstance(key.value, BaseModel) else f", came {show(key.value)}"
        raise InputError(
            f"{key.place} is refused below the root {self.root}{came}: it names {names}; "
            f"take it out, or have the operator allow it (--allow {key.path})"
        )

    def _check_path(self, key: Key) -> None:
        """Raise InputError where a path, or a link in the folder that it names, leads out of the root."""
        values = self.allowed.get(key.path) or ()
        if is_remote(key.value):
            inside = any(is_remote(text) and _is_below(key.value, locate(text)) for text in values)
            leads = printable(redact(str(key.value)))
        else:
            try:
                place = key.value.resolve()
                folders = [self.root, *(Path(text).resolve() for text in values)]
                inside, leads = any(map(place.is_relative_to, folders)), printable(str(place))
            except (OSError, RuntimeError) as error:  # a loop of links
                problem = f"must be a path, came {show(str(key.value))}, which cannot be followed ({error}); correct it"
                raise InputError(f"{key.place} {problem}") from None
        if not inside:
            remedy = f"name a place below it, or have the operator allow this one (--allow {key.path}=PLACE)"
            raise InputError(f"{key.place} leads to {leads}, out of the root {self.root}; {remedy}")
        if is_remote(key.value) or not place.is_relative_to(self.root):
            return  # what the operator allowed is the operator's
        for link in _links_below(place):
            target = link.resolve()
            if not any(map(target.is_relative_to, folders)):
                problem = f"is a link to {printable(str(target))}, out of the root {self.root}"
                raise InputError(f"{key.place}: {printable(str(link))} {problem}; remove it, or put the file there")


def _links_below(folder: Path) -> Iterator[Path]:
    """Go through the links in a folder, and in the folders that they lead to."""
    pending, seen = deque([folder]), {folder}
    while pending:
        folder = pending.popleft()
        if not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            found = [
                (Path(entry.path), entry.is_symlink()) for entry in entries if entry.is_symlink() or entry.is_dir()
            ]
        for path, is_link in found:
            if is_link:
                yield path
            place = path.resolve() if is_link else path
            if place not in seen:
                seen.add(place)
                pending.append(place)


def _matches(text: str, value: object) -> bool:
    """Whether a value is the allowed text, or begins with what stands before its last `*`."""
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return said.startswith(text[:-1]) if text.endswith("*") else said == text


def _is_below(place: Path, folder: Path) -> bool:
    return type(place) is type(folder) and ".." not in place.parts and place.is_relative_to(folder)


def _is_always_guarded(key: Key) -> bool:
    mark = trust_of(type(key.owner), key.name)
    return isinstance(mark, Guarded) and mark.always


def _keys(value: Any, place: str) -> Iterator[Key]:
    """Every key of every mapping of a job."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            below = f"{place}.{name}".removeprefix(".")
            item = getattr(value, name)
            yield Key(below, value, name, item)
            yield from _keys(item, below)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _keys(item, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _keys(item, f"{place}[{number}]")


def trust_of(owner: type[BaseModel], name: str) -> Harmless | Guarded | None:
    """Return what a key declares itself to be; None where it declares nothing.

    Without a mark of its own a key is harmless if its type can hold only numbers, truth values, fixed words, paths
    (which are kept below the root) and mappings (whose own keys are looked at). In a subclass of `Declares`, whose
    numbers may be ports and whose switches may turn off encryption, every key needs a mark.
    """
    annotation = typing.get_type_hints(owner, include_extras=True)[name]
    marks = [mark for mark in _marks(annotation) if isinstance(mark, Harmless | Guarded)]
    if marks:
        return marks[0]
    if issubclass(owner, Declares):
        return None
    return Harmless() if _is_data(annotation) else None


class Declares(BaseModel):
    """A mapping each key of which has to declare what it is, numbers and switches too."""


def _marks(annotation: Any) -> tuple[Any, ...]:
    return annotation.__metadata__ if typing.get_origin(annotation) is Annotated else ()


def _is_data(annotation: Any) -> bool:
    """Whether a type holds nothing but numbers, truth values, fixed words, paths and mappings of a job."""
    if any(isinstance(mark, Harmless) for mark in _marks(annotation)):
        return True
    if typing.get_origin(annotation) is Annotated:
        return _is_data(annotation.__origin__)
    if typing.get_origin(annotation) is Literal:
        return True
    if parts := typing.get_args(annotation):
        return all(_is_data(part) for part in parts if part is not ...)
    return isinstance(annotation, type) and issubclass(annotation, (int, float, NoneType, Path, BaseModel))


_trust: ContextVar[Trust | None] = ContextVar("trust", default=None)


@contextmanager
def trusting(trust: Trust | None) -> Iterator[None]:
    """Refuse words of other packages inside the block, except those that the operator allows."""
    token = _trust.set(trust)
    try:
        yield
    finally:
        _trust.reset(token)


def keep_trusting(trust: Trust) -> None:
    """Do as `trusting` does, until the `trusting` block ends in which this is called."""
    _trust.set(trust)


def check_word(group: str, word: str) -> None:
    """Raise InputError where a job below a root may not have the code of another package imported."""
    trust = _trust.get()
    if trust is not None and not trust.allows(group, word):
        problem = f"is the word of another package, whose code a job below the root {trust.root} may not run"
        raise InputError(f"{show(word)} {problem}; have the operator allow it (--allow {group}={word})")


def check_scheme(path: str | os.PathLike[str]) -> None:
    """Raise InputError where a path's scheme would import another package that is not allowed."""
    scheme, mark, _ = os.fspath(path).partition("://")
    if mark and scheme not in BUCKETS:
        check_word("dorff.storage", scheme)


def leads_through(path: Path, folder: Path) -> bool:
    """Return whether a path, or a link on its way, leads through a folder."""
    pending, current, links = deque(path.absolute().parts[1:]), PosixPath("/"), 0
    while pending:
        part = pending.popleft()
        if part == "..":
            current = current.parent
            continue
        step = current / part
        if step.is_relative_to(folder):
            return True
        if not step.is_symlink():
            current = step
            continue
        target = step.readlink()
        links += 1
        if links > MOST_LINKS:
            return True
        if target.is_absolute():
            current = PosixPath("/")
        pending.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return False
