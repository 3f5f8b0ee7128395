"""The zarr.json files of a store: read, written whole or not at all, and sealed. A chunk's checksum says nothing of
the shape, the type or the fill value it is read with, nor of which rows are committed. So what dorff writes into a
zarr.json has a CRC32 too, the seal, in its attribute `dorff`; over what the content means, not over its bytes: other
programs may write the file again, and add attributes of their own."""

import json
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from dorff.errors import FAILING, NO_SPACE, DorffError, IncompleteError, InputError
from dorff.storage.files import rmtree
from dorff.storage.location import locate

Attributes: TypeAlias = dict[str, Any]  # of a Zarr group or array, as its JSON has them

SEAL: Final = "crc32"
OPTIONAL: Final = ("storage_transformers", "configuration", "dimension_names")  # of Zarr v3's keys


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    attributes = dict(content["attributes"])
    attributes["dorff"] = {**attributes.get("dorff", {}), SEAL: _checksum(content)}
    return {**content, "attributes": attributes}


def has_seal(attributes: Mapping[str, Any]) -> bool:
    dorff = attributes.get("dorff")
    return isinstance(dorff, dict) and SEAL in dorff


def columns_of(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns' names that a group's attributes give its arrays."""
    columns = attributes.get("columns")
    return columns if isinstance(columns, dict) else {}


def lost_seal(attributes: Mapping[str, Any], name: str, *, sealed: bool) -> bool:
    """Whether only one of a group and its array `name` has a seal, `sealed` where the array has: the other's is lost.
    Arrays that others add to a group that dorff made need none."""
    return sealed != has_seal(attributes) and (sealed or name in columns_of(attributes))


def normal(value: Any) -> Any:
    """JSON as it is compared: 1.0 is 1, and what may be left out where it is empty is."""
    if isinstance(value, Mapping):
        return {key: normal(item) for key, item in value.items() if item or key not in OPTIONAL}
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _checksum(content: Mapping[str, Any]) -> int:
    """Of all but others' attributes, the copy of other nodes' metadata, and the seal itself."""
    attributes = content["attributes"]
    meant = {key: value for key, value in content.items() if key not in ("attributes", "consolidated_metadata")}
    dorff = {key: value for key, value in attributes.get("dorff", {}).items() if key != SEAL}
    meant["attributes"] = {"columns": attributes.get("columns"), "dorff": dorff}
    return zlib.crc32(json.dumps(normal(meant), sort_keys=True).encode())


def parse(text: bytes, where: object) -> dict[str, Any]:
    """The content of a metadata file; InputError where it is damaged, as far as its own bytes can tell."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: cannot be read as JSON ({error}); restore a copy or ingest again.") from error
    if not isinstance(content, dict):
        raise InputError(f"{where}: wanted a JSON object, got {type(content).__name__}; restore it or ingest again.")
    attributes = content.get("attributes")
    if isinstance(attributes, dict) and has_seal(attributes) and attributes["dorff"][SEAL] != _checksum(content):
        raise InputError(
            f"{where}: is damaged, its checksum (attributes.dorff.{SEAL}) is not that of its content; restore it from "
            "a copy or ingest again. Where another program changed or copied the rows on purpose, remove the "
            "attribute dorff of the group and of its arrays."
        )
    return content


def read_json(path: Path) -> dict[str, Any]:
    """A metadata file's content, checked by `parse`."""
    try:
        text = path.read_bytes()
    except OSError as error:
        if transient(error):
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror}); restore it from a copy.") from error
    return parse(text, path)


def transient(error: Exception) -> bool:
    """Whether memory or a disk failed that may do better next time, so that nothing is known of the file."""
    disk = isinstance(error, OSError) and (error.errno in FAILING or isinstance(error, DorffError))
    return disk or isinstance(error, MemoryError)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file, atomically and durably."""
    with locate(path).writing(sync=True) as file:
        file.write(json.dumps(content, indent=2).encode())


def rewrite(path: Path, content: dict[str, Any]) -> None:
    """Replace a zarr.json that was read by one that says something else, with a new seal where it had one."""
    write_json(path, sealed(content) if has_seal(content["attributes"]) else content)


@contextmanager
def staging(store: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """An empty folder beside the store, ours alone, and what says that it is still: InputError where it is not any
    more, as it may be in a bucket. What a cut run left there, and of a zarr.json, is removed."""
    folder = locate(store.with_name(f".{store.name}.partial"))
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            is_there = held.enter_context(folder.locked(0, folder=True))
        except BlockingIOError as error:
            raise InputError(f"{store}: another run is writing it; wait for its end.") from error

        def check() -> None:
            if not is_there():
                raise InputError(f"{store}: another run has just written it; look at it, then run this one again.")

        check()
        for left in list(folder.iterdir()):
            rmtree(left) if left.is_dir() else left.unlink()
        for torn in (*store.glob(".zarr.json.*"), *store.glob("*/.zarr.json.*")):
            torn.unlink(missing_ok=True)
        try:
            # Whose lock is lost in a bucket writes on where nobody else does.
            yield folder if folder.folders else folder / uuid.uuid4().hex, check
        except FileNotFoundError:
            check()  # another run removed it
            raise
        finally:
            if is_there():  # not so once it has been renamed
                rmtree(folder, ignore_errors=True)


@contextmanager
def reported(store: Path) -> Iterator[None]:
    """Say in one sentence what the system refused: IncompleteError where the disk is full or fails."""
    try:
        yield
    except DorffError:  # of a storage that says it in full
        raise
    except OSError as error:
        full = error.errno in NO_SPACE
        if not full and not transient(error):
            problem = f"cannot be written ({error.strerror or error}); check its permissions."
            raise InputError(f"{store}: {problem}") from error
        problem = "no space left to write it" if full else f"the disk failed ({error})"
        remedy = "free some space" if full else "check the disk"
        raise IncompleteError(f"{store}: {problem}; what was begun is removed: {remedy} and run it again.") from error
