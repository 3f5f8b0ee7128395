"""Random features of computation skeletons, all at once: characters of a few inputs each, merged where equal."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt

from dorff.frequencies.base import Cost, Frequencies, Law, Sampler, apportion, uniform
from dorff.frequencies.transforms import Dense, FormProducts, Sparse
from dorff.kernels import ColumnBlock, Measure, MultiView, OperatorKernel, Spectral, Sphere
from dorff.kernels.conjugates import dealt
from dorff.kernels.scalar import FloatArray, IntArray, whole
from dorff.kernels.skeleton import Skeleton
from dorff.kernels.skeleton_graph import SkeletonGraph
from dorff.kernels.spaces import Characters
from dorff.spec.part import Typed, within
from dorff.spec.registry import Config

_TOGETHER: Final = 2**17  # features that are drawn at a time
Calls = tuple[IntArray, IntArray, IntArray]  # feature, node, how often it calls it


class PathsSpec(Typed):
    """RFSS: characters of a skeleton's inputs. Of `draws` times as many as are kept equal ones are merged."""

    draws: Annotated[int, within(1, 1024)] = 16


@dataclass(frozen=True)
class Paths(Sampler):
    """RFSS (Daniely et al. 2017, algorithm 1) where base features are characters: a feature is exp(i omega . x), omega
    a sum of its base features'. Of `draws` times as many frequencies as are wanted those that are equal, or opposite,
    are merged (section 6), and as many as are wanted stay: each whose count c is above a threshold t, the others with
    probability c / t and the weight of t (systematic sampling; Fearnhead & Clifford 2003), so that the kernel's
    estimate stays unbiased whatever is merged. Where fewer differ, some stand twice, with their weight shared. Their
    order is that of `by_priority`, so that the first of them do for fewer (`frequencies.first_weights`). With `draws` 1
    this is the paper's scheme without merging. Other scalar kernels have their frequencies drawn one by one."""

    draws: int = 16
    kind = "paths"
    viewed = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", whole("draws", self.draws, 1, 1024))

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        if isinstance(law, Skeleton):
            law.check_random_features(d)

    def rule(self, rng: np.random.Generator, law: Law, count: int, d: int) -> Frequencies:
        if not isinstance(law.scalar, Skeleton):
            return Frequencies(Dense(law.spectrum.draw(rng, count, d, law.measure)), uniform(count))
        graph = law.scalar.graph(d)
        forms = _forms(graph, rng, d)
        transform, counts = distinct(graph, rng, count * self._draws(law.scalar), d)
        kept, weights = thinned(rng, counts, count)
        order = by_priority(rng, weights)
        kept, weights = kept[order], weights[order]
        chosen = rows_of(transform, kept)
        return Frequencies(chosen if forms is None else FormProducts.of(chosen, *forms), weights)

    def recipe(self, kernel: OperatorKernel, *, d: int, p: int, count: int) -> list[Config]:
        """As `Sampler.recipe`. Features of a version that drew them in another order are other ones."""
        listed = super().recipe(kernel, d=d, p=p, count=count)
        return [law | ({"order": "priority"} if law["scalar"]["type"] == "skeleton" else {}) for law in listed]

    def _draws(self, skeleton: Skeleton) -> int:
        """How many are drawn for one that is kept: one where none are equal."""
        return 1 if all(isinstance(space, ColumnBlock) for space in skeleton.inputs) else self.draws

    def cost(self, kernel: OperatorKernel, *, d: int, p: int, count: int) -> Cost:
        """As `Sampler.cost`. Of one skeleton frequencies are sparse: entries as its complexity says, or some more."""
        base = super().cost(kernel, d=d, p=p, count=count)
        if isinstance(kernel, MultiView):
            return base
        laws = self.laws(kernel, d, p)
        made = [self._cost(law, size, d) for law, size in zip(laws, apportion(laws, count), strict=True)]
        if len(laws) > 1 or not isinstance(laws[0].scalar, Skeleton):
            return base._replace(numbers=base.numbers + max(one.numbers for one in made))
        return made[0]

    def _cost(self, law: Law, count: int, d: int) -> Cost:
        """Of the frequencies of a skeleton's law before they are written out for others; nothing of another law."""
        if not isinstance(skeleton := law.scalar, Skeleton):
            return Cost(count, 0, 0.0)
        graph, drawn = skeleton.graph(d), self._draws(skeleton) * count
        entries = most_entries(graph, d) * (1 if skeleton.shift_invariant else 2)  # powers beside them
        forms = sum(space.forms_cost(len(columns)) for space, columns, _ in graph.spaces)
        held = drawn * (6 + 4 * entries) + 14 * min(drawn, _TOGETHER) * (1 + entries)
        written = 2 * count * d if law.weighed else 0
        numbers = int(count * (2 * entries + 1) + held + 10 * forms + written)
        return Cost(count, numbers, 2.0 * (count * entries + forms))


def most_entries(graph: SkeletonGraph, d: int) -> float:
    """The mean number of a frequency's entries that are not 0, or more: those that are kept of many have more than the
    mean, which is the complexity (eq. 11), a factor's degrees above the number of inputs not counted."""
    factors = [(len(columns), space.factors(len(columns))) for space, columns, _ in graph.spaces]
    widest, most = max(width / count for width, count in factors), sum(count for _, count in factors)
    C = graph.upward(np.ones(graph.inputs), lambda conjugate, C: min(conjugate.mean(most) * float(C.mean()), most))
    return min(float(_places(graph, d)[1]), (2 + 4 * float(C[-1])) * widest)


def calls_of(graph: SkeletonGraph, rng: np.random.Generator, count: int) -> Calls:
    """The input nodes that `count` features call, by feature and then by node. From the output back each node is handed
    all calls of it together, and hands on the sum of their degrees, dealt out to those that it is over."""
    nodes = graph.inputs + len(graph.nodes)
    waiting: list[list[tuple[IntArray, IntArray]]] = [[] for _ in range(nodes)]
    waiting[-1].append((np.arange(count), np.ones(count, dtype=np.int64)))
    given: list[Calls] = []
    for number in range(nodes - 1, graph.inputs - 1, -1):
        if not waiting[number]:
            continue
        of, conjugate = graph.nodes[number - graph.inputs]
        features, calls = _summed(*map(np.concatenate, zip(*waiting[number], strict=True)))
        waiting[number].clear()
        features, child, calls = dealt(rng, features, conjugate.sums(rng, calls), len(of))
        to = of[child]
        inner = to >= graph.inputs
        given.append((features[~inner], to[~inner], calls[~inner]))
        order = np.flatnonzero(inner)[np.argsort(to[inner], kind="stable")]
        names, starts = np.unique(to[order], return_index=True)
        for name, some in zip(names, np.split(order, starts)[1:], strict=True):
            waiting[name].append((features[some], calls[some]))
    features, to, calls = map(np.concatenate, zip(*given, strict=True))
    keys, calls = _summed(features * graph.inputs + to, calls)
    return keys // graph.inputs, keys % graph.inputs, calls


def _summed(keys: IntArray, values: npt.NDArray[Any]) -> tuple[IntArray, npt.NDArray[Any]]:
    """The keys, each once and ascending, and the sums of their values."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.add.reduceat(values, starts) if len(starts) else values


def distinct(graph: SkeletonGraph, rng: np.random.Generator, count: int, d: int) -> tuple[Sparse, IntArray]:
    """The frequencies that differ, up to their sign, among `count` that are drawn, and how often each came. Equal
    ones are known by sums of hashes of 64 bits: two that differ are taken for one with probability 2^-63. Their order
    is that of the hashes, and so says nothing."""
    kept, hashes, counts = list[Sparse](), np.empty(0, np.uint64), np.empty(0, np.int64)
    for start in range(0, count, _TOGETHER):
        drawn, some = characters_of(graph, rng, min(_TOGETHER, count - start), d)
        came = np.concatenate([counts, np.ones(len(some), np.int64)])
        hashes, first, which = np.unique(np.concatenate([hashes, some]), return_index=True, return_inverse=True)
        kept, counts = [rows_of(stacked([*kept, drawn]), first)], np.bincount(which, came).astype(np.int64)
    return kept[0], counts


def characters_of(
    graph: SkeletonGraph, rng: np.random.Generator, count: int, d: int
) -> tuple[Sparse, npt.NDArray[np.uint64]]:
    """`count` frequencies, and a hash (count,) of each that is the same for its negative."""
    features, nodes, calls = calls_of(graph, rng, count)
    hashes, (places, width) = np.zeros((count, 2), dtype=np.uint64), _places(graph, d)
    parts: list[tuple[IntArray, IntArray, FloatArray]]
    parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 2) if width > d else 0))]
    for number, at, local in graph.by_space(nodes):
        space, own, _ = graph.spaces[number]
        some = space.characters(rng, local, calls[at], len(own))
        np.add.at(hashes, features[at][some.of], _hashed(nodes[at][some.of], some.codes, some.powers))
        parts.append(_entries(features[at][some.of], places[number], some, powers=width > d))
    owner, columns, values = map(np.concatenate, zip(*parts, strict=True))
    return _compressed(owner, columns, values, count, width), hashes.min(axis=1)


def _entries(
    of: IntArray, places: IntArray, some: Characters, *, powers: bool
) -> tuple[IntArray, IntArray, FloatArray]:
    """What is not 0: features, columns, values, and `powers` beside them."""
    kept = np.broadcast_to(some.values != 0.0 if some.powers is None else True, some.values.shape)
    values = some.values[kept]
    if powers:
        values = np.stack([values, np.zeros(len(values)) if some.powers is None else some.powers], axis=1)
    return np.broadcast_to(of[:, None], kept.shape)[kept], places[some.columns][kept], values


def _places(graph: SkeletonGraph, d: int) -> tuple[list[IntArray], int]:
    """Of each space its columns, or a sphere's forms, that come after the d inputs; and how many both are."""
    places, width = list[IntArray](), d
    for space, columns, _ in graph.spaces:
        curved = isinstance(space, Sphere)
        places.append(np.arange(width, width + len(columns)) if curved else columns)
        width += curved * len(columns)
    return places, width


def _forms(graph: SkeletonGraph, rng: np.random.Generator, d: int) -> tuple[Sparse, IntArray] | None:
    """The real and the imaginary parts of all forms of spheres, as rows, and where each sphere's begin and all end."""
    parts = [(own, forms) for space, own, _ in graph.spaces if (forms := space.forms(rng, len(own))) is not None]
    if not parts:
        return None
    sizes = [np.full(len(own), one.values.shape[1]) for own, one in parts]
    sizes += [np.full(len(own), int(one.imaginary is not None)) for own, one in parts]
    columns = [np.sort(own[one.columns], axis=1).ravel() for own, one in parts]  # of a basis any order has the same law
    columns += [own[one.imaginary] for own, one in parts if one.imaginary is not None]
    values = np.concatenate([one.values.ravel() for _, one in parts])
    at = np.concatenate(columns, dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    rows = Sparse(starts, at, np.append(values, np.ones(len(at) - len(values))), np.array([d]))
    return rows, np.cumsum([0, *(len(own) for own, _ in parts)])


def _compressed(owner: IntArray, columns: IntArray, values: FloatArray, count: int, d: int) -> Sparse:
    """Entries of `count` rows, those at the same place added."""
    keys, values = _summed(owner * d + columns, values)
    ends = np.searchsorted(keys, np.arange(count + 1) * d)
    return Sparse(ends, (keys % d).astype(np.int32), values, np.array([d]))


def _hashed(nodes: IntArray, codes: IntArray, times: IntArray | None) -> npt.NDArray[np.uint64]:
    """A number of 64 bits for each node and code (e, 2), 0 for a code of 0: mixed as Steele, Lea & Flood (2014) do; so
    many `times` (e,)."""
    z = nodes.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + codes.astype(np.int64).view(np.uint64)
    for factor, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27), (0xD6E8FEB86659FD93, 31)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z = np.where(codes == 0, np.uint64(0), z ^ (z >> np.uint64(32)))
    return z if times is None else z * times.astype(np.uint64)[:, None]


def thinned(rng: np.random.Generator, counts: IntArray, wanted: int) -> tuple[IntArray, FloatArray]:
    """Which of what came `counts` (U,) times stay, `wanted` of them, and the roots (wanted,) of their weights, of
    which the squares estimate counts / counts.sum() without bias. Best where what is alike does not lie together."""
    total, U = float(counts.sum()), len(counts)
    if wanted >= U:
        copies = wanted // U + (np.arange(U) < wanted % U)
        return np.repeat(np.arange(U), copies), np.sqrt(np.repeat(counts / copies, copies) / total)
    threshold = _threshold(counts, wanted)
    ends = np.cumsum(np.minimum(counts / threshold, 1.0))
    places = (np.arange(wanted) + rng.random()) * (ends[-1] / wanted)  # ends[-1] is `wanted` but for rounding
    kept = np.searchsorted(ends, places, side="right").clip(max=U - 1)
    return kept, np.sqrt(np.maximum(counts[kept], threshold) / total)


def by_priority(rng: np.random.Generator, weights: FloatArray) -> IntArray:
    """Return an order of features of these `weights` (m,) of which the first m' are a sample, for every m'.

    Priority sampling (Duffield, Lund & Thorup 2007): descending w^2 / u, u uniform on (0, 1]. The heaviest are among
    the first but for a small probability, and so in nearly all samples.
    """
    return np.argsort((1.0 - rng.random(len(weights))) / weights**2, kind="stable")


def _threshold(counts: IntArray, wanted: int) -> float:
    """t such that the sum of min(1, counts / t) is `wanted`."""
    falling = np.sort(counts)[::-1]
    rest = np.cumsum(falling[::-1])[::-1]  # of this and all that are smaller
    whole = np.arange(wanted)  # so many that stay surely
    thresholds = rest[:wanted] / (wanted - whole)
    return float(thresholds[np.argmax(falling[:wanted] <= thresholds)])


def rows_of(transform: Sparse, rows: IntArray) -> Sparse:
    """Some of its rows."""
    sizes = np.diff(transform.starts)[rows]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    at = np.arange(starts[-1]) + np.repeat(transform.starts[rows] - starts[:-1], sizes)
    return Sparse(starts, transform.columns[at], transform.values[at], transform.inputs)


def stacked(parts: list[Sparse]) -> Sparse:
    """The rows of several, one after another."""
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    columns, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("columns", "values"))
    return Sparse(np.concatenate([[0], np.cumsum(sizes)]), columns, values, parts[0].inputs)
