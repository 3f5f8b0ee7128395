"""Publishes a model, many times over, on a file system that fails at every step in turn.

    python publishing.py DIRECTORY FAULT,BEFORE,AFTER ...

Of the steps before the switch each BEFOREth, of those from the switch on each AFTERth. A line of JSON for each: the
fault, the step, how the publish ended, and what a process that comes later finds; the first is of no fault. Processes
are forked from one that has imported everything and has no thread of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from cases import plain_map
from failing_files import BadDisk, Fault, Files, FullDisk, Kill, Step

from dorff import kernels
from dorff.errors import DorffError
from dorff.fit.publish import Verdict, publish
from dorff.model import Model
from dorff.model.weights import OperatorWeights
from dorff.spec.job import Publish
from dorff.store import LEASE, Lease, current_version, load_model, read_history

FAULTS: dict[str, Fault] = {"kill": Kill(), "full": FullDisk(), "bad": BadDisk()}


def model(value: float) -> Model:
    """A small model whose coefficients are all `value`."""
    kernel = kernels.Decomposable(kernels.Gaussian(1.0)).fix(1, 1)
    weights = OperatorWeights(np.ones(4), np.ones((1, 1, 1)))
    return Model(
        plain_map(np.ones((2, 1))), weights, np.full((4, 1), value), np.ones(1), np.ones(1), kernel, {}, 0
    )  # fmt: skip


def publish_value(root: Path, value: float) -> int:
    """Publish such a model, keeping two versions; the lease's token."""

    def judge(new: Path, old: Path | None) -> Verdict:
        assert load_model(new).coefficients[0, 0] == value
        return Verdict(value, None if old is None else float(load_model(old).coefficients[0, 0]))

    with Lease.take(root / LEASE) as lease:
        publish(model(value), root, lease=lease, rule=Publish(keep=2), record={"value": value}, judge=judge)
        return lease.token


def look(root: Path) -> dict[str, Any]:
    """What is at a model's root: the current value, whole versions with theirs, torn things, the history."""
    current = current_version(root)
    assert current is not None
    return {
        "current": current,
        "values": {path.name: float(load_model(path).coefficients[0, 0]) for path in sorted(root.glob("v*"))},
        "torn": sorted("." + re.split(r"[.-]", path.name)[1] for path in root.glob(".*")),
        "history": [line["version"] for line in read_history(root) if line["outcome"] == "published"],
    }


def apart(work: Callable[[], dict[str, Any]], report: Path) -> dict[str, Any]:
    """What `work` returns, or how it ended, in a process of its own."""
    report.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        try:
            found = work()
        except DorffError as error:
            found = {"exit": error.exit_code, "says": str(error)}
        except BaseException as error:
            found = {"exit": 1, "says": repr(error)}
        report.write_text(json.dumps(found))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return {"exit": -os.WTERMSIG(status)} if os.WIFSIGNALED(status) else json.loads(report.read_text())


def one(directory: Path, fault: Fault, at: int) -> dict[str, Any]:
    """Publish 3.0 after 1.0 and 2.0 with a fault at step `at`; look; publish 4.0; look again."""
    root, report = directory / "model", directory / "report"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(directory / "before", root)

    def faulty() -> dict[str, Any]:
        files = Files(root, fault, at)
        files.install()
        try:
            publish_value(root, 3.0)
            ended: dict[str, Any] = {"exit": 0}
        except DorffError as error:
            ended = {"exit": error.exit_code, "says": str(error)}
        return {**ended, "steps": [asdict(step) for step in files.steps]}

    def again() -> dict[str, Any]:
        after = look(root)
        token = publish_value(root, 4.0)
        history = [line["version"] for line in read_history(root) if line["outcome"] == "published"]
        value = float(load_model(root).coefficients[0, 0])
        return {"exit": 0, "after": after, "token": token, "value": value, "history": history}

    ended = apart(faulty, report)
    return {"at": at, "ended": ended, "later": apart(again, report)}


def main(directory: Path, *asked: str) -> None:
    def before() -> dict[str, Any]:
        for value in (1.0, 2.0):
            publish_value(directory / "before", value)
        return {"exit": 0}

    shutil.rmtree(directory / "before", ignore_errors=True)
    assert apart(before, directory / "report") == {"exit": 0}
    clean = one(directory, Kill(), -1)
    print(json.dumps(clean))
    steps = [Step(**step) for step in clean["ended"]["steps"]]
    switch = steps.index(Step("os.rename", "v000003"))
    for name, first, second in (text.split(",") for text in asked):
        told = [at for at, step in enumerate(steps) if FAULTS[name].minds(step)]
        early, late = [at for at in told if at < switch], [at for at in told if at >= switch]
        for at in early[:: int(first)] + late[:: int(second)]:
            print(json.dumps({"fault": name, **one(directory, FAULTS[name], at)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
