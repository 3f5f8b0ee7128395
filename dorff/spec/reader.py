"""Reads a job file. Whatever is wrong with it is said in one sentence, before anything else of dorff runs.

`job_schema` says as a JSON Schema what a job file may say, for editors."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from dorff.errors import InputError
from dorff.errors.shown import show
from dorff.spec.checks import Refusal
from dorff.spec.job import Job
from dorff.spec.job_keys import check_allowed_key
from dorff.spec.part import Typed
from dorff.spec.registry import Config, Entry, Registry
from dorff.spec.trust import Allowed, Trust, leads_through, trusting

MOST_VALUES = 1_000_000  # what a matrix written out may need, and a handful of aliases must not become
MOST_PLACES: Final = 8  # of further faults that are named
LONG_TEXT = 100  # characters
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
MOST_BYTES: Final = 2**25  # of a job file with such a matrix


#: Numbers of YAML 1.1 that are text, or other numbers, to YAML 1.2: 12:30:45 has base 60, 010 is 8. They are refused.
_OLD: Final = re.compile(r"[-+]?(?:\d[\d_]*(?::[\d_]+)+(?:\.[\d_]*)?|0[\d_]+)$")
_OLD_TAG: Final = "tag:yaml.org,2002:old"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but 1e-6 is a number, no key may come twice, and no number has base 60 or 8."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key '{key.value}' comes twice"
                    raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def refuse_number(self, node: yaml.ScalarNode) -> Any:
        came = f"{show(node.value)} is one number to YAML 1.1, and text or another to YAML 1.2; write it in quotes"
        raise yaml.constructor.ConstructorError(problem=came, problem_mark=node.start_mark)

    def construct_number(self, node: yaml.ScalarNode) -> float:
        return self.refuse_number(node) if _OLD.match(node.value) else self.construct_yaml_float(node)

    def construct_whole_number(self, node: yaml.ScalarNode) -> int:
        if _OLD.match(node.value):
            self.refuse_number(node)
        if (number := self.construct_yaml_int(node)).bit_length() > 63:
            problem = "a whole number of more than 63 bits"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
        return number

    def construct_document(self, node: yaml.Node) -> Any:
        _count(node, {})
        return super().construct_document(node)


def _count(node: yaml.Node, counts: dict[yaml.Node, int | None]) -> int:
    """The values below `node`, aliases counted each time; refused where they are too many, or hold themselves."""
    if node in counts:
        if (known := counts[node]) is None:
            raise yaml.constructor.ConstructorError(problem="a value holds itself", problem_mark=node.start_mark)
        return known
    counts[node] = None
    if isinstance(node, yaml.ScalarNode):
        found = 1 + len(node.value) // LONG_TEXT
    else:
        parts = (part for item in node.value for part in (item if isinstance(item, tuple) else (item,)))
        found = 1 + sum(_count(part, counts) for part in parts)
    counts[node] = found
    if found > MOST_VALUES:
        problem = f"more than {MOST_VALUES:,} values, aliases counted each time"
        raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
    return found


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)
_Loader.add_constructor(_OLD_TAG, _Loader.refuse_number)
_Loader.yaml_implicit_resolvers = {  # the first that matches wins
    first: [*([(_OLD_TAG, _OLD)] if first in "-+0123456789" else []), *others]
    for first, others in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_job(
    path: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None, allowed: Allowed | None = None
) -> Job:
    """Read the job that a YAML file describes.

    Parameters
    ----------
    path
        The job file. Its relative paths start from its folder.
    root
        A folder, for a job that others wrote: every path must lead, links followed, to a place below it, and keys that
        name machines, code, secrets or addresses are refused (`dorff.spec.trust`).
    allowed
        What is allowed below `root` all the same: keys, with the values that they may have, or None for any value.
        A path may also lead to an allowed value, or below it.

    Raises
    ------
    InputError
        One sentence, for whatever is wrong with the file.
    """
    source = Path(path)
    if root is not None and not Path(root).is_dir():
        raise InputError(f"root {root}: is not a folder; name the one that a job's paths have to be in")
    trust = None if root is None else Trust(root=Path(root).resolve(), allowed=allowed or {})
    if not isinstance(raw := _read(source), dict):
        keys = ", ".join(Job.model_fields)
        raise InputError(f"{source}: must be a mapping with the keys {keys}, came {show(raw)}; write them")
    try:
        with trusting(trust):
            job = Job.model_validate(raw, context={"folder": source.resolve().parent})
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        places = list(dict.fromkeys(_where(one, raw) for one in others))
        shown = ", ".join(places[:MOST_PLACES]) + (", ..." if len(places) > MOST_PLACES else "")
        more = f" (and {len(places)} more: {shown})" if others else ""
        raise InputError(f"{source}: {_sentence(first, raw)}{more}") from None  # pydantic's repeats values
    if trust is not None:
        try:
            trust.check(job)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    return job


def load_allowed(
    policy: str | os.PathLike[str] | None, options: Sequence[str], *, root: str | os.PathLike[str]
) -> dict[str, tuple[str, ...] | None]:
    """Read what an operator allows jobs below a root: the file `policy`, and options KEY or KEY=VALUE.

    The file is YAML, or TOML where its name ends in .toml: `allow: {KEY: VALUE, KEY: [VALUE, ...], KEY: true}`, where
    true stands for any value. It may not lie in the root, nor may a link on the way to it. A key that no job has is
    refused.
    """
    allowed: dict[str, tuple[str, ...] | None] = {}
    if policy is not None:
        allowed |= _read_policy(Path(policy), Path(root).resolve())
    for option in options:
        key, equals, value = option.partition("=")
        check_allowed_key(key, "--allow")
        known = allowed.get(key, ())
        allowed[key] = (*known, value) if equals and known is not None else None
    return allowed


def _read_policy(source: Path, root: Path) -> dict[str, tuple[str, ...] | None]:
    if leads_through(source, root):
        problem = f"leads through the root {root}, where those who write jobs could change it"
        raise InputError(f"policy {source}: {problem}; keep it elsewhere")
    content = _read(source, toml=source.suffix == ".toml")
    allow = content.get("allow") if isinstance(content, dict) and list(content) == ["allow"] else None
    if not isinstance(allow, dict):
        raise InputError(f"policy {source}: wanted allow: {{KEY: VALUES}} alone, came {show(content)}; correct it")
    found: dict[str, tuple[str, ...] | None] = {}
    for key, value in allow.items():
        check_allowed_key(str(key), f"policy {source}")
        values = value if isinstance(value, list) else [value]
        if value is True:
            found[str(key)] = None
        elif values and all(isinstance(item, str) and item for item in values):
            found[str(key)] = tuple(values)
        else:
            wanted = "true, a text or a list of texts"
            raise InputError(f"policy {source}: {show(key)}: wanted {wanted}, came {show(value)}; correct it")
    return found


def job_schema() -> Config:
    """The JSON Schema (draft 2020-12) of job files, with words of installed packages. It looks at each value alone."""
    definitions: Config = {}

    def put_words(node: Any) -> Any:
        """`node` with the schemas of registries' words in their places."""
        if isinstance(node, list):
            return [put_words(item) for item in node]
        if not isinstance(node, dict):
            return node
        words = node.get("words")
        own = {} if words is None or isinstance(words, dict) else words.schema(refer)
        return {key: put_words(item) for key, item in node.items() if not own or key != "words"} | own

    def refer(entry: Entry, registry: Registry) -> Config:
        """To the schema of a word's options, which is added to `definitions`, and those of their parts."""
        name = f"{registry.kind}.{entry.name}"
        if name not in definitions:
            definitions[name] = {}  # a word's options may hold the word itself
            schema = entry.options.model_json_schema()
            for part, own in schema.pop("$defs", {}).items():
                if part not in definitions:
                    definitions[part] = {}
                    definitions[part] = put_words(own)
            help_text = schema.get("description") if entry.options.__doc__ != Typed.__doc__ else None
            says = [text for text in (entry.formula, help_text, entry.source) if text]
            if "type" in schema["properties"]:
                schema["properties"]["type"] = {"const": entry.name}
            schema["required"] = [key for key in schema.get("required", []) if key != "type"]
            definitions[name] = put_words({**schema, "title": entry.name, "description": "\n\n".join(says)})
        return {"$ref": f"#/$defs/{name}"}

    schema = Job.model_json_schema()
    parts = schema.pop("$defs", {})
    return {"$schema": DIALECT, "title": "A dorff job", **put_words(schema), "$defs": put_words(parts) | definitions}


def _read(source: Path, *, toml: bool = False) -> object:
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise InputError(f"{source}: is no plain file; give the path of a job file")
    try:
        with source.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"{source}: is larger than {MOST_BYTES >> 20} MiB; give a job file")
        return tomllib.loads(content.decode()) if toml else yaml.load(content.decode(), Loader=_Loader)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror}); give the path of a job file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "unknown"
        raise InputError(f"{source}, line {line}: {error.problem}; correct the YAML there") from error
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply; correct it") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: is not TOML ({error}); correct it") from error
    except (yaml.YAMLError, ValueError) as error:  # a control character; a date such as 2024-99-99
        raise InputError(f"{source}: is not YAML ({str(error).splitlines()[0]}); correct it") from error


def _sentence(error: Mapping[str, Any], raw: object) -> str:
    """The place of one of pydantic's errors, and what is wrong there."""
    where, refusal = _where(error, raw), error.get("ctx", {}).get("error")
    if isinstance(refusal, Refusal):
        return f"{where} {refusal}"
    if error["type"] == "missing":
        return f"{where} is missing; add it"
    wanted = error["msg"].replace("Input should be", "must be").replace("String should match", "must match")
    if error["type"] in ("model_type", "model_attributes_type"):
        wanted = "must be a mapping of keys"
    return f"{where} {wanted}, came {show(error['input'])}; correct it"


def _where(error: Mapping[str, Any], raw: object) -> str:
    loc, refusal = error["loc"], error.get("ctx", {}).get("error")
    if error["type"] == "missing":
        return _place(loc[:-1], raw, str(loc[-1]))
    return _place(loc, raw, refusal.key if isinstance(refusal, Refusal) else None)


def _place(loc: tuple[int | str, ...], raw: object, key: str | None) -> str:
    """`loc` and then `key` as a.b[0].c, without the names of union members that pydantic puts between."""
    place, node = "", raw
    for step in loc:
        if isinstance(node, dict) and step in node:
            place, node = f"{place}.{step}", node[step]
        elif isinstance(node, list) and isinstance(step, int):
            place, node = f"{place}[{step}]", node[step]
    place += "" if key is None else f".{key}"
    return place.removeprefix(".") or "the job"
