"""A skeleton for a number of inputs: its nodes, what they call, their values and derivatives, and what is too much."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dorff.errors import InputError
from dorff.kernels.conjugates import MOST_FACTORS, Conjugate
from dorff.kernels.isotropic import Gaussian
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.kernels.spaces import BaseSpace, ColumnBlock, Sphere


@dataclass(frozen=True, eq=False)
class SkeletonGraph:
    """A skeleton for d inputs: its `spaces` with their columns and the number of their first node; and for each other
    node, after those that it is over, their numbers and its conjugate activation. The last one is the output."""

    spaces: tuple[tuple[BaseSpace, IntArray, int], ...]
    inputs: int
    nodes: tuple[tuple[IntArray, Conjugate], ...]

    def by_space(self, nodes: IntArray) -> Iterator[tuple[int, IntArray, IntArray]]:
        """The input nodes among these, by space: its number, where they are, and their numbers in the space."""
        for number, (space, columns, first) in enumerate(self.spaces):
            at = np.flatnonzero((nodes >= first) & (nodes < first + space.nodes(len(columns))))
            if len(at):
                yield number, at, nodes[at] - first

    def upward(self, inputs: FloatArray, at: Callable[[Conjugate, FloatArray], float]) -> FloatArray:
        """A number for every node: `inputs`, then what `at` makes of an activation and the numbers that it is over."""
        numbers = np.concatenate([inputs, np.empty(len(self.nodes))])
        for number, (of, conjugate) in enumerate(self.nodes, self.inputs):
            numbers[number] = at(conjugate, numbers[of])
        return numbers

    def of_inputs(self, of: Callable[[BaseSpace, int], float]) -> FloatArray:
        """For each input node what `of` says of its space and the number of the space's columns."""
        each = [np.full(space.nodes(len(columns)), of(space, len(columns))) for space, columns, _ in self.spaces]
        return np.concatenate(each)

    @cached_property
    def complexity(self) -> float:
        """C(S), the mean number of base features in one of its features (eq. 11); infinite for a step."""
        C = self.upward(np.ones(self.inputs), lambda conjugate, C: conjugate.slope * float(C.mean()))
        return float(C[-1])

    @cached_property
    def calls(self) -> FloatArray:
        """How often a feature calls each node, in the mean."""
        calls = np.zeros(self.inputs + len(self.nodes))
        calls[-1] = 1.0
        for number in range(len(calls) - 1, self.inputs - 1, -1):
            of, conjugate = self.nodes[number - self.inputs]
            np.add.at(calls, of, calls[number] * conjugate.slope / len(of))
        return calls


def values_of(graph: SkeletonGraph, X: FloatArray, Z: FloatArray) -> FloatArray:
    """The output's values (n, k)."""
    values = np.empty((len(graph.nodes), len(X), len(Z)))
    for above, (of, conjugate) in enumerate(graph.nodes):
        total = values[of[of >= graph.inputs] - graph.inputs].sum(axis=0)
        for number, _, nodes in graph.by_space(of):
            space, columns, _ = graph.spaces[number]
            total += space.total(X, Z, columns, nodes)
        values[above] = conjugate(total / len(of))
    return np.asarray(values[-1])


def diagonal_of(graph: SkeletonGraph, X: FloatArray) -> FloatArray:
    """Return the output's values k(x, x) (n,): an input node has 1, or 0 where x is zero on its sphere."""
    values = np.ones((graph.inputs + len(graph.nodes), len(X)))
    for space, columns, first in graph.spaces:
        if isinstance(space, Sphere):
            values[first] = np.any(X[:, columns] != 0.0, axis=1)
    for number, (of, conjugate) in enumerate(graph.nodes, graph.inputs):
        values[number] = conjugate(values[of].mean(axis=0))
    return np.asarray(values[-1])


def curvature(graph: SkeletonGraph, X: FloatArray, Z: FloatArray) -> FloatArray:
    """The Hessian of the output by x - z (n, k, d, d), by the chain rule."""
    n, k, d = len(X), len(Z), X.shape[1]
    values, slopes, bends = list[FloatArray](), list[FloatArray](), list[FloatArray]()
    for of, conjugate in graph.nodes:
        inner = of[of >= graph.inputs] - graph.inputs
        value, slope, bend = np.zeros((n, k)), np.zeros((n, k, d)), np.zeros((n, k, d, d))
        for at in inner:
            value, slope, bend = value + values[at], slope + slopes[at], bend + bends[at]
        for number, _, nodes in graph.by_space(of):
            space, columns, _ = graph.spaces[number]
            value += space.total(X, Z, columns, nodes)
            first, second = space.slopes(X[:, columns], Z[:, columns], nodes)
            slope[..., columns] += first
            bend[..., columns[:, None], columns] += second
        rho, slope = value / len(of), slope / len(of)
        first, second = (one[..., None] for one in conjugate.derivatives(rho))
        across = slope[..., None] * slope[..., None, :]
        values.append(conjugate(rho))
        bends.append(second[..., None] * across + first[..., None] * bend / len(of))
        slopes.append(first * slope)
    return bends[-1]


def check_calls(graph: SkeletonGraph) -> None:
    """InputError where features have too many factors on average: also where a step, which calls what it is over
    infinitely often, is over another one, or over a block that is no Gaussian."""

    def most(conjugate: Conjugate, C: FloatArray) -> float:
        return (conjugate.slope if math.isfinite(conjugate.slope) else 1.0) * float(C.max())

    def endless(conjugate: Conjugate, over: FloatArray) -> float:
        if math.isfinite(conjugate.slope):
            return float(over.max())
        if over.max() > 0:
            problem = "a step is over another step, or over a block that is not gaussian: its features have"
            remedy = "use relu or erf for one of them, or sampler landmarks"
            raise InputError(f"activation: {problem} more factors than can be drawn; {remedy}")
        return 1.0

    C = graph.upward(np.ones(graph.inputs), most)
    if C.max() > MOST_FACTORS:
        problem = f"a feature may have {C.max():.3g} factors on average, and {MOST_FACTORS:g} can be drawn"
        raise InputError(f"activation: {problem}; use smaller rates or powers, or sampler landmarks")
    rough = graph.of_inputs(lambda space, _: isinstance(space, ColumnBlock) and not isinstance(space.scalar, Gaussian))
    graph.upward(rough, endless)


def check_sizes(graph: SkeletonGraph) -> None:
    """InputError where the squares of features, products over spheres, have no mean."""

    def grown(conjugate: Conjugate, sizes: FloatArray) -> float:
        size = float(sizes.mean())
        return conjugate.growth(size) if math.isfinite(size) else math.inf

    if math.isinf(graph.upward(graph.of_inputs(lambda space, width: space.largest(width)), grown)[-1]):
        problem = (
            "features of relu, step or erf over a sphere are products of any number of factors that are not bounded"
        )
        remedy = "use exponential, polynomial or power_series, a block of a gaussian, or sampler landmarks"
        raise InputError(f"activation: {problem}; {remedy}")
