"""Reads a job file. Whatever is wrong with it is said in one sentence, before anything else of dorff runs."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dorff.errors import InputError
from dorff.spec.checks import Refusal, show
from dorff.spec.job import Job


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but 1e-6 is a number and no key may come twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key '{key.value}' comes twice"
                    raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def load_job(path: str | os.PathLike[str]) -> Job:
    """The job that the YAML file `path` describes; its relative paths start from the file's folder.

    Raises InputError, one sentence, for whatever is wrong with the file.
    """
    source = Path(path)
    raw = _read(source)
    if not isinstance(raw, dict):
        keys = ", ".join(Job.model_fields)
        raise InputError(f"{source}: must be a mapping with the keys {keys}, came {show(raw)}; write them")
    try:
        return Job.model_validate(raw, context={"folder": source.resolve().parent})
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        more = f" (and {len(others)} more)" if others else ""
        raise InputError(f"{source}: {_sentence(first, raw)}{more}") from error


def _read(source: Path) -> object:
    try:
        return yaml.load(source.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror}); give the path of a job file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "unknown"
        raise InputError(f"{source}, line {line}: {error.problem}; correct the YAML there") from error
    except (yaml.YAMLError, ValueError) as error:  # a control character; a date such as 2024-99-99
        raise InputError(f"{source}: is not YAML ({str(error).splitlines()[0]}); correct it") from error


def _sentence(error: Mapping[str, Any], raw: object) -> str:
    """The dotted place of one of pydantic's errors, and what is wrong there."""
    loc, refusal = error["loc"], error.get("ctx", {}).get("error")
    if isinstance(refusal, Refusal):
        return f"{_place(loc, raw, refusal.key)} {refusal}"
    if error["type"] == "missing":
        return f"{_place(loc[:-1], raw, str(loc[-1]))} is missing; add it"
    wanted = error["msg"].replace("Input should be", "must be")
    if error["type"] in ("model_type", "model_attributes_type"):
        wanted = "must be a mapping of keys"
    return f"{_place(loc, raw, None)} {wanted}, came {show(error['input'])}; correct it"


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
