"""The merge tree: which leaves and sums are missing, and what to do when one is done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar, final

from dorff.data import Dataset
from dorff.engine.base import Task
from dorff.leaf import Place, merge_nodes, run_leaf
from dorff.moments import Part, Sums, merge_folds
from dorff.plan import Leaf
from dorff.store import Receipt, load_sums, remove_torn, undamaged

S = TypeVar("S", bound=Sums)
Node = tuple[int, int]  # (level, index): the sum of leaves index 2^level .. (index + 1) 2^level - 1


@final
class Tree:
    """A binary-counter tree over leaf numbers: appended leaves change no node that was complete before.

    A node's file is named by a key of all that is in it, so a file that exists under the right name is right
    (its checksum is looked at when it is read). Children are deleted once merged, but for those of level
    `kept`, from which the levels above can be added again (-1: none is kept). `run` makes a leaf's sums.
    """

    def __init__(
        self, this: Place, dataset: Dataset, leaves: Sequence[Leaf], *, kept: int,
        run: Callable[..., Receipt] = run_leaf,
    ) -> None:  # fmt: skip
        self._this, self._dataset, self._leaves, self._kept, self._run = this, dataset, leaves, kept, run
        self.receipts: dict[int, Receipt] = {}
        self.computed: set[int] = set()
        self._have: set[Node] = set()
        for leaf in leaves:
            receipt = Receipt.load(this.receipts, leaf.number)
            if receipt is not None and self._valid(receipt, leaf):
                self.receipts[leaf.number] = receipt

    def _valid(self, receipt: Receipt, leaf: Leaf) -> bool:
        same = (receipt.plan, receipt.start, receipt.stop) == (self._this.hash, leaf.start, leaf.stop)
        return same and receipt.stamp == self._dataset.stamp(leaf.start, leaf.stop)

    def roots(self) -> list[Node]:
        """The complete nodes whose sum, left to right, is the total: the ones in the binary number of leaves."""
        found, start, count = [], 0, len(self._leaves)
        for level in reversed(range(count.bit_length())):
            if count >> level & 1:
                found.append((level, start >> level))
                start += 1 << level
        return found

    def start(self) -> list[Task]:
        """All tasks that can run now; largest leaves first, so that the workers end together."""
        tasks = [task for root in self.roots() for task in self._want(root)]
        return sorted(tasks, key=lambda task: -self._rows(task))

    def done(self, task: Task, result: Receipt | bool) -> Iterable[Task]:
        """Take in a task's result; gives the tasks it makes possible."""
        node: Node = task.tag
        if isinstance(result, Receipt):
            self.receipts[node[1]] = result
            self.computed.add(node[1])
        elif not result:
            return self._mend(node)
        self._have.add(node)
        if node[0] > 0 and node[0] - 1 != self._kept:
            for child in _children(node):
                self._path(child).unlink(missing_ok=True)
                self._have.discard(child)
        parent, sibling = (node[0] + 1, node[1] // 2), (node[0], node[1] ^ 1)
        if self._complete(parent) and sibling in self._have:
            return [self._merge(parent)]
        return []

    def total(self, of: type[S]) -> dict[Part, S] | None:
        """The sums of all leaves, of the kind that the plan says, fold by fold; None where a file was damaged (and is
        deleted: start again)."""
        total: dict[Part, S] | None = {}
        for root in self.roots():
            folds = load_sums(self._path(root), of)
            if folds is None:
                self._path(root).unlink(missing_ok=True)
                self._have.discard(root)
                total = None
            elif total is not None:
                total = merge_folds(total, folds)
        return total

    def tidy(self) -> None:
        """Delete node files that no later fit can use: those of rows since rewritten."""
        live = {self._path(root) for root in self.roots()}
        count = len(self._leaves) >> self._kept
        live |= {self._path((self._kept, index)) for index in range(count)}
        for file in (self._this.directory / "nodes").glob("*.moments"):
            if file not in live:
                file.unlink(missing_ok=True)
        remove_torn(self._this.directory / "nodes")

    def _want(self, node: Node) -> list[Task]:
        """Tasks that lead to this node and can run now; none where it is there."""
        if node in self._have:
            return []
        if self._known(node) and self._path(node).exists():
            self._have.add(node)
            return []
        if node[0] == 0:
            leaf = self._leaves[node[1]]
            arguments = (str(self._this.directory), self._this.hash, self._dataset, leaf.number, leaf.start, leaf.stop)
            return [Task(self._run, arguments, node)]
        left, right = _children(node)
        return self._want(left) + self._want(right) or [self._merge(node)]

    def _mend(self, node: Node) -> list[Task]:
        """A merge found a child damaged: delete what is damaged and begin again below."""
        for child in _children(node):
            self._have.discard(child)
            if not undamaged(self._path(child)):
                self._path(child).unlink(missing_ok=True)
        return self._want(node)

    def _merge(self, node: Node) -> Task:
        left, right = _children(node)
        return Task(merge_nodes, (str(self._path(left)), str(self._path(right)), str(self._path(node))), node)

    def _rows(self, task: Task) -> int:
        leaf = self._leaves[task.tag[1]] if task.tag[0] == 0 else None
        return leaf.stop - leaf.start if leaf else len(self._leaves) * 2**40

    def _complete(self, node: Node) -> bool:
        return (node[1] + 1) << node[0] <= len(self._leaves)

    def _known(self, node: Node) -> bool:
        return all(number in self.receipts for number in range(node[1] << node[0], (node[1] + 1) << node[0]))

    def _key(self, node: Node) -> str:
        if node[0] == 0:
            return self.receipts[node[1]].key
        left, right = _children(node)
        return hashlib.sha256(f"{self._key(left)} {self._key(right)}".encode()).hexdigest()[:16]

    def _path(self, node: Node) -> Path:
        return self._this.node(*node, self._key(node))


def _children(node: Node) -> tuple[Node, Node]:
    return (node[0] - 1, 2 * node[1]), (node[0] - 1, 2 * node[1] + 1)
