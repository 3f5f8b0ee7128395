"""From a kernel and a sampler to a feature map: columns, costs, the draw; and maps as JSON and arrays, and back."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dorff import frequencies
from dorff.errors import InputError
from dorff.features.base import FeatureMap, ScalarMap, numbers
from dorff.features.expansions import Eigenfunctions, Maclaurin, Monomials, monomial_count, series
from dorff.features.landmarks import LandmarkFeatures
from dorff.features.projected import Law, Projected, layout
from dorff.frequencies import (
    IID,
    Arrays,
    Cost,
    Landmarks,
    Lattice,
    Modes,
    Orthogonal,
    Sampler,
    default_sampler,
    transform_from,
)
from dorff.frequencies.aliasing import LatticeBox
from dorff.frequencies.landmarks import MAX_ROWS
from dorff.frequencies.lattice import check_periods
from dorff.kernels import (
    Decomposable,
    GaussianWeighted,
    Mercer,
    MultiView,
    OperatorKernel,
    Polynomial,
    Spectral,
    scalar_from_config,
)
from dorff.kernels.scalar import BoolArray, FloatArray, ScalarKernel, whole
from dorff.spec.registry import Config


@dataclass(frozen=True, eq=False)
class Drawn:
    """A feature map, its frequencies' log density (D,) if any, and which terms (T, D) each serves: None for all."""

    phi: ScalarMap
    log_density: FloatArray | None
    serves: BoolArray | None = None

    @property
    def density(self) -> Law | None:
        """omega (D, d) and its law, for kernels whose weights psi depend on the frequency."""
        if self.log_density is None or not isinstance(self.phi, Projected):
            return None
        return self.phi.law_omega, self.log_density, self.serves


def sampler_of(config: Config | None, kernel: OperatorKernel) -> Sampler:
    """The sampler that a description says; where there is none, the kernel's own (`frequencies.default_sampler`)."""
    return default_sampler(kernel) if config is None else frequencies.from_config(config)


@dataclass(frozen=True, eq=False)
class Recipe:
    """Features of at most `n_features` columns of a kernel for d inputs and p outputs, not drawn yet. A free
    `intercept` takes the place of a rule's centre and phi's constant. `points` (m, d) are landmarks, scaled, once rows
    are seen (`among`). InputError for what cannot be drawn."""

    kernel: OperatorKernel
    sampler: Sampler
    d: int
    p: int
    n_features: int
    intercept: bool = True
    points: FloatArray | None = None

    def __post_init__(self) -> None:
        count = self.n_features
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise InputError(f"n_features must be a whole number, not {count!r}")
        if not isinstance(self.sampler, Sampler):
            raise InputError(f"sampler must be one of dorff.frequencies, such as IID(), not {self.sampler!r}")
        if self.landmarks is not None:
            self._check_landmarks()
        if not self._own or self.landmarks is not None:
            self.sampler.check(self.kernel, self.d, self.p)
        if not self._own and self._count < 1:
            least = f"{self._each + self._beside} or more"
            remedy = "raise it"
            if self.linear:
                least += f", {self.d} of them for phi's linear part"
                remedy += ", or use sampler iid or orthogonal"
            raise InputError(f"n_features is {self.n_features}, but this kernel and sampler need {least}; {remedy}")
        if self.m > self.n_features or self.m < 1:
            raise InputError(f"n_features is {self.n_features}, but this kernel and sampler need more; raise it")
        degrees = np.count_nonzero(series(self.scalar)) if isinstance(self.scalar, Polynomial) else 0
        if self.m < degrees:
            needs = f"this polynomial needs a column for each of its {degrees} degrees"
            raise InputError(f"n_features is {self.n_features}, but {needs}; raise it")
        if not self._own and self._centre_column and len(self.sampler.laws(self.kernel, self.d, self.p)) > 1:
            problem = "sampler: this rule has a weight at omega = 0 for each of the kernel's spectra"
            raise InputError(f"{problem}, which only an intercept can take; fit one, or use iid, orthogonal or qmc")
        if self._own and self.landmarks is None and not isinstance(self.sampler, IID | Orthogonal):
            problem = f"a {type(self.scalar).__name__} kernel brings features of its own and has no frequencies"
            raise InputError(f"sampler: {problem}; leave the sampler out")

    def _check_landmarks(self) -> None:
        """Raise InputError for a kernel that landmarks have no features of."""
        bases = [base for _, base in self.kernel.terms()]
        problem = "sampler: landmarks need a decomposable kernel of one scalar kernel, which depends on x - z"
        if isinstance(self.kernel, MultiView) or not all(isinstance(base, Decomposable) for base in bases):
            raise InputError(f"{problem}; use lattice, iid or orthogonal for vector fields and several views")
        if self.kernel.concatenated or len({base.scalar for base in bases}) > 1:
            raise InputError(f"{problem}; this sum has several: use iid or orthogonal")
        if not isinstance(self.scalar, Spectral):
            raise InputError(f"{problem}, which {type(self.scalar).__name__} does not; leave the sampler out")
        if self.n_features > MAX_ROWS:
            problem = f"n_features is {self.n_features}, but landmarks are chosen among {MAX_ROWS} rows"
            raise InputError(f"{problem}; lower it, or use iid or orthogonal")

    @classmethod
    def of(cls, kernel: ScalarKernel, sampler: Sampler, *, d: int, n_features: int, intercept: bool = True) -> Self:
        """For a scalar kernel."""
        if not isinstance(kernel, ScalarKernel):
            raise InputError(f"kernel must be a scalar one, such as Gaussian(1.0), not {kernel!r}")
        whole("d, the number of inputs,", d)
        return cls(Decomposable(kernel).fix(d, 1), sampler, d, 1, n_features, intercept)

    @property
    def on_lattice(self) -> bool:
        """Whether frequencies are those of a lattice, whose box and size the rows tell."""
        return isinstance(self.sampler, Lattice)

    @property
    def landmarks(self) -> Landmarks | None:
        """The sampler where features are kernel values at rows of the data."""
        return self.sampler if isinstance(self.sampler, Landmarks) else None

    def among(self, X: FloatArray, seed: int) -> Self:
        """Return the same with landmarks chosen among scaled rows X (n, d); others do not see them."""
        if self.landmarks is None:
            return self
        return replace(self, points=self.landmarks.choose(self.scalar, X, self.n_features, seed))

    def over(self, box: FloatArray) -> Self:
        """The same for inputs in a box (2, d), as they are scaled: of a lattice; others do not see it."""
        if not isinstance(self.sampler, Lattice):
            return self
        return replace(self, sampler=self.sampler.over(np.ptp(box, axis=0), constant=not self.intercept))

    def on(self, lattice: Modes) -> Self:
        """The same with frequencies of a given lattice; InputError where it does not serve the kernel."""
        assert isinstance(self.sampler, Lattice)
        return replace(self, sampler=self.sampler.on(lattice))

    def further(self, n_features: int) -> Self:
        """As many frequencies of a lattice in the same box as its error needs, and a number of features allows."""
        assert isinstance(self.sampler, Lattice)
        return replace(self, sampler=replace(self.sampler, grid=None), n_features=n_features)

    @property
    def lattice(self) -> Modes | None:
        """The frequencies of a lattice, where its box is known."""
        if not isinstance(self.sampler, Lattice) or self.sampler.sides is None:
            return None
        return self.sampler.modes(self.kernel, self.d, self.p, self._count)

    @property
    def lattice_box(self) -> LatticeBox:
        """Of a lattice in a known box, this and the periods with which the kernel's frequencies continue it."""
        assert isinstance(self.sampler, Lattice)
        return self.sampler.box_of(self.kernel, self.d, self.p, self._count)

    @property
    def cut(self) -> bool:
        """Whether a lattice may need more features than there are."""
        return self.lattice is not None and self.frequencies >= self._count

    @property
    def scalar(self) -> ScalarKernel:
        """The scalar kernel of the first term: the only one, unless all are shift-invariant."""
        return self.kernel.terms()[0][1].scalar

    @property
    def _own(self) -> int:
        """How many features there are that need no frequencies; 0 where they are those of frequencies."""
        if self.landmarks is not None:
            return self.n_features if self.points is None else len(self.points)
        if isinstance(self.scalar, Polynomial):
            return monomial_count(self.scalar, self.d)
        return len(self.scalar.eigenvalues) if isinstance(self.scalar, Mercer) else 0

    @property
    def _phi(self) -> GaussianWeighted | None:
        return self.scalar if isinstance(self.scalar, GaussianWeighted) else None

    @property
    def _centre_column(self) -> bool:
        phi, sampler = self._phi, self.sampler
        centred = sampler.centred and (phi is None or phi.centre != 0)
        split = phi.activation.split if phi is not None else None
        constant = sampler.reflected and split is not None and split.constant != 0
        # At omega = 0 curl-free and divergence-free kernels have nothing.
        roots = (base.root(np.zeros((1, self.d))) for _, base in self.kernel.terms())
        return not self.intercept and (constant or (centred and any(bool(np.any(root)) for root in roots)))

    @property
    def _each(self) -> int:
        """Columns for each frequency."""
        return layout(self._phi, self.sampler.reflected)[0]

    @property
    def linear(self) -> bool:
        """Whether the inputs are columns too."""
        return layout(self._phi, self.sampler.reflected)[1] != 0

    @property
    def _beside(self) -> int:
        """Columns that belong to no frequency."""
        return (self.d if self.linear else 0) + self._centre_column

    @property
    def _count(self) -> int:
        return (self.n_features - self._beside) // self._each

    @property
    def frequencies(self) -> int:
        """How many frequencies are drawn; none for explicit features."""
        return 0 if self._own else self._cost.frequencies

    @cached_property
    def _cost(self) -> Cost:
        return self.sampler.cost(self.kernel, d=self.d, p=self.p, count=self._count)

    @property
    def m(self) -> int:
        """Columns of F: n_features, or fewer where the rule needs another number."""
        return min(self._own, self.n_features) if self._own else self.frequencies * self._each + self._beside

    @property
    def seeded(self) -> bool:
        """Whether the draw depends on the seed."""
        if self.landmarks is not None:
            return True
        if self._own:
            return self.m < self._own
        several = self.sampler.sampled and len(self.sampler.laws(self.kernel, self.d, self.p)) > 1
        return several or self.sampler.seeded(self.d, self._count)

    @property
    def idle(self) -> dict[str, str]:
        """Why the sampler, or the seed, has no effect on the draw, where it has none."""
        if self.landmarks is not None:
            return {}
        own = "polynomial and Mercer kernels bring features of their own, without frequencies to draw"
        drawn = {} if self.seeded else {"seed": "nothing is drawn at random: every seed gives these features"}
        return drawn | ({"sampler": own} if self._own else {})

    @property
    def numbers(self) -> int:
        """Numbers of 8 bytes that the map holds and works with, besides F."""
        if self.landmarks is not None:
            return 2 * self.m**2 + self.m * (self.d + 3 * 256)
        if self._own:
            return self.m * (self.d + 256) * getattr(self.scalar, "degree", 1)
        return self._cost.numbers + 256 * (self.frequencies + self.d)

    @property
    def flops(self) -> float:
        """Operations of the map for one row, besides the activation."""
        if self.landmarks is not None:
            return float(self.m) * (self.m + 3 * self.d + 20)
        return 2.0 * self.m * self.d * getattr(self.scalar, "degree", 1) if self._own else self._cost.flops

    def question(self) -> Config:
        """All that the draw depends on besides the seed and the rows, as plain JSON."""
        if self.landmarks is not None:
            return {"scalar": self.scalar.config(), "m": self.n_features, "sampler": self.sampler.config()}
        if self._own:
            return {"scalar": self.scalar.config(), "m": self.m}
        laws = self.sampler.recipe(self.kernel, d=self.d, p=self.p, count=self._count)
        return {"laws": laws, "m": self.m, "sampler": self.sampler.config()}

    def draw(self, seed: int) -> Drawn:
        """The feature map; it depends on the recipe and the seed alone."""
        whole("seed", seed, 0)
        rng, scalar = np.random.default_rng(seed), self.scalar
        if self.landmarks is not None:
            assert self.points is not None
            return Drawn(LandmarkFeatures.of(scalar, self.points), None)
        if isinstance(scalar, Polynomial):
            exact = self.m == self._own
            return Drawn(Monomials.of(scalar, self.d) if exact else Maclaurin.of(scalar, self.d, self.m, rng), None)
        if isinstance(scalar, Mercer):
            return Drawn(Eigenfunctions.of(scalar, self.d, self.m, rng), None)
        drawn = self.sampler.draw(self.kernel, d=self.d, p=self.p, count=self._count, seed=seed)
        return Drawn(Projected.of(drawn, self._phi, centre_column=self._centre_column), drawn.log_density, drawn.serves)


def periods_of(sampler: Mapping[str, Any], d: int) -> FloatArray:
    """The period of each input (d,), in its own unit, by a sampler's `config`; infinite where it has none."""
    given = sampler.get("periods")
    check_periods(given, d)
    return np.array([one or np.inf for one in given or [None] * d], dtype=np.float64)


def period_box(box: FloatArray, periods: FloatArray) -> FloatArray:
    """The same box (2, d), from 0 to the period along inputs with `periods` (d,) that are finite."""
    return np.where(np.isfinite(periods), [np.zeros(len(periods)), periods], box)


def endless(box: FloatArray, periods: FloatArray) -> FloatArray:
    """The same box (2, d), without ends along these inputs: any row lies inside."""
    return np.where(np.isfinite(periods), [[-np.inf], [np.inf]], box)


def outside(box: FloatArray, X: FloatArray) -> BoolArray:
    """Which rows of X (n, d) have a number, one that is finite, outside of a box (2, d); (n,)."""
    return np.asarray(np.any(((box[0] > X) | (box[1] < X)) & np.isfinite(X), axis=1))


def folded(X: FloatArray, periods: FloatArray) -> FloatArray:
    """Inputs X (n, d), those with a period moved by whole periods to where they are from 0 to it."""
    return np.asarray(np.where(np.isfinite(periods), np.mod(X, np.where(np.isfinite(periods), periods, 1.0)), X))


def feature_arrays(features: FeatureMap) -> Arrays:
    return {**features.phi.arrays(), "center": features.center, "scale": features.scale}


def features_from(config: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> FeatureMap:
    """The map whose `phi.config()` and `feature_arrays` these are; InputError where they do not fit each other, or
    hold what is not finite. Either may come from anybody; no memory is taken but for what the arrays are read with."""
    try:
        features = FeatureMap(_scalar_map(config, arrays), arrays["center"], arrays["scale"])
        fit = features.phi.fits() and numbers((features.d,), features.center, features.scale)
        fit = fit and bool(np.all(features.scale > 0)) and features.m > 0
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"the feature map's arrays do not fit each other ({error})") from error
    if not fit:
        raise InputError("the feature map's arrays do not fit each other, or hold numbers that are not finite")
    return features


def _scalar_map(config: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> ScalarMap:
    kind = config["type"]
    if kind == "projected":
        phi = None if config["phi"] is None else scalar_from_config(config["phi"])
        if phi is not None and not isinstance(phi, GaussianWeighted):
            raise InputError(f"{config['phi']} has no activation")
        transform, weights = transform_from(config["transform"], arrays), arrays["feature_weights"]
        reflected, centre_column = config["reflected"] is True, config["centre_column"] is True
        return Projected(transform, weights, phi, reflected, float(config["centre"]), centre_column)
    if kind == "monomials":
        return Monomials(whole("d of a feature map", config["d"]), arrays["factors"], arrays["feature_weights"])
    if kind == "maclaurin":
        return Maclaurin(arrays["signs"], arrays["degrees"], arrays["feature_weights"])
    if kind == "landmarks":
        return LandmarkFeatures(scalar_from_config(config["kernel"]), arrays["landmarks"], arrays["whitening"])
    if kind == "eigenfunctions":
        kernel = scalar_from_config(config["kernel"])
        if not isinstance(kernel, Mercer):
            raise InputError(f"{config['kernel']} has no eigenfunctions")
        d = whole("d of a feature map", config["d"])
        return Eigenfunctions(kernel, d, arrays["indices"], arrays["feature_weights"])
    raise InputError(f"feature map {kind!r} is not known; it is of a newer version of dorff")
