"""Bit flips in everything that dorff keeps, one at a time: what becomes of each.

A small job is run once: ingest, four leaves, three versions published, a fit stopped in mid-leaf. Then a bit of one of
its files is flipped, and the step that needs the file is taken. A flip is

    detected   an error names the file or its folder, or `verify` lists it;
    healed     what was damaged is done again, and the result is bitwise right;
    harmless   the result is bitwise right, and the file says what it said (white space, rows that are nobody's);
    unread     the same, but the file says something else, in a place that dorff does not read;
    UNDETECTED anything else: another result, or an error that is none of dorff's own.

"The result" is the model and the sums S, R, l, n of the state, or the rows read from the data set, all of them. What
is a file of the data set is read with `verify` and by asking for every row; of it `unread` is UNDETECTED too.

    python benchmarks/bitflips.py [--flips 1000] [--seed 0] [--only NUMBER] [--out benchmarks/results/bitflips.json]

Flip NUMBER of a seed is the same flip in every run on the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from dorff.data import Classes, ingest, open_dataset, verify
from dorff.errors import DorffError, LeaseError, StoppedError
from dorff.errors.stopping import clear_stop, request_stop
from dorff.fit import fit
from dorff.model import Model
from dorff.passes import PassSums
from dorff.plan import freeze_constants, make_plan
from dorff.spec.job import Job
from dorff.spec.reader import load_job
from dorff.store import Lease, Receipt, append_history, load_model, read_history

ROWS = 420_000
OUTCOMES = ("detected", "healed", "harmless", "unread", "UNDETECTED")
KERNEL = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}}


@final
@dataclass(frozen=True)
class Scene:
    """A folder with a data set, the state of a finished fit and of one that was stopped, and three models."""

    home: Path

    @classmethod
    def made(cls, home: Path, rows: int = ROWS) -> Scene:
        scene = cls(home)
        rng = np.random.default_rng(0)
        table = {"x": rng.standard_normal((rows, 2)), "y": rng.standard_normal(rows), "w": rng.random(rows)}
        table = {name: column.astype(np.float32) for name, column in table.items()}
        np.savez(home / "rows.npz", **table, k=rng.integers(0, 3, rows), g=rng.integers(0, 9, rows))
        ingest(
            [home / "rows.npz"], scene.store, inputs=["x"], targets=["y"], classes="k", weights="w", groups="g"
        )  # fmt: skip
        for ridge in (1e-3, 1e-4, 1e-6):  # of one state: the ridge is not part of its name
            fit(scene.job(scene.state, scene.model, ridge=ridge))
        shutil.copytree(scene.state, scene.stopped)
        scene._stop()
        for number in range(4):
            append_history(scene.runs, {"outcome": "published", "version": f"v{number:06d}", "score": 0.9})
        for _ in range(2):
            Lease.take(scene.runs / "lease").release()
        Lease.take(scene.runs / "lease", seconds=1e6)  # held as long as this process runs
        return scene

    @property
    def store(self) -> Path:
        return self.home / "data.zarr"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def stopped(self) -> Path:
        return self.home / "stopped"

    @property
    def model(self) -> Path:
        return self.home / "model"

    @property
    def runs(self) -> Path:
        """A history, and a lease that is held."""
        return self.home / "runs"

    def job(self, state: Path, model: Path, *, ridge: float = 1e-6) -> Job:
        body = {
            "data": {"store": str(self.store), "weights": "weights"}, "kernel": KERNEL, "features": {"count": 16},
            "solve": {"ridge": ridge}, "cluster": {"type": "serial"}, "state": str(state), "model": str(model),
        }  # fmt: skip
        (self.home / "job.yaml").write_text(json.dumps(body))
        return load_job(self.home / "job.yaml")

    def _stop(self) -> None:
        """Take the last leaf but one away from a copy of the state, and do it again up to its first block."""
        plan = make_plan(self.job(self.stopped, self.home / "other"))
        this = freeze_constants(plan)
        leaf = plan.leaves[-2]
        receipt = Receipt.load(this.receipts, leaf.number)
        assert receipt is not None
        (this.receipts / f"{leaf.number:06d}.json").unlink()
        for file in (plan.directory / "nodes").glob("*.moments"):
            if _holds(file, leaf.number):
                file.unlink()
        request_stop()
        try:
            PassSums.at(this).leaf(plan.dataset, leaf)
        except StoppedError:
            pass
        finally:
            clear_stop()


def _holds(node: Path, leaf: int) -> bool:
    """Whether a node's file holds a leaf's sums."""
    level, index = _place(node)
    return leaf >> level == index


def _place(node: Path) -> tuple[int, int]:
    """(level, index) of a node's file."""
    level, index, _ = node.name.split("-")
    return int(level), int(index)


@contextmanager
def flipped(path: Path, byte: int, bit: int) -> Iterator[None]:
    """The file with one bit flipped; afterwards as it was, its times too."""
    raw, stat = path.read_bytes(), path.stat()
    damaged = bytearray(raw)
    damaged[byte] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(raw)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def same_content(path: Path, raw: bytes) -> bool:
    """Whether a JSON file still says what `raw` says."""
    try:
        return bool(json.loads(path.read_bytes()) == json.loads(raw))
    except ValueError:
        return path.read_bytes() == raw


def named(error: DorffError, path: Path, within: Path) -> bool:
    """Whether an error names the file, or a folder that the file is in, below `within`."""
    places = [path, *(place for place in path.parents if within in place.parents)]
    return any(str(place) in str(error) for place in places)


def words(model: Model) -> tuple[Any, ...]:
    """All that a model is but for its arrays and the report of the fit, which says how long that took."""
    info = {key: value for key, value in model.info.items() if key != "report"}
    return model.kernel.config(), dict(model.sampler), model.seed, model.feature_map.phi.config(), info


def numbers(model: Model) -> dict[str, Any]:
    """Every array of a model."""
    solved = {name: getattr(model, name) for name in ("coefficients", "intercept", "target_scale", "weights")}
    posterior = model.posterior.arrays() if model.posterior else {}
    scaling = {"center": model.feature_map.center, "scale": model.feature_map.scale}
    return {**solved, **posterior, **scaling, **model.feature_map.phi.arrays()}


def same_model(found: Model, wanted: Model) -> bool:
    """Whether two models are the same in every bit."""
    left, right = numbers(found), numbers(wanted)
    bits = left.keys() == right.keys() and all(left[key].tobytes() == right[key].tobytes() for key in left)
    return bits and words(found) == words(wanted)


class Group(ABC):
    """Files of one kind, and what is asked for once one of them was damaged."""

    name: str
    share: float  # of the flips

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.files = [path for path in self.listed() if path.is_file() and path.stat().st_size]

    @abstractmethod
    def listed(self) -> Sequence[Path]:
        """The files, in an order that does not change."""

    @abstractmethod
    def outcome(self, path: Path, byte: int, bit: int, scratch: Path) -> tuple[str, str]:
        """What becomes of a flip there, and what was said; all is as it was afterwards."""


class Data(Group):
    """What `ingest` wrote."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.rows = self._read()

    def _read(self) -> dict[str, bytes]:
        """Every row of every array, and the columns' names, through the door that a fit uses."""
        found = {}
        for targets in ("y", Classes("classes")):
            with_all = open_dataset(self.scene.store, inputs="x", targets=targets, weights="weights", groups="groups")
            rows = with_all.block(0, with_all.n)
            assert rows.weights is not None and rows.groups is not None
            name = str(targets)
            found |= {f"{name} {part}": value.tobytes() for part, value in
                      (("X", rows.X), ("Y", rows.Y), ("weights", rows.weights), ("groups", rows.groups))}  # fmt: skip
            found[f"{name} names"] = repr((with_all.n, with_all.input_columns, with_all.target_columns)).encode()
        return found

    def outcome(self, path: Path, byte: int, bit: int, scratch: Path) -> tuple[str, str]:
        raw = path.read_bytes()
        with flipped(path, byte, bit):
            try:
                listed = [f"{fault.array} {fault.chunk} {fault.kind}" for fault in verify(self.scene.store)]
            except DorffError as error:
                listed = [str(error)]
            try:
                right, said = self._read() == self.rows, ""
            except DorffError as error:
                if not named(error, path, self.scene.home):
                    return "UNDETECTED", f"an error that does not name it: {error}"
                right, said = False, str(error)
            same = path.suffix != ".json" or same_content(path, raw)
        if not said and not right:
            return "UNDETECTED", f"other rows are read; verify: {listed}"
        if not listed and (said or not same):
            return "UNDETECTED", f"verify lists nothing; reading: {said or 'nothing'}"
        return ("detected", said or listed[0]) if listed else ("harmless", "")


@final
class Metadata(Data):
    name, share = "data: zarr.json", 0.15

    def listed(self) -> Sequence[Path]:
        return sorted(self.scene.store.rglob("zarr.json"))


@final
class Chunks(Data):
    name, share = "data: chunks", 0.15

    def listed(self) -> Sequence[Path]:
        return [path for path in sorted(self.scene.store.rglob("*")) if path.name != "zarr.json"]


class State(Group):
    """What a fit keeps, a copy of it for each flip: the fit is run again, for a model root of its own."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.model = load_model(scene.model)
        self.sums = _roots(scene.state)

    @property
    def kept(self) -> Path:
        return self.scene.state

    def ready(self, copy: Path) -> None:
        """Make sure that the fit needs the damaged file `copy`."""

    def outcome(self, path: Path, byte: int, bit: int, scratch: Path) -> tuple[str, str]:
        state, raw = scratch / "state", path.read_bytes()
        shutil.copytree(self.kept, state)
        copy = state / path.relative_to(self.kept)
        self.ready(copy)
        damaged = bytearray(raw)
        damaged[byte] ^= 1 << bit
        copy.write_bytes(damaged)
        try:
            report = fit(self.scene.job(state, scratch / "model"))
        except DorffError as error:
            return ("detected" if named(error, copy, scratch) else "UNDETECTED"), str(error)
        if not same_model(load_model(scratch / "model"), self.model) or _roots(state) != self.sums:
            return "UNDETECTED", "another result"
        if not copy.is_file() or copy.read_bytes() != bytes(damaged):
            return "healed", f"{report.leaves_computed} leaves computed"
        if report.leaves_computed:
            return "healed", f"{report.leaves_computed} leaves computed, the file is as it was"
        return ("harmless" if same_content(copy, raw) else "unread"), ""


def _roots(state: Path) -> dict[tuple[int, int], bytes]:
    """The bytes of the nodes that no other holds: S, R, l and n, by (level, index)."""
    nodes = {_place(file): file for file in state.glob("*/nodes/*.moments")}
    tops = {at: file for at, file in nodes.items()
            if not any((at[0] + up, at[1] >> up) in nodes for up in range(1, 64))}  # fmt: skip
    return {at: file.read_bytes() for at, file in sorted(tops.items())}


@final
class Partials(State):
    name, share = "state: partials", 0.14

    def listed(self) -> Sequence[Path]:
        return sorted(self.scene.state.glob("*/nodes/*.moments"))

    def ready(self, copy: Path) -> None:
        """Those that were merged from it are gone, so that it is merged again."""
        level, index = _place(copy)
        for other in copy.parent.glob("*.moments"):
            above, at = _place(other)
            if above > level and index >> (above - level) == at:
                other.unlink()


@final
class Receipts(State):
    name, share = "state: receipts", 0.14

    def listed(self) -> Sequence[Path]:
        return sorted(self.scene.state.glob("*/receipts/*"))


@final
class Plans(State):
    name, share = "state: plan.json", 0.09

    def listed(self) -> Sequence[Path]:
        return sorted(self.scene.state.glob("*/plan.json"))


@final
class Arrays(State):
    name, share = "state: arrays.npz", 0.05

    def listed(self) -> Sequence[Path]:
        return sorted(self.scene.state.glob("*/arrays.npz"))


@final
class Checkpoints(State):
    name, share = "state: checkpoints", 0.06

    @property
    def kept(self) -> Path:
        return self.scene.stopped

    def listed(self) -> Sequence[Path]:
        return [path for path in sorted(self.scene.stopped.glob("*/checkpoints/**/*")) if path.is_file()]


class Published(Group):
    """Models: each flip in a copy of the root, which is then loaded."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.models = {path.name: load_model(path) for path in sorted(scene.model.glob("v[0-9]*"))}
        self.current = load_model(scene.model)

    def outcome(self, path: Path, byte: int, bit: int, scratch: Path) -> tuple[str, str]:
        root, raw = scratch / "model", path.read_bytes()
        shutil.copytree(self.scene.model, root)
        copy = root / path.relative_to(self.scene.model)
        damaged = bytearray(raw)
        damaged[byte] ^= 1 << bit
        copy.write_bytes(damaged)
        version = copy.relative_to(root).parts[0]
        try:
            right = same_model(load_model(root / version), self.models[version]) if version in self.models else True
            right = right and (version in self.models or same_model(load_model(root), self.current))
        except DorffError as error:
            return ("detected" if named(error, copy, scratch) else "UNDETECTED"), str(error)
        if not right:
            return "UNDETECTED", "another model"
        return ("harmless" if same_content(copy, raw) else "unread"), ""


@final
class Descriptions(Published):
    name, share = "models: zarr.json", 0.09

    def listed(self) -> Sequence[Path]:
        return sorted(self.scene.model.glob("v[0-9]*/**/zarr.json"))


@final
class Weights(Published):
    name, share = "models: arrays", 0.06

    def listed(self) -> Sequence[Path]:
        return [path for path in sorted(self.scene.model.glob("v[0-9]*/**/*")) if path.name != "zarr.json"]


@final
class Current(Published):
    name, share = "models: current", 0.05

    def listed(self) -> Sequence[Path]:
        return [self.scene.model / "current"]


@final
class History(Group):
    """Lines of which a damaged one is to be left out, and no other."""

    name, share = "models: history", 0.03

    def listed(self) -> Sequence[Path]:
        return sorted(self.scene.runs.glob("history*"))

    def outcome(self, path: Path, byte: int, bit: int, scratch: Path) -> tuple[str, str]:
        wanted = read_history(self.scene.runs)
        with flipped(path, byte, bit):
            found = read_history(self.scene.runs)
        if found == wanted:
            return "harmless", ""
        left_out = [line for line in wanted if line not in found]
        right = found == [line for line in wanted if line in found] and len(left_out) <= 2  # a line's end joins two
        return ("detected", f"{len(left_out)} left out") if right else ("UNDETECTED", str(found))


@final
class Leases(Group):
    """A lease that somebody holds: whoever asks for it is refused, or gets a higher token than any before."""

    name, share = "models: lease", 0.03

    def listed(self) -> Sequence[Path]:
        return sorted(self.scene.runs.glob("lease*"))

    def outcome(self, path: Path, byte: int, bit: int, scratch: Path) -> tuple[str, str]:
        runs = scratch / "runs"
        shutil.copytree(self.scene.runs, runs)
        with flipped(runs / path.name, byte, bit):
            try:
                with Lease.take(runs / "lease") as lease:
                    token = lease.token
            except LeaseError:
                return "harmless", ""
        return ("healed", "taken over") if token > 3 else ("UNDETECTED", f"token {token} came before")


GROUPS = (
    Metadata, Chunks, Partials, Receipts, Plans, Arrays, Checkpoints, Descriptions, Weights, Current, History, Leases,
)  # fmt: skip


def flips(scene: Scene, count: int, seed: int, only: int | None = None) -> Iterator[dict[str, Any]]:
    """`count` flips, or number `only` of them: the group by its share, the file evenly, the bit evenly."""
    groups = [group for group in (kind(scene) for kind in GROUPS) if group.files]
    shares = np.array([group.share for group in groups])
    for number in range(count) if only is None else [only]:
        rng = np.random.default_rng([seed, number])
        group = groups[rng.choice(len(groups), p=shares / shares.sum())]
        path = group.files[rng.integers(len(group.files))]
        byte, bit = int(rng.integers(path.stat().st_size)), int(rng.integers(8))
        with tempfile.TemporaryDirectory(dir=scene.home) as scratch:
            try:
                outcome, said = group.outcome(path, byte, bit, Path(scratch))
            except Exception as error:  # whatever is not dorff's own is a finding
                outcome, said = "UNDETECTED", f"{type(error).__name__}: {error}"
        at = str(path.relative_to(scene.home))
        yield {"flip": number, "group": group.name, "file": at, "byte": byte, "bit": bit, "outcome": outcome,
               "said": said}  # fmt: skip


def table(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Outcomes by group."""
    names = dict.fromkeys(kind.name for kind in GROUPS)
    counts = {name: Counter(one["outcome"] for one in found if one["group"] == name) for name in names}
    return {name: {outcome: counts[name][outcome] for outcome in OUTCOMES} for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="this flip alone")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dorff-flips-") as folder:
        found = list(flips(Scene.made(Path(folder)), arguments.flips, arguments.seed, arguments.only))
    bad = [one for one in found if one["outcome"] == "UNDETECTED"]
    result = {
        "flips": len(found), "seed": arguments.seed, "undetected": len(bad), "outcomes": table(found),
        "files": len({one["file"] for one in found}), "seconds": round(time.perf_counter() - began, 1),
        "undetected_flips": bad,
    }  # fmt: skip
    print(json.dumps(result if arguments.only is None else found, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
