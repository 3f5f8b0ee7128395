"""Losses: what a row's targets make of the model's values there; their slopes, curvatures and duals; their words.

A loss is a convex function L(y, f) of a row's values f (c,). Losses with a kink have a smooth one of a `width` beside
them (Nesterov 2005, section 4): L = max over u of u t - L*(u) becomes max of u t - L*(u) - width u^2 / 2, which is
below L by width u^2 / 2 at most and whose slope is that u. By Fenchel and Young any such u bounds the least objective
from below, which gives a duality gap without another pass (`solvers.minimise`).

Targets are in scaled units, as the fit has them; one-hot rows of classes stay ones and zeros."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.model.outcomes import LARGEST, elementwise_std, lognormal_std, sigmoid_std
from dorff.spec.checks import option
from dorff.spec.part import EpsilonSpec, HuberSpec, Part, QuantilesSpec
from dorff.spec.registry import LOSSES, Entry, lazily

FloatArray = npt.NDArray[np.float64]
expit = lazily("scipy.special", "expit")
xlogy = lazily("scipy.special", "xlogy")
log_softmax = lazily("scipy.special", "log_softmax")
ndtri = lazily("scipy.special", "ndtri")

STEEPEST: Final = 30.0  # log rates above it go on as a parabola: exp of more has no use, and overflows
MOST_COUNT: Final = 1e13  # its rate is below exp(STEEPEST)


class Terms(NamedTuple):
    """Of rows' values (n, c), each (n, c): the loss, the smooth one beside it, its slope and its curvature."""

    value: FloatArray
    smooth: FloatArray
    slope: FloatArray
    curvature: FloatArray


class Loss(ABC):
    """`takes` says which targets: "numbers", "counts" (whole or not, none below 0), "classes" (one-hot rows), "labels"
    (those, or numbers 0 and 1). `kinked` losses need a width. `coupled`: a row's values hang together, and `curvature`
    is the diagonal alone. `likelihood`: exp(-L) is a density of the targets up to a constant, whose posterior Laplace's
    approximation is of; one that is coupled has to say its `combinations` and `curvatures`. `centred`: values sum to 0,
    the intercept's too."""

    kind: ClassVar[str]  #: its word in a job
    takes: ClassVar[str] = "numbers"
    kinked: ClassVar[bool] = False
    coupled: ClassVar[bool] = False
    likelihood: ClassVar[bool] = False
    centred: ClassVar[bool] = False
    link: ClassVar[str] = ""  #: what f is of the targets, where it is not what is predicted
    wants: ClassVar[str] = ""  #: what targets that are numbers have to be, where not all will do

    @abstractmethod
    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        """At values f and targets y, (n, c) each; y as `spread` has them."""

    def product(self, f: FloatArray, y: FloatArray, v: FloatArray, width: float = 0.0) -> FloatArray:
        """(n, c): the second derivative at f, of the smooth loss, times directions v (n, c)."""
        return self.terms(f, y, width).curvature * v

    def combinations(self, c: int) -> FloatArray:
        """Return D (e, c), for which a row's second derivative is D^T diag(`curvatures`) D."""
        return np.eye(c)

    def curvatures(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> FloatArray:
        """Return the second derivatives (n, e) of the smooth loss along the `combinations`, none of them below 0."""
        return self.terms(f, y, width).curvature

    def bad(self, y: FloatArray) -> npt.NDArray[np.bool_]:
        """Where targets y (n, q) are not what it `wants`; those missing (NaN) are no fault."""
        return np.zeros(y.shape, dtype=bool)

    def check(self, y: FloatArray, argument: str, place: str, rows: npt.ArrayLike, columns: Sequence[Any]) -> None:
        """InputError where a target is not what is wanted, by the numbers of its row and the name of its column."""
        if self.wants and (bad := self.bad(y)).any():
            row, column = np.argwhere(bad)[0]
            came = f"{place}row {np.asarray(rows)[row]}, column {columns[column]} has {y[row, column]:g}"
            raise InputError(f"{argument}: {self.kind} is for {self.wants}, but {came}; mend it, or take another loss")

    @property
    def levels(self) -> int:
        """How many values a target has."""
        return 1

    @property
    def root(self) -> FloatArray:
        """B (levels, levels): values of a target are coupled by B^T B."""
        return np.eye(self.levels)

    def spread(self, y: FloatArray) -> FloatArray:
        """Targets (n, q) as values have them, (n, q levels): those of the first target first."""
        return np.repeat(y, self.levels, axis=1) if self.levels > 1 else y

    def start(self, f: FloatArray) -> FloatArray:
        """From values (..., c) of least squares to ones where this loss is low, by an affine map."""
        return f

    def offsets(self, deviation: FloatArray) -> FloatArray:
        """(q levels,): what is added to least squares' values, for residuals of these deviations (q,)."""
        return np.zeros(len(deviation) * self.levels)

    def outcome(self, f: FloatArray) -> FloatArray:
        """What values (n, c) predict of the targets."""
        return f

    def outcome_std(self, f: FloatArray, variance: FloatArray) -> FloatArray:
        """Return the standard deviations (n, c) of `outcome` where f is normal with these variances (n, c).

        For losses whose values do not hang together.
        """
        return elementwise_std(self.outcome, f, variance)

    def probabilities(self, f: FloatArray) -> FloatArray:
        """(n, K): of classes, by their values f (n, K) and a loss that is a likelihood; each against all others, over
        their sum."""
        p = np.maximum(self.outcome(f), np.finfo(np.float64).tiny)
        return np.asarray(p / p.sum(axis=1, keepdims=True))

    def log_probabilities(self, f: FloatArray) -> FloatArray:
        """Their logarithms, finite where they underflow."""
        return np.log(np.maximum(self.probabilities(f), np.finfo(np.float64).tiny))

    def config(self) -> Any:
        """As a job says it: a word, or a mapping with the word as a key."""
        return self.kind


@dataclass(frozen=True)
class Squared(Loss):
    """(y - f)^2, without a half, as all of dorff has it."""

    kind = "squared"

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        r = f - y
        return Terms(r**2, r**2, 2.0 * r, np.full_like(r, 2.0))


@dataclass(frozen=True)
class Huber(Loss):
    """r^2 for residuals r within `delta`, else 2 delta |r| - delta^2 (Huber 1964, twice his, as the square is)."""

    kind = "huber"
    delta: float = 1.35

    def __post_init__(self) -> None:
        option("huber", self.delta)

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        r = f - y
        u = np.clip(r, -self.delta, self.delta)
        value = u * (2.0 * r - u)
        return Terms(value, value, 2.0 * u, np.where(np.abs(r) < self.delta, 2.0, 0.0))

    def config(self) -> Any:
        return {self.kind: self.delta}


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    """max(0, |y - f| - epsilon) (Vapnik 1995)."""

    kind = "epsilon_insensitive"
    kinked = True
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        option("epsilon_insensitive", self.epsilon)

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        r = f - y
        beyond = np.abs(r) - self.epsilon
        u, inside = _clipped(beyond, width, 0.0, 1.0)
        return _kinked(np.maximum(beyond, 0.0), beyond, u, inside, width, np.sign(r))

    def config(self) -> Any:
        return {self.kind: self.epsilon}


@dataclass(frozen=True)
class Quantiles(Loss):
    """Several quantiles of each target at once, by the pinball loss max(tau r, (tau - 1) r) of r = y - f (Koenker &
    Bassett 1978). Those of a target are coupled by exp(-coupling (tau_i - tau_j)^2) (Sangnier, Fercoq & d'Alche-Buc
    2016, section 2.2): at 0 they are one function and constants apart, which never cross; the larger the freer."""

    kind = "quantiles"
    kinked = True
    quantiles: tuple[float, ...] = (0.5,)
    coupling: float = 1.0

    def __post_init__(self) -> None:
        given = self.quantiles
        if not given or not all(0.0 < one < 1.0 for one in given) or list(given) != sorted(set(given)):
            raise InputError(f"quantiles: wanted numbers between 0 and 1, in order, each once; got {list(given)}")
        option("coupling", self.coupling, zero=True)

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        tau = np.tile(self.quantiles, f.shape[1] // self.levels)
        r = y - f
        u, inside = _clipped(r, width, tau - 1.0, tau)
        return _kinked(np.maximum(tau * r, (tau - 1.0) * r), r, u, inside, width, -1.0)

    @property
    def levels(self) -> int:
        return len(self.quantiles)

    @property
    def root(self) -> FloatArray:
        gaps = np.subtract.outer(self.quantiles, self.quantiles)
        values, vectors = np.linalg.eigh(np.exp(-self.coupling * gaps**2))
        some = values > len(values) * np.finfo(np.float64).eps * values[-1]
        return np.asarray((vectors[:, some] * np.sqrt(values[some])).T)

    def offsets(self, deviation: FloatArray) -> FloatArray:
        return np.asarray(np.outer(deviation, ndtri(np.array(self.quantiles))).ravel())

    def config(self) -> Any:
        return {self.kind: list(self.quantiles), "coupling": self.coupling}


@dataclass(frozen=True)
class Poisson(Loss):
    """exp(f) - y f - y + y log y of counts y with log rates f: half the deviance."""

    kind = "poisson"
    takes = "counts"
    likelihood = True
    link = "log rate"
    wants = f"counts from 0 to {MOST_COUNT:g}"

    def bad(self, y: FloatArray) -> npt.NDArray[np.bool_]:
        return np.asarray((y < 0) | (y > MOST_COUNT))

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        beyond = np.maximum(f - STEEPEST, 0.0)
        rate = np.exp(np.minimum(f, STEEPEST))
        value = rate * (1.0 + beyond + beyond**2 / 2.0) - y * f - y + xlogy(y, y)
        return Terms(value, value, rate * (1.0 + beyond) - y, rate)

    def start(self, f: FloatArray) -> FloatArray:
        return np.zeros_like(f)  # its constant is the logarithm of the mean (`solvers.minimise`)

    def outcome(self, f: FloatArray) -> FloatArray:
        return np.asarray(np.exp(np.minimum(f, LARGEST)))

    def outcome_std(self, f: FloatArray, variance: FloatArray) -> FloatArray:
        return lognormal_std(f, variance)


class _OfLabels(Loss):
    """Of classes, each output for itself; or of numbers that are 0 and 1."""

    takes = "labels"
    wants = "classes, or targets of 0 and 1"

    def bad(self, y: FloatArray) -> npt.NDArray[np.bool_]:
        return np.asarray(~np.isin(y, (0.0, 1.0)) & ~np.isnan(y))


@dataclass(frozen=True)
class Logistic(_OfLabels):
    """log(1 + exp(-s f)) of each output for itself, s = 2 y - 1: of classes, each against all others."""

    kind = "logistic"
    likelihood = True
    link = "log odds"

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        s = 2.0 * y - 1.0
        value, p = np.logaddexp(0.0, -s * f), expit(-s * f)
        return Terms(value, value, -s * p, p * (1.0 - p))

    def start(self, f: FloatArray) -> FloatArray:
        return 4.0 * f - 2.0

    def outcome(self, f: FloatArray) -> FloatArray:
        return np.asarray(expit(f))

    def outcome_std(self, f: FloatArray, variance: FloatArray) -> FloatArray:
        return sigmoid_std(f, variance)


@dataclass(frozen=True)
class Multinomial(Loss):
    """-log softmax(f)_k of the row's class k."""

    kind = "multinomial"
    takes = "classes"
    coupled = True
    likelihood = True

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        logs = log_softmax(f, axis=1)
        value, p = -logs * y, np.exp(logs)
        return Terms(value, value, p - y, p * (1.0 - p))

    def product(self, f: FloatArray, y: FloatArray, v: FloatArray, width: float = 0.0) -> FloatArray:
        p = np.exp(log_softmax(f, axis=1))
        return np.asarray(p * (v - np.sum(p * v, axis=1, keepdims=True)))

    def combinations(self, c: int) -> FloatArray:
        """Return the differences of classes, for diag(p) - p p^T = sum_(j<k) p_j p_k (e_j - e_k) (e_j - e_k)^T."""
        first, second = np.triu_indices(c, 1)
        units = np.eye(c)
        return np.asarray(units[first] - units[second])

    def curvatures(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> FloatArray:
        p = np.exp(log_softmax(f, axis=1))
        first, second = np.triu_indices(f.shape[1], 1)
        return np.asarray(p[:, first] * p[:, second])

    def start(self, f: FloatArray) -> FloatArray:
        return np.asarray(4.0 * (f - 1.0 / f.shape[-1]))

    def outcome(self, f: FloatArray) -> FloatArray:
        return np.asarray(np.exp(log_softmax(f, axis=1)))


@dataclass(frozen=True)
class Hinge(_OfLabels):
    """max(0, 1 - s f) of each output for itself, s = 2 y - 1."""

    kind = "hinge"
    kinked = True

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        s = 2.0 * y - 1.0
        short = 1.0 - s * f
        u, inside = _clipped(short, width, 0.0, 1.0)
        return _kinked(np.maximum(short, 0.0), short, u, inside, width, -s)

    def start(self, f: FloatArray) -> FloatArray:
        return 2.0 * f - 1.0


@dataclass(frozen=True)
class SquaredHinge(_OfLabels):
    """max(0, 1 - s f)^2 of each output for itself, s = 2 y - 1."""

    kind = "squared_hinge"

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        s = 2.0 * y - 1.0
        short = np.maximum(1.0 - s * f, 0.0)
        return Terms(short**2, short**2, -2.0 * s * short, np.where(short > 0, 2.0, 0.0))

    def start(self, f: FloatArray) -> FloatArray:
        return 2.0 * f - 1.0


@dataclass(frozen=True)
class SimplexHinge(Loss):
    """sum over k other than the row's class of max(0, 1 / (K - 1) + f_k), of values f_k = <s_k, g> along the codes s_k
    of K classes (Mroueh, Poggio, Rosasco & Slotine 2012, the simplex-cone SVM; Minh, Bazzani & Murino 2016):
    the output matrix is `simplex`."""

    kind = "simplex"
    takes = "classes"
    kinked = True
    centred = True

    def terms(self, f: FloatArray, y: FloatArray, width: float = 0.0) -> Terms:
        over = 1.0 / (f.shape[1] - 1) + f
        u, inside = _clipped(over, width, 0.0, 1.0)
        others = 1.0 - y
        terms = _kinked(np.maximum(over, 0.0), over, u, inside, width, 1.0)
        return Terms(*(others * one for one in terms))

    def start(self, f: FloatArray) -> FloatArray:
        K = f.shape[-1]
        return np.asarray((f - 1.0 / K) * K / (K - 1))


def _clipped(t: FloatArray, width: float, low: Any, high: Any) -> tuple[FloatArray, FloatArray]:
    """The u between `low` and `high` that is best of u t - width u^2 / 2, and whether it is between them."""
    if width == 0.0:
        return np.where(t > 0, high, np.where(t < 0, low, np.clip(0.0, low, high))), np.zeros_like(t)
    u = np.clip(t / width, low, high)
    return u, ((t > width * low) & (t < width * high)).astype(np.float64)


def _kinked(value: FloatArray, t: FloatArray, u: FloatArray, inside: FloatArray, width: float, sign: Any) -> Terms:
    """Of a loss that is the largest of u t, with t of slope `sign` by f."""
    smooth = u * t - 0.5 * width * u**2 if width > 0 else value
    return Terms(value, smooth, sign * u, inside / width if width > 0 else inside)


def _epsilon(epsilon_insensitive: float = 0.1) -> EpsilonInsensitive:
    return EpsilonInsensitive(epsilon_insensitive)


def _quantiles(quantiles: Any, coupling: Any = 1.0) -> Quantiles:
    given: list[Any] = list(quantiles) if isinstance(quantiles, list | tuple | np.ndarray) else [None]
    if not all(isinstance(one, float | int | np.floating) and 0 < one < 1 for one in given):
        raise InputError(f"quantiles: wanted a list of numbers between 0 and 1, got {quantiles!r}")
    return Quantiles(tuple(map(float, given)), coupling)


LOSSES.add(
    Entry("squared", Squared, Part),
    Entry("huber", lambda huber=1.35: Huber(huber), HuberSpec, source="Huber 1964", written="{huber: 1.35}"),
    Entry("epsilon_insensitive", _epsilon, EpsilonSpec, source="Vapnik 1995", written="{epsilon_insensitive: 0.1}"),
    Entry(
        "quantiles", _quantiles, QuantilesSpec, source="Sangnier et al. 2016", written="{quantiles: [0.1, 0.5, 0.9]}"
    ),
    Entry("poisson", Poisson, Part),
    Entry("logistic", Logistic, Part),
    Entry("multinomial", Multinomial, Part),
    Entry("hinge", Hinge, Part, source="Cortes & Vapnik 1995"),
    Entry("squared_hinge", SquaredHinge, Part),
    Entry("simplex", SimplexHinge, Part, source="Mroueh et al. 2012"),
)


def as_loss(value: Any) -> Loss:
    """A loss itself, or as a job writes it: a word, or a mapping with the word as a key; InputError otherwise."""
    if isinstance(value, Loss):
        return value
    options = dict(value) if isinstance(value, Mapping) else {}
    named = map(LOSSES.get, options or ([value] if isinstance(value, str) else []))
    entry = next((one for one in named if one is not None and (one.written or not options)), None)
    if entry is None or (not options and not entry.alone) or set(options) - set(entry.options.model_fields):
        names = ", ".join(one.name if one.alone else one.written for one in LOSSES.entries())
        raise InputError(f"loss must be one of {names}, or a Loss; not {value!r}")
    if not isinstance(loss := entry.build(**options), Loss):
        raise InputError(f"loss: {entry.name} of another package builds no Loss")
    return loss
