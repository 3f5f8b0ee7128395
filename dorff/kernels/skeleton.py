"""Compositional kernels of computation skeletons (Daniely, Frostig, Gupta & Singer 2017)."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Annotated, Any, Final

import numpy as np

from dorff.errors import InputError
from dorff.kernels.conjugates import ALONE, Conjugate, conjugate_of
from dorff.kernels.scalar import FloatArray, IntArray, Lengthscale, Measure, Spectral, whole
from dorff.kernels.skeleton_graph import (
    SkeletonGraph,
    check_calls,
    check_sizes,
    curvature,
    diagonal_of,
    values_of,
)
from dorff.kernels.spaces import BaseSpace, Scheme, Sphere, described, spaces_of
from dorff.spec.kernel import Scalar
from dorff.spec.part import HARMLESS, OneOrMore, Part, Takes, Typed, within
from dorff.spec.part import Lengthscale as Lengthscales
from dorff.spec.registry import SPACES, Config, Word

MOST_NODES: Final = 10**5
ACTIVATION_FLOPS: Final = 30  # about, for one value of a conjugate activation
_NUMBERS: Final = 2**24  # of nodes' values at a time


@dataclass(frozen=True, init=False)
class SkeletonNode:
    """A node over those that it is `of`, input nodes by number and others by name, with a conjugate `activation`."""

    of: tuple[int | str, ...]
    activation: Conjugate

    def __init__(self, of: Sequence[int | str], activation: Conjugate | str | Mapping[str, Any] = "relu") -> None:
        listed = of if isinstance(of, list | tuple) else ()
        plain = tuple(int(one) if isinstance(one, np.integer) else one for one in listed)
        if not plain or not all(isinstance(one, int | str) and not isinstance(one, bool) for one in plain):
            raise InputError(f"nodes: `of` must be a list of input nodes' numbers and nodes' names, not {of!r}")
        vars(self).update(of=plain, activation=conjugate_of(activation))


@dataclass(frozen=True, init=False)
class Layer:
    """Nodes over windows of the layer below: `size` places along each axis, one number or one an axis, `stride` places
    apart, none of them over the edge. Without a size one node over the whole layer (fully connected). With the
    activation identity it is pooling, by the mean."""

    size: tuple[int, ...] | int | None
    stride: tuple[int, ...] | int
    activation: Conjugate

    def __init__(
        self,
        size: Sequence[int] | int | None = None,
        stride: Sequence[int] | int = 1,
        activation: Conjugate | str | Mapping[str, Any] = "relu",
    ) -> None:
        sizes = None if size is None else _each("size", size)
        if size is None and stride != 1:
            raise InputError(f"layers: a layer without a size has no stride, but stride is {stride!r}; give a size")
        vars(self).update(size=sizes, stride=_each("stride", stride), activation=conjugate_of(activation))

    def windows(self, places: tuple[int, ...]) -> tuple[tuple[int, ...], list[tuple[slice, ...]]]:
        """The places of this layer, over one of so many `places` along each axis, and what each sees of those."""
        if self.size is None:
            return (1,) * len(places), [(slice(None),) * len(places)]
        sizes, strides = _along(self.size, len(places), "size"), _along(self.stride, len(places), "stride")
        if any(size > there for size, there in zip(sizes, places, strict=True)):
            problem = f"layers: a window of {list(sizes)} is larger than the layer below, of {list(places)} places"
            raise InputError(f"{problem}; make it smaller, or leave its size out")
        along = [
            [slice(at, at + size) for at in range(0, there - size + 1, stride)]
            for there, size, stride in zip(places, sizes, strides, strict=True)
        ]
        return tuple(map(len, along)), list(product(*along))

    def config(self) -> Config:
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        kept = {name: value for name, value in plain.items() if (name, value) not in (("size", None), ("stride", 1))}
        return {**kept, "activation": self.activation.config()}


def _node(one: Any) -> SkeletonNode:
    return one if isinstance(one, SkeletonNode) else described("nodes: a node", SkeletonNode, one)


def _each(name: str, value: Sequence[int] | int) -> tuple[int, ...] | int:
    if isinstance(value, list | tuple) and value:
        return tuple(whole(f"layers: {name}", one) for one in value)
    return whole(f"layers: {name}", value)


def _along(value: tuple[int, ...] | int, axes: int, name: str) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * axes
    if len(value) != axes:
        raise InputError(f"layers: {name} has {len(value)} numbers, but places lie along {axes} axes; give as many")
    return value


@dataclass(frozen=True, init=False)
class Skeleton(Spectral):
    """The kernel of a computation skeleton (Daniely et al. 2017, section 5): k_v(x, z) = s_v(mean_u k_u(x, z)) at a
    node v over nodes u, s_v its conjugate activation; base kernels at input nodes.

    `inputs`: a base space of all columns (`Angle()`, its word "angle", or a description as in JOB.yaml), or several,
    each with its columns; input nodes are numbered in their order. Either `layers`, from the inputs up, whose last has
    one place: over inputs of `shape` (places along each axis, then channels), without which all are channels of one
    place. Or `nodes`, by name, each after those that it is over; the last one is the output. InputError for what does
    not fit together; for d inputs in `check`. Over spheres the kernel is not shift-invariant, and `paths` draws
    products of linear forms in place of frequencies."""

    inputs: tuple[BaseSpace, ...]
    layers: tuple[Layer, ...]
    shape: tuple[int, ...] | None
    nodes: tuple[tuple[str, SkeletonNode], ...]
    lengthscale = 1.0
    sampler = "paths"

    def __init__(
        self,
        layers: Sequence[Layer | Mapping[str, Any]] = (),
        *,
        inputs: Any = "angle",
        shape: Sequence[int] | None = None,
        nodes: Mapping[str, SkeletonNode | Mapping[str, Any]] | Sequence[tuple[str, SkeletonNode]] | None = None,
    ) -> None:
        if not isinstance(layers, list | tuple):
            raise InputError(f"layers must be a list of layers, such as [Layer(3), Layer()], not {layers!r}")
        if not isinstance(nodes, Mapping | tuple | None):
            raise InputError(f"nodes must be a mapping of nodes by name, not {nodes!r}")
        if bool(layers) == bool(nodes):
            raise InputError("a skeleton has either layers or nodes, one or more; give one of them")
        if shape is not None and nodes:
            raise InputError("shape is of inputs that have layers, but here are nodes; leave it out")
        vars(self).update(
            inputs=spaces_of(inputs),
            layers=tuple(one if isinstance(one, Layer) else described("layers: a layer", Layer, one) for one in layers),
            shape=_places(shape),
            nodes=tuple((str(name), _node(one)) for name, one in dict(nodes or {}).items()),
        )

    @property
    def shift_invariant(self) -> bool:
        return not any(isinstance(space, Sphere) for space in self.inputs)

    def graph(self, d: int) -> SkeletonGraph:
        """Return the graph for d inputs, which is kept for the next blocks of rows.

        Raises
        ------
        InputError
            If the skeleton does not fit d inputs.
        """
        return _cached_graph(self, d)

    def _build_graph(self, d: int) -> SkeletonGraph:
        """Return the graph for d inputs."""
        spaces, first = [], 0
        for space in self.inputs:
            columns = np.arange(d) if space.columns is None else np.array(space.columns)
            if columns.max() >= d:
                problem = f"{space.kind} has column {columns.max()}, but there are {d}, from 0 on"
                raise InputError(f"inputs: {problem}")
            spaces.append((space, columns, first))
            first += space.nodes(len(columns))
        nodes = self._layered(first) if self.layers else self._named(first)
        return SkeletonGraph(tuple(spaces), first, tuple(nodes))

    def _layered(self, inputs: int) -> Iterator[tuple[IntArray, Conjugate]]:
        shape = (1, inputs) if self.shape is None else self.shape
        if math.prod(shape) != inputs:
            raise InputError(
                f"shape: {list(shape)} holds {math.prod(shape)} inputs, but there are {inputs}; correct it"
            )
        numbers, places, above = np.arange(inputs).reshape(shape), shape[:-1], inputs
        for layer in self.layers:
            places, windows = layer.windows(places)
            if above + len(windows) > inputs + MOST_NODES:
                raise InputError(f"layers: more than {MOST_NODES} nodes; make strides longer")
            yield from ((numbers[window].ravel(), layer.activation) for window in windows)
            numbers = np.arange(above, above + len(windows)).reshape(*places, 1)
            above += len(windows)
        if math.prod(places) > 1:
            problem = f"layers: the last one has {list(places)} places, but a kernel is that of one"
            raise InputError(f"{problem}; add a layer without a size")

    def _named(self, inputs: int) -> Iterator[tuple[IntArray, Conjugate]]:
        numbers: dict[int | str, int] = {number: number for number in range(inputs)}
        for above, (name, node) in enumerate(self.nodes, inputs):
            unknown = [one for one in node.of if one not in numbers]
            if unknown:
                wanted = f"an input node, 0 to {inputs - 1}, or a node above it in the list"
                raise InputError(f"nodes: {name} is over {unknown[0]!r}, which is not {wanted}; correct it")
            yield np.array([numbers[one] for one in node.of]), node.activation
            numbers[name] = above
        used = {one for _, node in self.nodes for one in node.of}
        idle = [name for name, _ in self.nodes[:-1] if name not in used]
        if idle:
            raise InputError(f"nodes: no node is over {idle[0]!r}, but only the last one is the output; take it out")

    def check(self, d: int) -> None:
        self.graph(d)

    def check_random_features(self, d: int) -> None:
        """Check that the kernel has random features of d inputs.

        Without them it still has exact values, and so features of landmarks.

        Raises
        ------
        InputError
            If a feature would have too many factors, or an infinite variance.
        """
        graph = self.graph(d)
        check_calls(graph)
        check_sizes(graph)

    def check_rows(self, X: FloatArray, *, scaled: bool) -> None:
        coded = [space.kind for space in self.inputs if space.coded]
        if coded and scaled:
            problem = f"inputs of {coded[0]} have values that must stay as they are"
            remedy = "set it to false, and give angles a lengthscale"
            raise InputError(f"standardize: {problem}; {remedy}")
        for space, columns, _ in self.graph(X.shape[1]).spaces:
            space.check_rows(X[:, columns])

    def input_lengthscales(self, d: int) -> dict[int, float]:
        """Return the length-scale of each column that has one, by the column's number.

        Columns of angles have one, and those of blocks whose scalar kernel has one.
        """
        lengthscales = dict[int, float]()
        for space, columns, _ in self.graph(d).spaces:
            own = space.lengthscales(len(columns))
            if own is not None:
                lengthscales.update(zip(columns.tolist(), own.tolist(), strict=True))
        return lengthscales

    def stretched_nodes(self, d: int) -> int:
        """Return the number of input nodes whose base kernel has a length-scale."""
        count = 0
        for space, columns, _ in self.graph(d).spaces:
            if space.lengthscales(len(columns)) is not None:
                count += space.nodes(len(columns))
        return count

    def with_lengthscale(self, lengthscale: Lengthscale) -> "Skeleton":
        """Return the same skeleton with other length-scales.

        Parameters
        ----------
        lengthscale : float or (d,)
            One for all angles and blocks, or one for each column. Signs, categories and spheres
            have none.

        Raises
        ------
        InputError
            If no input has a length-scale.
        """
        values = np.atleast_1d(np.asarray(lengthscale, dtype=np.float64))
        inputs = list[BaseSpace]()
        for space in self.inputs:
            own = values
            if len(values) != 1 and space.columns is not None:
                own = values[list(space.columns)]
            inputs.append(space.with_lengthscales(own))
        pairs = zip(inputs, self.inputs, strict=True)
        if all(changed is space for changed, space in pairs):
            problem = "the skeleton has none to tune: signs, categories and spheres have none"
            remedy = "compare activations, such as {exponential: 2}, instead"
            raise InputError(f"lengthscale: {problem}; {remedy}")
        return Skeleton(self.layers, inputs=inputs, shape=self.shape, nodes=self.nodes or None)

    def complexity(self, d: int) -> float:
        """C(S), the mean number of base features in a feature (eq. 11)."""
        return self.graph(d).complexity

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        return _by_rows(X, (len(Z),), values_of, self.graph(X.shape[1]), Z)

    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return k(x, x) (n,) for rows X (n, d): less than 1 where a sphere's columns are all 0."""
        if self.shift_invariant:
            return np.ones(len(X))
        return diagonal_of(self.graph(X.shape[1]), X)

    def gram_flops(self, d: int) -> float:
        """Return about how many floating-point operations one exact value takes for d inputs."""
        graph = self.graph(d)
        edges = sum(len(below) for below, _ in graph.nodes)
        return float(4 * (edges + d) + ACTIVATION_FLOPS * len(graph.nodes))

    def gram_numbers(self, d: int, rows: int, columns: int) -> int:
        """Return how many numbers of 8 bytes `gram` keeps for (rows, columns) exact values."""
        per_row = columns * len(self.graph(d).nodes)
        return per_row * min(rows, max(1, _NUMBERS // max(1, per_row)))

    def config(self) -> Config:
        inputs = [one.config() for one in self.inputs]
        shape = {} if self.shape is None else {"shape": list(self.shape)}
        nodes = {name: {"of": list(node.of), "activation": node.activation.config()} for name, node in self.nodes}
        rest = {"nodes": nodes} if self.nodes else {**shape, "layers": [one.config() for one in self.layers]}
        return {"type": "skeleton", "inputs": inputs[0] if len(inputs) == 1 else inputs, **rest}

    def log_density(self, omega: FloatArray, measure: Measure) -> FloatArray:
        """Zeros: with respect to the kernel's own law, for most of its frequencies have a probability."""
        self.check_measure(measure)
        return np.zeros(len(omega))

    def check_derivatives(self) -> None:
        rough = [f"an input of {one.kind}" for one in self.inputs if not one.differentiable]
        activations = [one.activation for one in self.layers] + [one.activation for _, one in self.nodes]
        rough += ["a step" for one in activations if math.isinf(one.slope)]
        if rough:
            problem = "curl-free and divergence-free kernels need derivatives, which a skeleton has over angles"
            raise InputError(f"{problem} and blocks of a gaussian, but here is {rough[0]}; use a decomposable kernel")

    def hessian(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        self.check_derivatives()
        graph, d = self.graph(X.shape[1]), X.shape[1]
        return _by_rows(X, (len(Z), d, d), curvature, graph, Z)

    def second_moments(self, d: int) -> FloatArray:
        self.check_derivatives()
        graph, moments = self.graph(d), np.zeros(d)
        for space, columns, first in graph.spaces:
            moments[columns] += (
                space.second_moments(len(columns)) * graph.calls[first : first + space.nodes(len(columns))]
            )
        return moments

    def dims(self, d: int, measure: Measure) -> int:
        return self._no_quantiles()

    def quantiles(self, uniforms: FloatArray, d: int, measure: Measure) -> FloatArray:
        return np.empty(self._no_quantiles())

    def _no_quantiles(self) -> int:
        raise InputError("sampler: the frequencies of a skeleton are drawn by paths; leave the sampler out")


@lru_cache(maxsize=64)
def _cached_graph(skeleton: Skeleton, d: int) -> SkeletonGraph:
    return skeleton._build_graph(d)


def _by_rows(
    X: FloatArray,
    shape: tuple[int, ...],
    made: Callable[[SkeletonGraph, FloatArray, FloatArray], FloatArray],
    graph: SkeletonGraph,
    Z: FloatArray,
) -> FloatArray:
    """What is `made` of a few rows of X at a time, (n, *shape)."""
    out, step = np.empty((len(X), *shape)), max(1, _NUMBERS // max(1, math.prod(shape) * len(graph.nodes)))
    for start in range(0, len(X), step):
        out[start : start + step] = made(graph, X[start : start + step], Z)
    return out


def _places(value: Any) -> tuple[int, ...] | None:
    """Places along each axis, then channels; InputError for anything else."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if value is not None and (not isinstance(value, list | tuple) or len(value) < 2):
        raise InputError(f"shape must be a list of places along each axis, then channels, not {value!r}")
    return None if value is None else tuple(whole("shape: a number", one) for one in value)


_COUNT: Final = {"type": "integer", "minimum": 1}
_COUNTS: Final = {"type": "array", "items": _COUNT, "minItems": 1}
_NUMBERED: Final = {
    "exponential": {"type": "number", "exclusiveMinimum": 0},
    "polynomial": _COUNT,
    "power_series": {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 2},
}
_MAPPINGS: Final = [
    {"type": "object", "properties": {word: of}, "required": [word], "additionalProperties": False}
    for word, of in _NUMBERED.items()
]
Size = Annotated[
    Any, Takes(lambda value: value is None or _each("size", value), {"anyOf": [_COUNT, _COUNTS, {"type": "null"}]})
]
Stride = Annotated[Any, Takes(partial(_each, "stride"), {"anyOf": [_COUNT, _COUNTS]})]
Activation = Annotated[Any, Takes(conjugate_of, {"anyOf": [{"enum": list(ALONE)}, *_MAPPINGS]})]


class LayerSpec(Part):
    """Nodes over windows of `size` places of the layer below, `stride` apart; without a size one over all of it."""

    size: Size = None
    stride: Stride = 1
    activation: Activation = "relu"


class NodeSpec(Part):
    """A node over input nodes, by number, and nodes above it in the list, by name."""

    of: Annotated[tuple[int | str, ...], OneOrMore(), HARMLESS]
    activation: Activation = "relu"


class SpaceSpec(Typed):
    """Some columns of the inputs, or all of them."""

    columns: Annotated[tuple[Annotated[int, within(0)], ...], OneOrMore()] = ()


_LENGTHSCALE_SCHEMA: Final = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}, "minItems": 1},
        {"enum": ["tune", "tune each", "auto"]},
        {"const": {"tune": "each"}},
    ]
}


def _refuse_median(lengthscale: Any) -> None:
    """Raise InputError for the median distance, which means little for a single column."""
    if lengthscale == "median":
        choices = "a number, a list of numbers (one a column), tune, {tune: each} or auto"
        raise InputError(f"of angles: {choices}, not median")


class AngleSpec(SpaceSpec):
    """Circles: an input over its length-scale is an angle in radians. `tune`, `{tune: each}` (one an input) and `auto`
    (tune) maximise the evidence of a sample."""

    lengthscale: Annotated[Lengthscales, Takes(_refuse_median, _LENGTHSCALE_SCHEMA)] = 1.0


class CategorySpec(SpaceSpec):
    """Whole numbers, of which so many values in a row differ: 1 where equal, else 0."""

    values: Annotated[int, within(2)]


class SphereSpec(SpaceSpec):
    """Columns that are one input, divided by their length; `scheme` says what features are made of."""

    scheme: Scheme = "pairs"


class BlockSpec(SpaceSpec):
    """Columns that are one input, with a shift-invariant scalar kernel."""

    scalar: Scalar


class SkeletonSpec(Typed):
    """A compositional kernel: layers or nodes over encoded inputs, each the conjugate activation of a mean."""

    inputs: Annotated[tuple[Annotated[str | Typed, Word(SPACES, alone="angle")], ...], OneOrMore()] = ("angle",)
    shape: Annotated[Any, Takes(_places, {"anyOf": [{**_COUNTS, "minItems": 2}, {"type": "null"}]})] = None
    layers: Annotated[tuple[LayerSpec, ...], OneOrMore()] = ()
    nodes: dict[Annotated[str, HARMLESS], NodeSpec] | None = None
