"""One pass over the data: run it or go on with it, and what comes of it."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

from dorff.data.nodes import committed, group_attributes
from dorff.engine import Engine
from dorff.errors import IncompleteError, InputError
from dorff.features import cut
from dorff.fit.fitted import Progress, TermSums
from dorff.moments import Kind, Moments, Part, Solvable, Triangle
from dorff.passes import PassSums, Tree
from dorff.plan import Plan, freeze_constants
from dorff.storage.files import rmtree
from dorff.storage.location import locate
from dorff.store import Lease, Receipt


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

    @property
    def fingerprints(self) -> list[str]:
        """Names the values of the rows and graphs that each manifold term is of."""
        return [fingerprint(term.receipts) for term in self.terms]


def run_pass(
    plan: Plan, engine: Engine, progress: Progress | None = None, *, lease: Lease | None = None
) -> PassResult:
    """Collect the moments: compute what is missing, merge the fixed tree; what nobody needs any more is deleted, where
    a lease on the state is given only while it is held (LeaseError)."""
    with nothing_left(plan), not_trimmed(plan):
        frozen = freeze_constants(plan)
        plan.sharing()
        for m in plan.counts:
            cut(frozen.features, frozen.constants.density, m // 2)  # refused before the pass
        began = time.perf_counter()
        tree = Tree(PassSums.at(frozen), plan.dataset, plan.leaves, kept=plan.costs.kept_level)
        of: type[Solvable] = Triangle if plan.spec.sums is Kind.TRIANGLE else Moments
        counted = None if progress is None else lambda rows: progress(rows, plan.dataset.rows)
        folds = tree.collect(engine, of, counted)
        with nullcontext() if lease is None else lease.fenced():
            tree.tidy()
    receipts = [tree.receipts[number] for number in sorted(tree.receipts)]
    fresh = [receipt for receipt in receipts if receipt.number in tree.computed]
    return PassResult(folds, receipts, fresh, time.perf_counter() - began, rewritten=tuple(sorted(tree.rewritten)))


@contextmanager
def not_trimmed(plan: Plan) -> Iterator[None]:
    """Rows that are gone because they were trimmed meanwhile are no fault of theirs."""
    try:
        yield
    except InputError as error:
        path = locate(plan.dataset.path)
        with suppress(InputError):
            rows = committed(path, group_attributes(path))
            if rows is not None and rows.start > plan.dataset.first:
                raise IncompleteError(f"{path}: rows were trimmed while the job ran; run it again") from error
        raise


@contextmanager
def nothing_left(plan: Plan) -> Iterator[None]:
    """What is refused before its first leaf is done leaves nothing behind.

    Receipts of done leaves stay, whatever happens: they are used again."""
    absent = [path for path in (plan.directory, *plan.directory.parents) if not path.exists()]
    try:
        yield
    except InputError:
        if absent and not any(plan.directory.rglob("receipts/*.json")):
            rmtree(plan.directory, ignore_errors=True)
            for path in absent[1:]:
                with suppress(OSError):  # never made, or something else is in it
                    path.rmdir()
        raise


def fingerprint(receipts: Sequence[Receipt]) -> str:
    """Names the values of all rows that were used."""
    text = " ".join(f"{receipt.start} {receipt.stop} {receipt.digest}" for receipt in receipts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
