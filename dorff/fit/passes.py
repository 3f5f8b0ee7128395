"""One pass over the data: run it or go on with it, and what comes of it."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from dorff.data.nodes import committed_first, group_attributes
from dorff.engine import Engine, Task, Tree
from dorff.errors import IncompleteError, InputError
from dorff.features import cut
from dorff.fit.terms import TermSums
from dorff.moments import Kind, Moments, Part, Solvable, Triangle
from dorff.plan import Plan
from dorff.store import Lease, Receipt

Progress = Callable[[int, int], None]  # rows done, rows in all
ROUNDS: Final = 3  # of a pass whose rows change, or whose files are lost, while it runs


@final
@dataclass(frozen=True, eq=False)
class PassResult:
    """The sums of each fold that has rows, and the receipts they stand on. `rewritten` are the leaves whose rows had
    other values when they were summed before. `terms` are the sums of the manifold terms."""

    folds: dict[Part, Solvable]
    receipts: list[Receipt]
    fresh: list[Receipt]
    seconds: float
    passes: int = 1
    rewritten: tuple[int, ...] = ()
    terms: tuple[TermSums, ...] = ()

    @property
    def manifold(self) -> list[Moments]:
        """T of each manifold term."""
        return [term.sums for term in self.terms]


def run_pass(
    plan: Plan, engine: Engine, progress: Progress | None = None, *, lease: Lease | None = None
) -> PassResult:  # fmt: skip
    """Collect the moments: compute what is missing, merge the fixed tree; what nobody needs any more is deleted, where
    a lease on the state is given only while it is held (LeaseError)."""
    with nothing_left(plan), not_trimmed(plan):
        return _run_pass(plan, engine, progress, lease)


@contextmanager
def not_trimmed(plan: Plan) -> Iterator[None]:
    """Rows that are gone because they were trimmed meanwhile are no fault of theirs."""
    try:
        yield
    except InputError as error:
        path = Path(plan.dataset.path)
        with suppress(InputError):
            if committed_first(path, group_attributes(path)) > plan.dataset.first:
                raise IncompleteError(f"{path}: rows were trimmed while the job ran; run it again") from error
        raise


@contextmanager
def nothing_left(plan: Plan) -> Iterator[None]:
    """What is refused before its first leaf is done leaves nothing behind.

    Receipts of done leaves stay, whatever happens: they are used again.
    """
    absent = [path for path in (plan.directory, *plan.directory.parents) if not path.exists()]
    try:
        yield
    except InputError:
        if absent and not any(plan.directory.rglob("receipts/*.json")):
            shutil.rmtree(plan.directory, ignore_errors=True)
            for path in absent[1:]:
                with suppress(OSError):  # never made, or something else is in it
                    path.rmdir()
        raise


def _run_pass(plan: Plan, engine: Engine, progress: Progress | None, lease: Lease | None) -> PassResult:
    plan.freeze()
    plan.sharing()
    this, _ = plan.frozen()
    for m in plan.counts:
        cut(this.features, this.density, m // 2)  # refused before the pass
    began = time.perf_counter()
    tree = Tree(this, plan.dataset, plan.leaves, kept=plan.costs.kept_level)
    of: type[Solvable] = Triangle if plan.question["sums"] == Kind.TRIANGLE else Moments
    rows = {leaf.number: leaf.stop - leaf.start for leaf in plan.leaves}

    def tell() -> None:
        if progress is not None:
            progress(sum(rows[number] for number in tree.receipts), plan.dataset.rows)

    def done(task: Task, result: Receipt | bool) -> Sequence[Task]:
        following = list(tree.done(task, result))
        if isinstance(result, Receipt):
            tell()
        return following

    tell()  # what earlier runs did is not part of this run's pace
    for _ in range(ROUNDS):
        engine.run(tree.start(), done)
        if changed := tree.revalidate():  # since their leaf read them; one of these may be longer by appended rows
            continue
        folds = tree.total(of)
        if folds is not None:
            with nullcontext() if lease is None else lease.fenced():
                tree.tidy()
            receipts = [tree.receipts[number] for number in sorted(tree.receipts)]
            fresh = [receipt for receipt in receipts if receipt.number in tree.computed]
            seconds = time.perf_counter() - began
            return PassResult(folds, receipts, fresh, seconds, rewritten=tuple(sorted(tree.rewritten)))
    if changed:
        raise IncompleteError(
            f"{plan.dataset.path}: rows of leaf {changed[0]} changed each time they had been read; run again when "
            "nobody writes to it"
        )
    raise IncompleteError(
        f"{this.directory}: moments were missing or damaged again and again; check the disk, and that "
        "every worker sees this folder, then run again"
    )


def fingerprint(receipts: Sequence[Receipt]) -> str:
    """Names the values of all rows that were used."""
    text = " ".join(f"{receipt.start} {receipt.stop} {receipt.digest}" for receipt in receipts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
