"""Write docs/job.md, the reference of JOB.yaml, from the JSON Schema that `dorff schema` prints.

python docs/job.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dorff.spec.reader import job_schema

PAGE = Path(__file__).with_name("job.md")
HEAD = """# JOB.yaml

Written by `python docs/job.py` from what the reader of jobs knows: every key, what it takes, and what it is where it
is left out; a key with nothing in the last column has to be given. The [guide](guide.md) has whole jobs; which keys go
together, `dorff plan` says. `dorff schema` prints the same as a JSON Schema, with the words of other packages that are
installed. (An editor that reads YAML 1.1 takes `1e-6` for text and may mark it; dorff reads a number. `1.0e-6` is one
to both.)

Text is a folder or file where the page says where something is (relative to the job's own folder), the name of an
array of the data else. Bytes may have a unit: `4GiB`.
"""
WORDS = {  # a kind of word: its heading, in the order of the page
    "kernels": "Kernels",
    "scalars": "Scalar kernels",
    "spaces": "Base spaces of skeletons",
    "outputs": "Output matrices",
    "losses": "Losses",
    "samplers": "Samplers",
    "graphs": "Graphs",
    "clusters": "Clusters",
}
CHOICE = {  # of a kind of word: how a job says which one
    "kernels": "`type` says which one: `kernel: {type: curl_free, scalar: ...}`.",
    "scalars": "`type` says which one: `scalar: {type: gaussian, lengthscale: 0.2}`.",
    "spaces": "`type` says which one: `inputs: {type: angle, lengthscale: 0.5}`.",
    "outputs": "The one key says which: `output: {matrix: A.npy}`. Those without keys are words: `output: identity`.",
    "losses": "The one key says which: `loss: {huber: 1.35}`. Those without keys are words: `loss: logistic`.",
    "samplers": "`type` says which one: `sampler: {type: orthogonal}`.",
    "graphs": "`type` says which one: `graph: {type: knn}`.",
    "clusters": "`type` says which one: `cluster: {type: serial}`; for one that runs its `address` is enough.",
}
PLAIN = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": ""}


def page() -> str:
    schema = job_schema()
    parts = schema["$defs"]
    lines = [HEAD, *_section("The job", schema, 2)]
    for name, part in parts.items():
        if "." not in name:
            lines += _section(_title(name), part, 3)
    for kind, title in WORDS.items():
        lines.append(f"## {title}\n\n{CHOICE[kind]}\n")
        for name, part in parts.items():
            if name.startswith(f"{kind}."):
                lines += _section(_title(name), part, 3)
    return "\n".join(lines).rstrip() + "\n"


def _title(name: str) -> str:
    """The heading of a definition; output matrices and graphs are called so: other things have their names."""
    kind, _, word = name.rpartition(".")
    return f"{word} ({kind})" if kind in ("outputs", "graphs") else word.removesuffix("Spec").lower()


def _link(name: str) -> str:
    title = _title(name)
    return f"[{title}](#{title.replace(' ', '-').replace('(', '').replace(')', '')})"


def _section(title: str, part: dict[str, Any], level: int) -> list[str]:
    lines = [f"{'#' * level} {title}\n", part.get("description", "").strip() + "\n"]
    keys = {key: value for key, value in part["properties"].items() if key != "type"}
    if keys:
        lines += ["| key | takes | left out |", "|---|---|---|"]
        lines += [f"| `{key}` | {_takes(value)} | {_default(value)} |" for key, value in keys.items()]
        lines.append("")
    return lines


def _takes(value: dict[str, Any]) -> str:
    """What a value may be, in words."""
    several = value.get("anyOf") or value.get("oneOf")
    if several is not None:
        return ", or ".join(dict.fromkeys(text for one in several if (text := _takes(one))))
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        heading = WORDS.get(name.partition(".")[0])
        return f"one of [{heading.lower()}](#{heading.lower().replace(' ', '-')})" if heading else _link(name)
    if "enum" in value or "const" in value:
        return ", ".join(f"`{_plain(one)}`" for one in value.get("enum", [value.get("const")]))
    if value["type"] == "array":
        return f"a list of: {_takes(value['items'])}"
    if value["type"] == "object":
        named = value.get("properties")
        return f"`{{{', '.join(named)}}}`" if named else f"for each name: {_takes(value['additionalProperties'])}"
    return PLAIN[value["type"]] + _bounds(value)


def _bounds(value: dict[str, Any]) -> str:
    signs = {"exclusiveMinimum": "above", "minimum": "from", "exclusiveMaximum": "below", "maximum": "to"}
    parts = [f" {word} {value[key]}" for key, word in signs.items() if key in value]
    return "".join(parts) + (f", a multiple of {value['multipleOf']}" if "multipleOf" in value else "")


def _default(value: dict[str, Any]) -> str:
    if "default" not in value:
        return ""
    if isinstance(value["default"], dict) and "$ref" in value:
        return "its defaults"
    return "nothing" if value["default"] in (None, "", []) else f"`{_plain(value['default'])}`"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "").replace(str(2**32), "4GiB")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
