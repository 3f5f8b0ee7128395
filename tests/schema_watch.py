"""Holds every job that a test reads against the JSON Schema too: a plugin of pytest, which conftest.py loads.

What the reader takes the schema must take. What the reader refuses the schema must refuse, unless the fault is of a
kind that no schema says (`BEYOND`). Jobs that hypothesis makes up are left out: some are wrong in ways that
nobody writes.
"""

import json
import re
from functools import cache
from typing import Any

import jsonschema
from hypothesis import currently_in_test_context
from pydantic import ValidationError

from dorff.spec.job import Job
from dorff.spec.reader import job_schema
from dorff.spec.registry import CLUSTERS, CRITERIA, GRAPHS, KERNELS, LOSSES, OUTPUTS, SAMPLERS, SCALARS

BEYOND = re.compile(
    "|".join(
        [
            *(
                "needs its lengthscale",
                "has no effect",
                "has no manifold terms",
                "manifold terms do not allow",
                "cannot choose among",
            ),
            *("in order, each once", "squares alone", "scores squares", "keeps no sums to begin with"),
            r"\(solve.solver: (sgd|adam)\)",
            *("a place each", "must be unlabelled where", "leave graph out, or between", "posterior is false"),
            *("two views that are called", "arrays of the kernel's views", "kernels of other views"),
            *("which dorff sets", "must be a folder that the nodes see"),
            *("must begin below its end", "rows of p numbers", "rows of numbers, all as long", "came (nan|-?inf)"),
            *(
                "leads to",
                "cannot be followed",
                "cannot be loaded",
                "word of another package",
                "password or a signed query",
            ),
            *(r"came 'a\\x00b'", "has the label True"),
            *("came '9{20,}", "must be one of: (pixels|left)"),  # bytes beyond all; a view that the kernel has not
        ]
    )
)


def _is_whole(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # 5.0 is no whole number in a job


@cache
def _validator(words: tuple[str, ...]) -> Any:
    draft = jsonschema.Draft202012Validator
    checker = draft.TYPE_CHECKER.redefine("integer", _is_whole)
    return jsonschema.validators.extend(draft, type_checker=checker)(json.loads(json.dumps(job_schema())))


def taken(raw: object) -> bool:
    """Whether the schema takes a job, words of packages that are installed now included."""
    registries = (CLUSTERS, CRITERIA, GRAPHS, KERNELS, LOSSES, OUTPUTS, SAMPLERS, SCALARS)
    return bool(_validator(tuple(name for registry in registries for name in registry.names)).is_valid(raw))


def _judge(raw: object, error: ValidationError | None) -> None:
    try:
        plain = json.loads(json.dumps(raw))
    except (TypeError, ValueError):  # made in Python: parts, paths
        return
    if currently_in_test_context():
        return
    if error is None:
        assert taken(plain), f"the reader takes {plain}, but the schema does not"
    elif not any(BEYOND.search(one["msg"]) for one in error.errors(include_url=False)):
        assert not taken(plain), f"the reader refuses {plain}, but the schema does not: {error}"


def pytest_configure() -> None:
    read = Job.model_validate.__func__

    def model_validate(cls: type[Job], raw: object, **options: Any) -> Job:
        try:
            job: Job = read(cls, raw, **options)
        except ValidationError as error:
            _judge(raw, error)
            raise
        _judge(raw, None)
        return job

    Job.model_validate = classmethod(model_validate)  # type: ignore[assignment, method-assign]
