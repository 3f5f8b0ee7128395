"""Publishing: judged beside the current model, switched to in one step, told in the history."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_store import small_model

from dorff.errors import GateError, InputError, LeaseError
from dorff.fit.publish import Verdict, publish
from dorff.model import Model
from dorff.spec.job import Publish
from dorff.store import LEASE, Lease, current_version, load_model, read_history, save_model
from dorff.store.models import _discard, switch_current, write_version

RULE = Publish()


def model(value: float) -> Model:
    return replace(small_model(), coefficients=np.full((4, 1), value))


def value_of(path: Path) -> float:
    return float(load_model(path).coefficients[0, 0])


def good(new: Path, old: Path | None) -> Verdict:
    return Verdict(0.9, 0.8)


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    with Lease.take(tmp_path / LEASE) as held:
        yield held


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.startswith("lease."))


def test_each_model_is_judged_beside_the_current_one_and_then_current(tmp_path: Path, lease: Lease) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    def judge(new: Path, old: Path | None) -> Verdict:
        seen.append((value_of(new), None if old is None else value_of(old), current_version(tmp_path)))
        return Verdict(value_of(new), None if old is None else value_of(old))

    for value in (1.0, 2.0, 3.0):
        path, _ = publish(model(value), tmp_path, lease=lease, rule=RULE, record={"rows": value}, judge=judge)
        assert path == tmp_path / f"v00000{value:.0f}" and value_of(tmp_path) == value
    assert seen == [(1.0, None, None), (2.0, 1.0, "v000001"), (3.0, 2.0, "v000002")]
    history = read_history(tmp_path)
    told = {"outcome": "published", "version": "v000002", "score": 2.0, "old_score": 1.0, "rows": 2.0, "token": 1}
    assert [line["version"] for line in history] == ["v000001", "v000002", "v000003"]
    assert told.items() <= history[1].items() and history[1]["time"].endswith("+00:00")
    assert files(tmp_path) == ["current", "history.jsonl", "v000001", "v000002", "v000003"]


def test_a_refused_model_leaves_the_old_one_current(tmp_path: Path, lease: Lease) -> None:
    def bad(new: Path, old: Path | None) -> Verdict:
        return Verdict(0.1, None if old is None else 0.8, ("the score fell", "one digit is left"))

    with pytest.raises(GateError, match=r"not published: the score fell; one digit is left\. There is no model yet"):
        publish(model(1.0), tmp_path, lease=lease, rule=RULE, record={}, judge=bad)
    assert files(tmp_path) == ["history.jsonl"]
    publish(model(2.0), tmp_path, lease=lease, rule=RULE, record={}, judge=good)
    with pytest.raises(GateError, match=r"the score fell; one digit is left\. v000001 stays current") as caught:
        publish(model(3.0), tmp_path, lease=lease, rule=RULE, record={"rows": 7}, judge=bad)
    assert caught.value.exit_code == 6
    assert value_of(tmp_path) == 2.0 and files(tmp_path) == ["current", "history.jsonl", "v000001"]
    last = read_history(tmp_path)[-1]
    told = {"outcome": "refused", "reasons": ["the score fell", "one digit is left"], "score": 0.1, "old_score": 0.8}
    assert (told | {"rows": 7}).items() <= last.items() and "version" not in last


@pytest.mark.parametrize("error", [InputError("the holdout is gone"), KeyboardInterrupt()])
def test_a_gate_that_breaks_leaves_nothing_behind(tmp_path: Path, lease: Lease, error: BaseException) -> None:
    publish(model(1.0), tmp_path, lease=lease, rule=RULE, record={}, judge=good)
    before = read_history(tmp_path)

    def broken(new: Path, old: Path | None) -> Verdict:
        raise error

    with pytest.raises(type(error)):
        publish(model(2.0), tmp_path, lease=lease, rule=RULE, record={}, judge=broken)
    assert value_of(tmp_path) == 1.0 and read_history(tmp_path) == before
    assert files(tmp_path) == ["current", "history.jsonl", "v000001"]


@pytest.mark.parametrize("reasons", [(), ("bad",)])
def test_who_lost_the_lease_changes_nothing(tmp_path: Path, lease: Lease, reasons: tuple[str, ...]) -> None:
    publish(model(1.0), tmp_path, lease=lease, rule=RULE, record={}, judge=good)

    def overtaken(new: Path, old: Path | None) -> Verdict:
        (tmp_path / "lease.000001").write_bytes(b"")
        Lease.take(tmp_path / LEASE).release()
        return Verdict(0.9, 0.8, reasons)

    before = read_history(tmp_path)
    for judge in (overtaken, good):  # lost meanwhile; lost before
        with pytest.raises(LeaseError, match="the lease is no longer held; nothing is published"):
            publish(model(2.0), tmp_path, lease=lease, rule=RULE, record={}, judge=judge)
        assert value_of(tmp_path) == 1.0 and read_history(tmp_path) == before
        assert files(tmp_path) == ["current", "history.jsonl", "v000001"]


def test_what_a_killed_publish_left_is_removed_by_the_next(tmp_path: Path, lease: Lease) -> None:
    publish(model(1.0), tmp_path, lease=lease, rule=RULE, record={}, judge=good)
    write_version(model(2.0), tmp_path)
    write_version(model(3.0), tmp_path).rename(tmp_path / f".gone-{'0' * 32}")
    (tmp_path / ".new-idea").mkdir()  # somebody else's

    def judge(new: Path, old: Path | None) -> Verdict:
        assert files(tmp_path) == sorted([new.name, ".new-idea", "current", "history.jsonl", "v000001"])
        return Verdict(None, None)

    publish(model(4.0), tmp_path, lease=lease, rule=RULE, record={}, judge=judge)
    assert files(tmp_path) == [".new-idea", "current", "history.jsonl", "v000001", "v000002"]


def test_who_is_overtaken_while_judging_says_so(tmp_path: Path, lease: Lease) -> None:
    """The next holder removed the version that is judged: the judge cannot read it."""

    def overtaken(new: Path, old: Path | None) -> Verdict:
        (tmp_path / "lease.000001").write_bytes(b"")
        with Lease.take(tmp_path / LEASE) as other:
            publish(model(2.0), tmp_path, lease=other, rule=RULE, record={}, judge=good)
        assert not new.exists()
        return Verdict(value_of(new), None)

    with pytest.raises(LeaseError, match="the lease is no longer held; nothing is published"):
        publish(model(1.0), tmp_path, lease=lease, rule=RULE, record={}, judge=overtaken)
    assert value_of(tmp_path) == 2.0 and files(tmp_path) == ["current", "history.jsonl", "v000001"]


def test_as_many_versions_are_kept_as_the_rule_says(tmp_path: Path, lease: Lease) -> None:
    for value in (1.0, 2.0, 3.0, 4.0):
        publish(model(value), tmp_path, lease=lease, rule=Publish(keep=2), record={}, judge=good)
    assert files(tmp_path) == ["current", "history.jsonl", "v000003", "v000004"]
    assert [line["version"] for line in read_history(tmp_path)] == ["v000001", "v000002", "v000003", "v000004"]


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_lost_current_is_mended_by_the_next_publish(tmp_path: Path, lease: Lease, damage: str) -> None:
    """The model beside which the new one is judged is then the one published last that is there."""
    for value in (1.0, 2.0, 3.0):
        publish(model(value), tmp_path, lease=lease, rule=RULE, record={}, judge=good)
    if damage == "flipped":
        (tmp_path / "current").write_text("v000013 00000000")
    else:
        (tmp_path / "v000003").rename(tmp_path / "taken away")
    seen = []

    def judge(new: Path, old: Path | None) -> Verdict:
        assert old is not None
        seen.append(value_of(old))
        return Verdict(1.0, 1.0)

    publish(model(4.0), tmp_path, lease=lease, rule=RULE, record={}, judge=judge)
    assert seen == [3.0 if damage == "flipped" else 2.0] and value_of(tmp_path) == 4.0


def test_history_tells_of_every_version_that_became_current(tmp_path: Path, lease: Lease) -> None:
    """One that was switched to by a run killed before it told so, or by hand, is told of by the next."""
    publish(model(1.0), tmp_path, lease=lease, rule=RULE, record={}, judge=good)
    save_model(model(2.0), tmp_path)
    publish(model(3.0), tmp_path, lease=lease, rule=RULE, record={}, judge=good)
    switch_current(tmp_path, "v000001")  # and back: known already
    publish(model(4.0), tmp_path, lease=lease, rule=RULE, record={}, judge=good)
    history = read_history(tmp_path)
    assert [line["version"] for line in history] == ["v000001", "v000002", "v000003", "v000004"]
    assert [line.get("mended", False) for line in history] == [False, True, False, False]


def test_a_version_that_a_late_thread_makes_again_goes_too(tmp_path: Path) -> None:
    """As Zarr's do, whose arrays are written side by side: one fails, and the others have not heard of it."""
    version = tmp_path / ".new-1"
    version.mkdir()

    def late() -> None:
        while version.exists():
            time.sleep(0.001)
        time.sleep(0.01)
        (version / "y").mkdir(parents=True)

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(late)
        _discard(version)
        made.result()
    assert not version.exists()
