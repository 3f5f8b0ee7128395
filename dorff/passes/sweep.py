"""Sweeps: passes that give the product of the sums with a few columns, for systems too large to be held; or what a
loss comes to at a few functions, which an iteration asks for (`slopes.Question`).

A sweep is named by a hash of the pass's name, the data's stamp and what is asked: columns V are in a file that workers
read, leaves leave receipts as those of any pass do, and the total stays in one file until the solve is over. A driver
that was killed asks for the same again, in the same order: what was finished is read, the one that was not goes on from
its receipts, and the solver is where it was.

Each solve has a folder of its own for its sweeps, so that solves of one pass do not meet; it is deleted when the solve
is over. The folder of a solve that was given up stays until another solve of the pass ends a month later or more."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from dorff import store
from dorff.data import Dataset
from dorff.engine import Engine
from dorff.errors import InputError
from dorff.moments import FloatArray, Kind, Moments, Part, Products, Sums, by_fold, pooled
from dorff.passes.blocks import Leaf, RowSums, block_rows, product_rows
from dorff.passes.frozen import Config, Pass, load_pass
from dorff.passes.leaf import Summand, block_sums
from dorff.passes.slopes import Question
from dorff.passes.tree import Tree
from dorff.storage.files import read_record, rmtree, write_record
from dorff.store.receipts import remove_given_up

Progress = Callable[[int], None]
S = TypeVar("S", bound=Sums)


class Sweep(Summand):
    """One sweep: the product of a pass's sums with columns V that are in its folder, below that of its solve."""

    @property
    def total(self) -> Path:
        """The file of the finished product."""
        return self.directory.with_suffix(".moments")

    def write(self, frozen: Pass, V: FloatArray, words: Config | None = None) -> None:
        """V (w, c) for the workers, and the `words` of a question: the array first, then what makes it count."""
        store.write_atomic(self.directory / "columns", [V.data.cast("B")], sync=False)
        body = {"of": frozen.hash, "shape": V.shape, "sha256": hashlib.sha256(V.data).hexdigest(), "question": words}
        write_record(self.directory / "columns.json", body, sync=False)

    def opened(self) -> tuple[Pass, RowSums]:
        of, asks = _columns(self.directory)
        frozen = load_pass(self.directory.parents[2], of)
        if isinstance(asks, Question):
            rows = block_rows(len(asks.V)) if asks.curved else product_rows(len(asks.V))
            return frozen, asks.sums(frozen.features, rows, frozen.constants.class_weight)
        return frozen, block_sums(frozen, block_rows=product_rows(len(asks)), kind=Kind.PRODUCT, V=asks)


@lru_cache(maxsize=1)
def _columns(directory: Path) -> tuple[str, FloatArray | Question]:
    """The pass a sweep belongs to, by name, and V (w, c), or the question that has it. InputError where files are
    missing or damaged."""
    try:
        body, raw = read_record(directory / "columns.json"), store.read_plain(directory / "columns")
        if body is None or hashlib.sha256(raw).hexdigest() != body["sha256"]:
            raise ValueError("their checksum is wrong, or they are another sweep's")
        V = np.frombuffer(raw).reshape(body["shape"])
        return body["of"], V if body["question"] is None else Question.of(V, body["question"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise InputError(f"{directory}: the columns of a sweep are damaged ({error}); run the job again") from error


class Sweeper:
    """V (w, c) -> M V (w, c) for each pattern of targets, by sweeps over the data. `name` is the solve's: two of the
    same name at the same time share a folder, and the one that is not over when the other ends must be run again.
    `told` is called with the rows done of the sweep that runs. `count` is how many sweeps there were, `fresh` the
    receipts of leaves that were not there already, `receipts` those of the first sweep."""

    def __init__(
        self, frozen: Pass, name: str, dataset: Dataset, leaves: Sequence[Leaf], engine: Engine, told: Progress
    ) -> None:
        self._folder = frozen.directory / "sweeps" / name
        self._frozen, self._dataset, self._leaves, self._engine, self._told = frozen, dataset, leaves, engine, told
        self._stamp = dataset.stamp(leaves[0].start, leaves[-1].stop)
        self.count = 0
        self._patterns: list[str] = []
        self.receipts: list[store.Receipt] = []
        self.fresh: list[store.Receipt] = []

    def __call__(self, V: FloatArray) -> list[FloatArray]:
        """M V, pattern by pattern in the order of `products`."""
        return [sums.values for sums in self.products(V)]

    def products(self, V: FloatArray) -> list[Products]:
        """The same with what the sums are of, in the order of the patterns' names. InputError where the data are not
        what they were at the first sweep."""
        parts = pooled(by_fold(self._answered(V, None, Products)))
        patterns = [part.observed for part in parts]
        if self.count > 1 and patterns != self._patterns:
            raise self._changed()
        self._patterns = patterns
        return parts

    def answer(self, question: Question) -> dict[Part, Products] | dict[Part, Moments]:
        """What is asked: slopes of each fold, as products, or moments weighed by curvature, with a column's number in
        the place of the fold. InputError where the data are not what they were at the first sweep."""
        asks = question.V, question.config()
        return self._answered(*asks, Moments) if question.curved else self._answered(*asks, Products)

    def _answered(self, V: FloatArray, words: Config | None, of: type[S]) -> dict[Part, S]:
        V = np.ascontiguousarray(V)
        asks = f"{self._frozen.hash} {self._stamp} {V.shape} " + (json.dumps(words) if words else "")
        name = hashlib.sha256(asks.encode() + V.tobytes()).hexdigest()[:16]
        sweep = Sweep(self._folder / name, name)
        # The first one's receipts are wanted too.
        folds = store.load_sums(sweep.total, of) if self.receipts else None
        folds = self._run(sweep, V, words, of) if folds is None else folds
        self.count += 1
        return folds

    def _run(self, sweep: Sweep, V: FloatArray, words: Config | None, of: type[S]) -> dict[Part, S]:
        tree = Tree(sweep, self._dataset, self._leaves)
        first = not self.receipts
        if first and len(tree.receipts) == len(self._leaves) and (total := store.load_sums(sweep.total, of)):
            self.receipts = [tree.receipts[number] for number in sorted(tree.receipts)]
            return total
        sweep.write(self._frozen, V, words)
        total = tree.collect(self._engine, of, self._told)
        self.fresh += [tree.receipts[number] for number in sorted(tree.computed)]
        receipts = [tree.receipts[number] for number in sorted(tree.receipts)]
        if not first and [one.digest for one in receipts] != [one.digest for one in self.receipts]:
            rmtree(sweep.directory, ignore_errors=True)
            raise self._changed()
        store.save_moments(sweep.total, total)
        rmtree(sweep.directory / "nodes", ignore_errors=True)
        if first:
            self.receipts = receipts
        else:
            rmtree(sweep.directory)
        return total

    def _changed(self) -> InputError:
        return InputError(f"{self._dataset.path}: rows changed while they were read pass by pass; run the job again")

    def tidy(self) -> None:
        """Delete this solve's sweeps, now that it is over, and those of solves that were given up; no others."""
        rmtree(self._folder, ignore_errors=True)
        remove_given_up(self._folder.parent)
