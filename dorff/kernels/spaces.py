"""Base spaces of a computation skeleton: encodings of columns, their kernels, and characters that stand for them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from dorff.errors import InputError
from dorff.kernels.conjugates import dealt
from dorff.kernels.isotropic import Gaussian
from dorff.kernels.scalar import FloatArray, IntArray, Measure, Spectral, scalar_from_config, whole
from dorff.kernels.stretched import Stretched, lengthscales
from dorff.spec.registry import SPACES, Config

K = TypeVar("K")
Scheme = Literal["pairs", "coordinates", "directions"]


class Characters(NamedTuple):
    """Factors of features: exp(i omega . x) of the calls `of` (f,), omega along `columns` (f, w) being `values` (f, w),
    elsewhere 0. Of a sphere |z|^power exp(i value arg z), z being the form that is its only column, of `powers` (f,).
    A feature is known by the sum of its factors' `codes` (f, 2), mixed, times their powers; the second is that of its
    conjugate."""

    of: IntArray
    columns: IntArray
    values: FloatArray
    codes: IntArray
    powers: IntArray | None = None


class Forms(NamedTuple):
    """Linear forms of a sphere's columns x (w,): z_j = sum over k of values[j, k] x[columns[j, k]], and i
    x[imaginary[j]] beside it where there is one."""

    columns: IntArray
    values: FloatArray
    imaginary: IntArray | None = None


@dataclass(frozen=True)
class BaseSpace(ABC):
    """Some `columns` of the inputs, all of them where None, as input nodes of a skeleton, and the kernel k of each,
    k(x, x) = 1: a function of x - z, the mean of a character over its law, or x . z on a sphere (Daniely et al. 2017,
    section 4)."""

    columns: tuple[int, ...] | None
    kind: ClassVar[str]  #: its word in JOB.yaml
    coded: ClassVar[bool] = False  #: whether values must stay as they are: dividing them by their spread is refused

    def nodes(self, width: int) -> int:
        """How many input nodes a number of columns makes: one each."""
        return width

    @abstractmethod
    def total(self, X: FloatArray, Z: FloatArray, columns: IntArray, nodes: IntArray) -> FloatArray:
        """The sum over some of the nodes of their kernels (n, k), for inputs X (n, d) and Z (k, d) of which `columns`
        (w,) are the space's."""

    @abstractmethod
    def characters(self, rng: np.random.Generator, nodes: IntArray, calls: IntArray, width: int) -> Characters:
        """For each of `nodes` (e,) the product of as many characters as it is called, `calls` (e,) of 1 or more."""

    def lengthscales(self, width: int) -> FloatArray | None:
        """Return the length-scale along each column (width,); None of a space that has none."""
        return None

    def with_lengthscales(self, lengthscale: FloatArray) -> "BaseSpace":
        """Return the same space with a length-scale (1,) for all of its columns, or one for each (width,)."""
        return self

    @property
    def differentiable(self) -> bool:
        """Whether it has `slopes` and `second_moments`."""
        return False

    def slopes(self, X: FloatArray, Z: FloatArray, nodes: IntArray) -> tuple[FloatArray, FloatArray]:
        """The gradient (n, k, w) and the Hessian (n, k, w, w) of `total`, by the space's columns X (n, w)."""
        raise AssertionError("not differentiable")

    def second_moments(self, width: int) -> FloatArray:
        """E omega_j^2 of a character along each column (w,)."""
        raise AssertionError("not differentiable")

    def forms(self, rng: np.random.Generator, width: int) -> Forms | None:
        """What characters of a sphere are powers of; None of other spaces."""
        return None

    def forms_cost(self, width: int) -> int:
        """How many numbers of them are not 0."""
        return 0

    def factors(self, width: int) -> int:
        """How many different base features there are, up to their conjugates; one of all that have no end."""
        return self.nodes(width)

    def largest(self, width: int) -> float:
        """The largest squared size of a base feature."""
        return 1.0

    def check_rows(self, X: FloatArray) -> None:
        """Does nothing if the columns X (n, w) are what the space is for, else raises the InputError that says so."""
        return

    @abstractmethod
    def config(self) -> Config:
        """The space in the grammar of JOB.yaml."""


class _Coded(BaseSpace):
    """A column's frequencies are whole multiples of its unit."""

    @abstractmethod
    def units(self, width: int) -> FloatArray:
        """What the columns' frequencies are multiples of, (width,)."""

    @abstractmethod
    def drawn(self, rng: np.random.Generator, calls: IntArray) -> IntArray:
        """The multiple of a product of characters."""

    def reduced(self, multiples: IntArray) -> IntArray:
        """The least multiples that do the same."""
        return multiples

    def total(self, X: FloatArray, Z: FloatArray, columns: IntArray, nodes: IntArray) -> FloatArray:
        angles = [one[:, columns[nodes]] * self.units(len(columns))[nodes] for one in (X, Z)]
        left, right = (np.concatenate([np.cos(one), np.sin(one)], axis=1) for one in angles)
        return np.asarray(left @ right.T)

    def characters(self, rng: np.random.Generator, nodes: IntArray, calls: IntArray, width: int) -> Characters:
        multiples = self.reduced(self.drawn(rng, calls))
        values = multiples * self.units(width)[nodes]
        codes = np.stack([multiples, self.reduced(-multiples)], axis=1)
        return Characters(np.arange(len(nodes)), nodes[:, None], values[:, None], codes)


@dataclass(frozen=True, init=False)
class Angle(_Coded):
    """cos((x - z) / s), s = `lengthscale`, one number or one a column: x / s is an angle in radians (the circle,
    example 2). A real number from 0 to 1, say, becomes half a turn with lengthscale 1 / pi."""

    lengthscale: float | tuple[float, ...]
    kind = "angle"

    def __init__(
        self, lengthscale: float | Sequence[float] = 1.0, *, columns: Sequence[int] | int | None = None
    ) -> None:
        vars(self).update(columns=_columns("angle", columns), lengthscale=lengthscales(lengthscale))

    def lengthscales(self, width: int) -> FloatArray:
        return 1.0 / self.units(width)

    def with_lengthscales(self, lengthscale: FloatArray) -> "Angle":
        return Angle(_one_or_each(lengthscale), columns=self.columns)

    def units(self, width: int) -> FloatArray:
        scale = np.asarray(self.lengthscale)
        if scale.ndim and len(scale) != width:
            raise InputError(f"inputs: angle has {len(scale)} length-scales for {width} columns; give one, or one each")
        return np.broadcast_to(1.0 / scale, (width,))

    @property
    def differentiable(self) -> bool:
        return True

    def slopes(self, X: FloatArray, Z: FloatArray, nodes: IntArray) -> tuple[FloatArray, FloatArray]:
        width, unit = X.shape[1], self.units(X.shape[1])
        angles, times = (X[:, None] - Z) * unit, np.bincount(nodes, minlength=width)
        second = np.zeros((*angles.shape, width))
        second[..., range(width), range(width)] = -np.cos(angles) * unit**2 * times
        return -np.sin(angles) * unit * times, second

    def second_moments(self, width: int) -> FloatArray:
        return self.units(width) ** 2

    def drawn(self, rng: np.random.Generator, calls: IntArray) -> IntArray:
        return 2 * rng.binomial(calls, 0.5) - calls

    def config(self) -> Config:
        scale = self.lengthscale
        return _config(self, lengthscale=list(scale) if isinstance(scale, tuple) else scale)


@dataclass(frozen=True, init=False)
class Sign(_Coded):
    """x z for columns of -1 and 1 (example 1), as cos((x - z) pi / 2)."""

    kind = "sign"
    coded = True

    def __init__(self, *, columns: Sequence[int] | int | None = None) -> None:
        vars(self).update(columns=_columns("sign", columns))

    def units(self, width: int) -> FloatArray:
        return np.full(width, math.pi / 2)

    def drawn(self, rng: np.random.Generator, calls: IntArray) -> IntArray:
        return calls

    def check_rows(self, X: FloatArray) -> None:
        odd = X[np.isfinite(X) & (np.abs(X) != 1)]
        if odd.size:
            raise InputError(f"inputs: columns of sign must be -1 or 1, but have {odd[0]:g}; use category for others")

    def reduced(self, multiples: IntArray) -> IntArray:
        return multiples % 2

    def config(self) -> Config:
        return _config(self)


@dataclass(frozen=True, init=False)
class Category(_Coded):
    """1 where x = z, else 0, for columns of whole numbers of which `values` in a row differ, such as 0 to values - 1
    (example 4, with exp(2 pi i omega x / n) in place of what is printed)."""

    values: int
    kind = "category"
    coded = True

    def __init__(self, values: int, *, columns: Sequence[int] | int | None = None) -> None:
        count = whole("category: values", values, 2, 10**6)
        vars(self).update(columns=_columns("category", columns), values=count)

    def units(self, width: int) -> FloatArray:
        return np.full(width, 2 * math.pi / self.values)

    def total(self, X: FloatArray, Z: FloatArray, columns: IntArray, nodes: IntArray) -> FloatArray:
        equal = np.zeros((len(X), len(Z)))
        for column in columns[nodes]:
            turns = (X[:, column, None] - Z[:, column]) / self.values
            equal += np.abs(turns - np.rint(turns)) < 0.25 / self.values  # rows that are centred are not whole
        return equal

    def drawn(self, rng: np.random.Generator, calls: IntArray) -> IntArray:
        return rng.integers(self.values, size=len(calls))  # of a sum of uniform ones too

    def check_rows(self, X: FloatArray) -> None:
        there = np.isfinite(X)
        fraction = X[there & (np.floor(X) != X)]
        reach = np.max(X, axis=0, where=there, initial=-np.inf) - np.min(X, axis=0, where=there, initial=np.inf)
        if fraction.size:
            raise InputError(f"inputs: columns of category must be whole numbers, but have {fraction[0]:g}")
        if np.any(reach >= self.values):
            problem = f"a column of category has numbers that are {reach.max():g} apart, for values: {self.values}"
            raise InputError(f"inputs: {problem}; raise it above that")

    def reduced(self, multiples: IntArray) -> IntArray:
        least = (self.values - 1) // 2
        return (multiples + least) % self.values - least

    def config(self) -> Config:
        return _config(self, values=self.values)


@dataclass(frozen=True, init=False)
class ColumnBlock(BaseSpace):
    """One input node for all its columns, with a shift-invariant `scalar` kernel, such as a Gaussian (example 3)."""

    scalar: Spectral
    kind = "block"

    def __init__(self, scalar: Spectral | Mapping[str, Any], *, columns: Sequence[int] | int | None = None) -> None:
        kernel: object = scalar_from_config(scalar) if isinstance(scalar, Mapping) else scalar
        if not isinstance(kernel, Spectral) or kernel.sampler:
            raise InputError(f"inputs: block needs a shift-invariant scalar kernel, such as gaussian, not {kernel!r}")
        vars(self).update(columns=_columns("block", columns), scalar=kernel)

    def nodes(self, width: int) -> int:
        self.scalar.check(width)
        return 1

    def total(self, X: FloatArray, Z: FloatArray, columns: IntArray, nodes: IntArray) -> FloatArray:
        return len(nodes) * self.scalar.gram(X[:, columns], Z[:, columns])

    def lengthscales(self, width: int) -> FloatArray | None:
        return 1.0 / self.scalar.stretch(width) if isinstance(self.scalar, Stretched) else None

    def with_lengthscales(self, lengthscale: FloatArray) -> "ColumnBlock":
        if not isinstance(self.scalar, Stretched):
            return self
        config = {**self.scalar.config(), "lengthscale": _one_or_each(lengthscale)}
        return ColumnBlock(config, columns=self.columns)

    @property
    def differentiable(self) -> bool:
        return isinstance(self.scalar, Gaussian)

    def slopes(self, X: FloatArray, Z: FloatArray, nodes: IntArray) -> tuple[FloatArray, FloatArray]:
        away = (Z - X[:, None]) * self.second_moments(X.shape[1])
        return away * self.total(X, Z, np.arange(X.shape[1]), nodes)[..., None], len(nodes) * self.scalar.hessian(X, Z)

    def second_moments(self, width: int) -> FloatArray:
        return self.scalar.second_moments(width)

    def characters(self, rng: np.random.Generator, nodes: IntArray, calls: IntArray, width: int) -> Characters:
        if isinstance(self.scalar, Gaussian):
            values = self._draw(rng, len(nodes), width) * np.sqrt(calls)[:, None]
        else:
            values = np.add.reduceat(self._draw(rng, int(calls.sum()), width), np.cumsum(calls) - calls)
        codes = np.repeat(rng.integers(2**63, size=len(nodes))[:, None], 2, axis=1)  # no two are equal
        return Characters(np.arange(len(nodes)), np.broadcast_to(np.arange(width), values.shape), values, codes)

    def _draw(self, rng: np.random.Generator, count: int, width: int) -> FloatArray:
        return self.scalar.draw(rng, count, width, Measure.UNBOUNDED)

    def config(self) -> Config:
        return _config(self, scalar=self.scalar.config())


@dataclass(frozen=True, init=False)
class Sphere(BaseSpace):
    """x . z / (|x| |z|): one input node for all its d columns, divided by their length; 0 where x or z is 0. Its
    features are sqrt(d / 2) (x_j + i x_(j+1)) or its conjugate, j at random, x_(d+1) = x_1 (example 5, `scheme`
    "pairs"), whose size sqrt(d / 2) at most is the least there is (theorem 6). Those of example 6, whose sines are 0:
    sqrt(d) x_j ("coordinates"), or sqrt(d) w . x with w uniform on the sphere ("directions"). The w of one draw are of
    one orthonormal basis, each as likely, in place of independent ones: given the basis it is unbiased, and equal
    features can be merged."""

    scheme: str
    kind = "sphere"
    coded = True

    def __init__(self, scheme: str = "pairs", *, columns: Sequence[int] | int | None = None) -> None:
        if scheme not in get_args(Scheme):
            raise InputError(f"inputs: the scheme of sphere is pairs, coordinates or directions, not {scheme!r}")
        vars(self).update(columns=_columns("sphere", columns), scheme=scheme)

    def nodes(self, width: int) -> int:
        return 1

    def total(self, X: FloatArray, Z: FloatArray, columns: IntArray, nodes: IntArray) -> FloatArray:
        left, right = (_of_length_1(_of_length_1(one[:, columns], np.inf), 2) for one in (X, Z))  # squares may overflow
        return np.asarray(len(nodes) * (left @ right.T))

    def forms(self, rng: np.random.Generator, width: int) -> Forms:
        columns = np.arange(width)
        if self.scheme == "directions":
            basis, triangle = np.linalg.qr(rng.standard_normal((width, width)))
            basis *= np.sign(np.diag(triangle))
            return Forms(np.broadcast_to(columns, basis.shape), basis.T)
        return Forms(columns[:, None], np.ones((width, 1)), np.roll(columns, -1) if self.scheme == "pairs" else None)

    def forms_cost(self, width: int) -> int:
        return width * (width if self.scheme == "directions" else 2)

    def factors(self, width: int) -> int:
        return width

    def largest(self, width: int) -> float:
        return max(1.0, width / 2) if self.scheme == "pairs" else float(width)

    def characters(self, rng: np.random.Generator, nodes: IntArray, calls: IntArray, width: int) -> Characters:
        call, which, times = dealt(rng, np.arange(len(nodes)), calls, 2 * width)
        form, sign = which % width, np.where(which < width, 1, -1)
        other = np.where(which < width, which + width, form) if self.scheme == "pairs" else form
        first = which if self.scheme == "pairs" else form
        return Characters(call, form[:, None], (1.0 * sign * times)[:, None], np.stack([first, other], 1) + 1, times)

    def config(self) -> Config:
        return _config(self, scheme=self.scheme)


def described(what: str, kind: Callable[..., K], options: Any) -> K:
    """What a mapping of options describes; InputError where it does not."""
    keys = {key: one.default is one.empty for key, one in signature(kind).parameters.items()}
    if not isinstance(options, Mapping):
        raise InputError(f"{what} must be a mapping of {', '.join(keys)}, not {options!r}")
    odd = [key for key in options if key not in keys] + [key for key in keys if keys[key] and key not in options]
    if odd:
        problem = "is not known" if odd[0] in options else "is missing"
        raise InputError(f"{what}: {odd[0]} {problem}, in {options!r}; it takes {', '.join(keys)}")
    return kind(**options)


def space_of(value: BaseSpace | str | Mapping[str, Any]) -> BaseSpace:
    """The base space that `value` is, names or describes as `config` does; InputError for anything else."""
    if isinstance(value, BaseSpace):
        return value
    options = {"type": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    entry = SPACES.get(options.pop("type", None))
    if entry is None:
        words = ", ".join(SPACES.names)
        raise InputError(f"inputs: a base space is one of {words}, or a mapping with one as its type, not {value!r}")
    space = described(f"inputs: {entry.name}", entry.build, options)
    if not isinstance(space, BaseSpace):
        raise InputError(f"inputs: {entry.name} of another package builds no BaseSpace")
    return space


def spaces_of(value: Any) -> tuple[BaseSpace, ...]:
    """The base spaces of one or several; InputError where several have no columns."""
    spaces = tuple(map(space_of, value if isinstance(value, list | tuple) else [value]))
    if not spaces:
        raise InputError("inputs: an empty list; add a base space, such as angle")
    if len(spaces) > 1 and any(one.columns is None for one in spaces):
        raise InputError("inputs: of several spaces each needs its columns; add them")
    return spaces


def _columns(kind: str, columns: Sequence[int] | int | None) -> tuple[int, ...] | None:
    if columns is None or (isinstance(columns, list | tuple) and not columns):
        return None
    listed = list(columns) if isinstance(columns, Iterable) else [columns]
    if len(set(listed)) < len(listed):
        raise InputError(f"inputs: columns of {kind} must be whole numbers, each once, not {columns!r}")
    return tuple(whole(f"inputs: a column of {kind}", column, 0) for column in listed)


def _config(space: BaseSpace, **options: Any) -> Config:
    columns = {} if space.columns is None else {"columns": list(space.columns)}
    return {"type": space.kind, **options, **columns}


def _one_or_each(lengthscale: FloatArray) -> float | list[float]:
    lengthscales = [float(length) for length in lengthscale]
    return lengthscales[0] if len(lengthscales) == 1 else lengthscales


def _of_length_1(X: FloatArray, norm: float) -> FloatArray:
    """Rows divided by their norm; those of zeros as they are."""
    length = np.linalg.norm(X, norm, axis=1)
    return np.asarray(X / np.where(length == 0, 1.0, length)[:, None])
