"""The merge tree: which leaves and sums are missing, and what to do when one is done."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from dorff.engine import Engine, Task
from dorff.errors import IncompleteError
from dorff.moments import Part, Sums, merge_folds
from dorff.passes.blocks import Leaf
from dorff.passes.leaf import Stage, merge_nodes, run_leaf
from dorff.storage.files import make_directory, remove_torn, rmtree
from dorff.storage.location import locate
from dorff.store import Receipt, load_sums, undamaged

S = TypeVar("S", bound=Sums)
ROUNDS: Final = 3  # of runs in which rows change, or files are lost
Node = tuple[int, int]  # (level, index): the sum of leaves index 2^level .. (index + 1) 2^level - 1


class Stamped(Protocol):
    """What leaves are of: rows, or shards of a graph; small, picklable."""

    @property
    def path(self) -> str: ...
    def stamp(self, start: int, stop: int) -> str:
        """Names what start..stop-1 are."""


class Tree:
    """A binary-counter tree over leaf numbers: appended leaves change no node that was complete before, nor do those
    that a window leaves behind. Only full leaves are merged into nodes; one that is not is a root of its own. A node's
    file is named by a key of all that is in it, so a file that exists under the right name is right (its checksum is
    looked at when it is read). Children are deleted once merged, but for those of level `kept`, from which the levels
    above can be added again (-1: none is kept). A leaf whose receipt is gone, or whose files were touched, may be in a
    sum that is there already. Its rows are read first; if they are what they were, so is the sum's name, and no other
    leaf is read. `computed` are the leaves done through this object, `rewritten` those of them whose rows were others
    than an earlier receipt says."""

    def __init__(self, sums: Stage, source: Stamped, leaves: Sequence[Leaf], *, kept: int = -1) -> None:
        self._sums, self._source, self._kept = sums, source, kept
        self._leaves = {leaf.number: leaf for leaf in leaves}
        full = [leaf.number for leaf in leaves if leaf.full]
        self._first, self._end = (full[0], full[-1] + 1) if full else (0, 0)
        self.receipts: dict[int, Receipt] = {}
        self.computed: set[int] = set()
        self.rewritten: set[int] = set()
        self._earlier: dict[int, str] = {}  # digests of receipts that may not be true any more
        self._keys: dict[Node, str] = {}
        self._have: set[Node] = set()
        self._running: set[Node] = set()
        self._stored: set[str] = set()  # names, without their keys, of the files there were at the start
        self._waiting: dict[Node, set[int]] = {}  # nodes that may be there: their leaves without a receipt
        self._restorable: set[Node] = set()
        there = _numbered(sums.receipts)
        for leaf in leaves:
            receipt = Receipt.load(sums.receipts, leaf.number) if leaf.number in there else None
            if receipt is None or (receipt.plan, receipt.start, receipt.stop) != (sums.hash, leaf.start, leaf.stop):
                continue
            if receipt.stamp == source.stamp(leaf.start, leaf.stop):
                self.receipts[leaf.number] = receipt
            else:
                self._earlier[leaf.number] = receipt.digest

    def roots(self) -> list[Node]:
        """The nodes whose sum, left to right, is the total: the largest that are complete, and leaves cut short."""
        nodes, at = [], self._first
        while at < self._end:
            level = (self._end - at).bit_length() - 1
            if at:
                level = min(level, (at & -at).bit_length() - 1)
            nodes.append((level, at >> level))
            at += 1 << level
        cut = [(0, leaf.number) for leaf in self._leaves.values() if not leaf.full]
        return sorted(nodes + cut, key=lambda node: node[1] << node[0])

    def missing(self) -> list[Leaf]:
        """The leaves without a valid receipt."""
        return [leaf for leaf in self._leaves.values() if leaf.number not in self.receipts]

    def revalidate(self) -> list[int]:
        """Forget the leaves whose files have changed since they were read; their numbers. Start again for them."""
        receipts = sorted(self.receipts.items())
        changed = [n for n, one in receipts if one.stamp != self._source.stamp(one.start, one.stop)]
        for number in changed:
            self._earlier[number] = self.receipts.pop(number).digest
            for node in self._path_up((0, number)):
                self._keys.pop(node, None)
                self._have.discard(node)
        return changed

    def start(self) -> list[Task]:
        """All tasks that can run now; the last leaves first, which are the largest, so that the workers end together;
        and in order, so that few sums wait for others."""
        self._running.clear()
        self._waiting.clear()
        folder = self._sums.directory / "nodes"
        make_directory(folder, sync=False)  # by the driver: who looked for it in vain may see it late
        self._stored = {path.name.rpartition("-")[0] for path in folder.iterdir()}
        tasks = [task for root in self.roots() for task in self._want(root)]
        return sorted(tasks, key=lambda task: (task.tag[0] == 0, -task.tag[1]))

    def done(self, task: Task, result: Receipt | bool) -> list[Task]:
        """Take in a task's result; gives the tasks it makes possible."""
        node: Node = task.tag
        self._running.discard(node)
        if isinstance(result, Receipt):
            return self._take(node, result)
        if not result:  # a child is damaged: what is so is deleted, and made again
            for child in _children(node):
                self._have.discard(child)
                if not undamaged(self._path(child)):
                    self._drop(child)
            return self._want(node)
        self._have.add(node)
        for child in filter(self._is_spare, _children(node)):
            self._drop(child)
        return self._up(node)

    def total(self, of: type[S]) -> dict[Part, S] | None:
        """The sums of all leaves, of this kind, fold by fold; None if a file was damaged (and deleted: start again)."""
        total: dict[Part, S] | None = {}
        for root in self.roots():
            folds = load_sums(self._path(root), of) if locate(self._path(root)).appears() else None
            if folds is None:
                self._drop(root)
                total = None
            elif total is not None:
                total = merge_folds(total, folds)
            del folds  # before others are read
        return total

    def collect(self, engine: Engine, of: type[S], told: Callable[[int], None] | None = None) -> dict[Part, S]:
        """The `total`: what is missing is computed, again where rows change or files are lost while the engine runs.
        `told` is called with the rows done, first with those that were done before: they are not part of a run's pace.
        Raises IncompleteError: rows that changed, or sums that were lost, in each of `ROUNDS` runs."""

        def tell() -> None:
            if told is not None:
                told(sum(self._leaves[number].stop - self._leaves[number].start for number in self.receipts))

        def done(task: Task, result: Receipt | bool) -> list[Task]:
            following = self.done(task, result)
            if isinstance(result, Receipt):
                tell()
            return following

        tell()
        for _ in range(ROUNDS):
            engine.run(self.start(), done)
            if changed := self.revalidate():  # one of these may be longer by appended rows
                continue
            if (total := self.total(of)) is not None:
                return total
        if changed:
            problem = f"{self._source.path}: what leaf {changed[0]} is of changed each time it had been read"
            raise IncompleteError(f"{problem}; run again when nobody writes to it")
        remedy = "check the disk, and that every worker sees this folder, then run again"
        raise IncompleteError(f"{self._sums.directory}: sums were missing or damaged, again and again; {remedy}")

    def tidy(self) -> None:
        """Delete what no later fit can use, now that there is a total: sums of rows since rewritten or left behind,
        what can be added again from other sums, receipts of leaves left behind, and places where leaves stopped."""
        there = set((self._sums.directory / "nodes").glob("*.moments"))
        live = {self._path(root) for root in self.roots()}
        for level in range((self._end - self._first).bit_length()):
            nodes = [(level, index) for index in range(-(-self._first >> level), self._end >> level)]
            live |= {self._path(node) for node in nodes if self._path(node) in there and not self._is_spare(node)}
        for file in there - live:
            file.unlink(missing_ok=True)
        for number, file in _numbered(self._sums.receipts).items():
            if number not in self._leaves:
                file.unlink(missing_ok=True)
        rmtree(self._sums.directory / "checkpoints", ignore_errors=True)
        remove_torn(self._sums.directory / "nodes")
        remove_torn(self._sums.receipts)

    def _want(self, node: Node) -> list[Task]:
        """Tasks that lead to this node and can run now; none where it is there or under way."""
        if node in self._have or node in self._running:
            return []
        if not (unknown := self._unknown(node)) and self._path(node).exists():
            self._have.add(node)
            return []
        if node[0] == 0:
            return [self._leaf(node)]
        if 0 < len(unknown) < 1 << node[0] and self._is_stored(node):
            self._waiting[node] = unknown
            return self._fill(node)
        tasks = [task for child in _children(node) for task in self._want(child)]
        return [self._merge(node)] if self._have.issuperset(_children(node)) else tasks

    def _fill(self, node: Node) -> list[Task]:
        """Tasks for a node's leaves without receipts; what the level kept of it is read, or made anew."""
        tasks = []
        for child in _children(node):
            unknown = self._unknown(child)
            apart = len(unknown) == 1 << child[0] or self._is_stored(child)
            if child[0] == 0 or (child[0] == self._kept and apart):
                tasks += self._want(child) if unknown else []
            elif unknown:
                tasks += self._fill(child)
        return tasks

    def _take(self, node: Node, receipt: Receipt) -> list[Task]:
        number = node[1]
        earlier = self.receipts[number].digest if number in self.receipts else self._earlier.get(number)
        if earlier is not None and earlier != receipt.digest:
            self.rewritten.add(number)
        self.receipts[number] = receipt
        self.computed.add(number)
        self._have.add(node)
        tasks, above = [], list(self._path_up(node))
        for one in above:
            self._keys.pop(one, None)
        for one in above:
            if one in self._waiting:
                self._waiting[one].discard(number)
                tasks += [] if self._waiting[one] else self._settle(one)
        return tasks + self._up(node)

    def _settle(self, node: Node) -> list[Task]:
        """All leaves of a node that may be there are known, and so is its name: it is there, or it is to be made."""
        del self._waiting[node]
        if (path := self._path(node)).exists():
            self._have.add(node)
            if node[0] <= self._kept or self._kept < 0:  # higher up, sums that are kept may still be under way
                for below in [one for one in self._have if one != node and node in self._path_up(one)]:
                    self._drop(below)
            return self._up(node)
        for stale in path.parent.glob(self._sums.node(*node, "*").name):
            stale.unlink(missing_ok=True)
        return self._want(node)

    def _up(self, node: Node) -> list[Task]:
        """The merge that this node makes possible."""
        parent, sibling = _parent(node), (node[0], node[1] ^ 1)
        if not self._complete(parent) or sibling not in self._have or parent in self._running:
            return []
        # Inside a node that is there, or may be, nothing is merged but sums that are kept.
        for above in self._path_up(parent):
            present = above in self._have or above in self._waiting
            if present and (above[0] <= self._kept or parent[0] > self._kept):
                return []
        return [self._merge(parent)]

    def _drop(self, node: Node) -> None:
        self._path(node).unlink(missing_ok=True)
        self._have.discard(node)

    def _leaf(self, node: Node) -> Task:
        self._running.add(node)
        leaf = self._leaves[node[1]]
        place, cut = (str(self._sums.directory), self._sums.hash), (leaf.number, leaf.start, leaf.stop)
        arguments = (type(self._sums), *place, self._source, cut)
        return Task(run_leaf, arguments, node, f"leaf {leaf.number} (rows {leaf.start} to {leaf.stop - 1})")

    def _merge(self, node: Node) -> Task:
        self._running.add(node)
        left, right = _children(node)
        paths = (str(self._path(left)), str(self._path(right)), str(self._path(node)))
        first, stop = node[1] << node[0], (node[1] + 1) << node[0]
        return Task(merge_nodes, (*paths, type(self._sums)), node, f"the sum of leaves {first} to {stop - 1}")

    def _complete(self, node: Node) -> bool:
        return self._first <= node[1] << node[0] and (node[1] + 1) << node[0] <= self._end

    def _unknown(self, node: Node) -> set[int]:
        return {n for n in range(node[1] << node[0], (node[1] + 1) << node[0]) if n not in self.receipts}

    def _is_stored(self, node: Node) -> bool:
        """Whether a file of this node was there at the start, whatever its key."""
        return self._sums.node(*node, "").stem[:-1] in self._stored

    def _path_up(self, node: Node) -> Iterator[Node]:
        yield node
        while self._complete(node := _parent(node)):
            yield node

    def _is_spare(self, node: Node) -> bool:
        """Whether a kept sum that this node is in, or those that it is made of (if there), serve in its place."""
        if node[0] < self._kept:
            holding = (above for above in self._path_up(_parent(node)) if above[0] <= self._kept)
            return any(not self._unknown(above) and self._path(above).exists() for above in holding)
        return node[0] > self._kept and self._can_be_restored(node)

    def _can_be_restored(self, node: Node) -> bool:
        """Whether all sums of level `kept` below this node, or it, are there."""
        if self._kept < 0 or node in self._restorable:
            return True
        below = _children(node) if node[0] > self._kept else ()
        if all(map(self._can_be_restored, below)) if below else self._path(node).exists():
            self._restorable.add(node)
        return node in self._restorable

    def _key(self, node: Node) -> str:
        if node[0] == 0:
            return self.receipts[node[1]].key
        if node not in self._keys:
            left, right = _children(node)
            self._keys[node] = hashlib.sha256(f"{self._key(left)} {self._key(right)}".encode()).hexdigest()[:16]
        return self._keys[node]

    def _path(self, node: Node) -> Path:
        return self._sums.node(*node, self._key(node))


def _children(node: Node) -> tuple[Node, Node]:
    return (node[0] - 1, 2 * node[1]), (node[0] - 1, 2 * node[1] + 1)


def _parent(node: Node) -> Node:
    return node[0] + 1, node[1] // 2


def _numbered(receipts: Path) -> dict[int, Path]:
    """The files of receipts, by their leaves' numbers."""
    return {int(file.stem): file for file in receipts.glob("*.json") if file.stem.isdigit()}
