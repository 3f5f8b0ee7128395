"""The JSON Schema of job files. Every job that any test reads is held against it too (tests/schema_watch.py)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from command_line import call
from schema_watch import taken

from dorff.spec.reader import job_schema

JOB = """
data: {store: a.zarr}
kernel: {type: curl_free, scalar: {lengthscale: 2.0}}
state: s
model: m
"""


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for below in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings(below)


def test_it_is_a_schema_and_says_of_every_part_what_it_is() -> None:
    schema = job_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert len(schema["$defs"]) > 30
    assert [at for at in mappings(schema) if not isinstance(at.get("words", {}), dict)] == []  # all words were put in
    parts = {name: part for name, part in schema["$defs"].items()}
    assert all(part["additionalProperties"] is False for part in parts.values())
    assert {name for name, part in parts.items() if not part.get("description")} == set()
    assert "Rahimi" in parts["scalars.gaussian"]["description"]


def test_the_command_prints_it() -> None:
    done = call("schema")
    assert done.exit_code == 0 and json.loads(done.stdout) == json.loads(json.dumps(job_schema()))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, True),
        ({"kernel": [{"type": "curl_free", "scalar": {"lengthscale": "median"}}]}, True),
        ({"kernel": []}, False),
        ({"kernel": {"scalar": {"lengthscale": 2.0}}}, False),  # a kernel has no default
        ({"kernel": {"type": "curl_free", "scalar": {"type": "matern", "lengthscale": 1, "nu": 0}}}, False),
        ({"kernel": {"type": "curl_free", "scalar": {"type": "gaussian", "lengthscale": 1, "nu": 2}}}, False),
        ({"cluster": {"workers": 3}}, True),  # a local one
        ({"cluster": {"type": "serial", "workers": 3}}, False),
        ({"cluster": {"address": "tcp://localhost:1"}}, True),
        ({"cluster": {"address": "localhost"}}, False),
        ({"cluster": {"type": "serial", "memory": "4 GiB"}}, True),
        ({"cluster": {"type": "serial", "memory": "4 Gig"}}, False),
        ({"manifold": {"weight": 1, "power": 3}}, False),
        ({"manifold": [{"weight": 1, "graph": {"neighbours": 4}}]}, True),
        ({"manifold": {"weight": 1, "graph": {"path": "g"}}}, False),  # without a type it is knn
        ({"solve": {"ridge": {"from": 1, "to": 2, "count": 3}}}, True),
        ({"solve": {"ridge": {"from": 1, "to": 2}}}, False),
        ({"features": {"count": [8, 8]}}, False),
        ({"solve": {"ridges": 1}}, False),
    ],
)
def test_it_takes_and_refuses_what_the_reader_does(tmp_path: Path, change: dict[str, Any], wanted: bool) -> None:
    job = yaml.safe_load(JOB) | change
    assert taken(job) is wanted
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job))
    (tmp_path / "a.zarr").mkdir()
    reads = "there is no" in (output := call("plan", path).output) or "zarr" in output
    assert reads is wanted, output
