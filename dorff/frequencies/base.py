"""Samplers: a kernel, d, a count and a seed in, frequencies and their weights out, and what these cost."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from dorff.errors import InputError
from dorff.frequencies.transforms import Dense, Transform
from dorff.kernels import BaseKernel, Decomposable, Gaussian, Isotropic, MultiView, OperatorKernel, View
from dorff.kernels.scalar import BoolArray, FloatArray, GaussianWeighted, Measure, ScalarKernel, Spectral
from dorff.spec.registry import Config


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Frequencies and weights such that `sum_j weights_j^2 g(omega_j) + centre g(0)` estimates E g(omega).

    `transform` is omega (D, d), in 1 / input units; `weights` (D,); `centre` may be negative (see `Quadrature`).
    `reflected`: each frequency stands for itself and its negative, with half the squared weight each; the same
    thing where g is even. `log_density` (D,) is that of the law they come from, None where nobody asks for it: where
    the kernel is decomposable of one scalar kernel and the sampler a rule.

    `serves` (T, D) says which of `kernel.terms()` a frequency is for; None is all. Where it is given, the sum above
    over the frequencies of one term estimates that term's expectation, `centres` (T,) are the terms' centres, and
    `centre` is zero. So the kernel's estimate, whatever the sampler, is

        sum_j weights_j^2 cos(omega_j . delta) sum_{t served} w_t (rho_0,t / rho)(omega_j) M_t(omega_j)  (+ centres).

    Of a multi-view kernel omega is zero outside the columns that its view sees, and the law is the view's own."""

    transform: Transform
    weights: FloatArray
    centre: float = 0.0
    reflected: bool = False
    log_density: FloatArray | None = None
    serves: BoolArray | None = None
    centres: FloatArray | None = None

    @property
    def omega(self) -> FloatArray:
        """omega (D, d) written out, whatever the transform."""
        return self.transform.dense()


class Cost(NamedTuple):
    """What drawn frequencies take: how many come, numbers of 8 bytes held, floating-point operations for a row."""

    frequencies: int
    numbers: int
    flops: float


def uniform(D: int) -> FloatArray:
    """Weights of a plain mean over D frequencies."""
    return np.full(D, 1.0 / np.sqrt(D))


def first_weights(weights: FloatArray, count: int) -> FloatArray:
    """Return the weights (count,) of the first frequencies of a sample, by those of all (D,).

    Squares are max(w^2, t), with t such that their sum is that of all: the estimate of k(x, x) stays what it is. Where
    all weigh the same they are sqrt(D / count) larger. Else the order has to be that of priority sampling
    (`frequencies.paths.by_priority`), whose own t is the next one's priority (Duffield, Lund & Thorup 2007, section
    2.1): of the same mean, but then k(x, x) would be a random number. The bias is of the order of 1 / count.
    """
    squares = weights**2
    rising = np.sort(squares[:count])
    above = rising.sum() - np.cumsum(rising)  # the sum of those that are larger than each
    levels = (squares.sum() - above) / np.arange(1, count + 1)  # t, if these and all smaller ones are raised to it
    enough = levels <= np.append(rising[1:], np.inf)
    return np.asarray(np.sqrt(np.maximum(squares[:count], levels[np.argmax(enough)])))


def dealt(kernel: MultiView, count: int) -> list[int]:
    """`count` frequencies dealt out to the views: as many to each, the first ones get what is left over."""
    V = kernel.V
    if count < V:
        problem = f"n_features gives {count} frequencies, but the kernel's {V} views need at least one each"
        raise InputError(f"{problem}; raise n_features to {2 * V} or more")
    return [count // V + (number < count % V) for number in range(V)]


def of_views(kernel: MultiView, parts: Sequence[Frequencies], d: int) -> Frequencies:
    """The views' frequencies one after another. Each serves terms of its view alone."""
    terms = [len(view.kernel.terms()) for view in kernel.views]
    D, T = sum(len(part.weights) for part in parts), sum(terms)
    omega, serves, log_density, row, term = np.zeros((D, d)), np.zeros((T, D), dtype=bool), np.empty(D), 0, 0
    for view, part, size in zip(kernel.views, parts, terms, strict=True):
        rows = slice(row, row + len(part.weights))
        omega[rows, view.columns] = part.omega
        serves[term : term + size, rows] = True if part.serves is None else part.serves
        log_density[rows] = 0.0 if part.log_density is None else part.log_density  # of a skeleton, by its own law
        row, term = rows.stop, term + size
    weights = np.concatenate([part.weights for part in parts])
    return Frequencies(Dense(omega), weights, log_density=log_density, serves=serves, centres=np.zeros(T))


@dataclass(frozen=True, eq=False)
class Law:
    """A law that frequencies are drawn from: a scalar kernel's spectrum, by a measure. It serves the kernel's `terms`;
    `share` is their part of tr k(0). `weighed`: one's psi depends on the frequency."""

    scalar: ScalarKernel
    measure: Measure
    share: float = 0.0
    terms: tuple[int, ...] = ()
    weighed: bool = False

    @property
    def spectrum(self) -> Spectral:
        """The spectrum as a shift-invariant kernel's."""
        return spectrum(self.scalar)

    def log_density(self, omega: FloatArray) -> FloatArray:
        """The law's log density (D,) at omega (D, d)."""
        return self.spectrum.log_density(omega, self.measure)


@dataclass(frozen=True)
class Sampler(ABC):
    """Draws the frequencies of an operator kernel. They depend on the arguments of `draw` alone. A kernel of several
    laws (distinct pairs of a scalar kernel and a measure) has them drawn together, from their mixture, where `mixes`;
    else, and always for a concatenated sum, which has a law for each term, law by law. One that does not mix is a rule
    for one rotation-invariant law, whose weights or points are no plain sample of it. It serves every operator kernel:
    a term's estimate is the rule's for g(omega) = cos(omega . delta) M(omega)."""

    kind: ClassVar[str]  #: its word in JOB.yaml
    mixes: ClassVar[bool] = False
    #: Whether each frequency is used together with its negative (see `features.projected` for the columns).
    reflected: ClassVar[bool] = False
    #: Whether frequencies of several laws are a random sample of their mixture.
    sampled: ClassVar[bool] = True
    #: Whether views may have frequencies of it, one law each, though it does not mix.
    viewed: ClassVar[bool] = False
    #: Whether features are those of frequencies at all, not kernel values at landmarks.
    draws_frequencies: ClassVar[bool] = True

    def over(self, sides: FloatArray, *, constant: bool) -> "Sampler":
        """The same for inputs in a box of `sides` (d,); `constant`: a fit without a free intercept."""
        return self

    def of_view(self, view: View) -> "Sampler":
        """The same for the inputs that a view sees."""
        return self

    @property
    def centred(self) -> bool:
        """Whether the rule has a weight for omega = 0."""
        return False

    def config(self) -> Config:
        """The sampler in the grammar of JOB.yaml: its word, and its fields as options."""
        return {"type": self.kind, **vars(self)}

    def accept(self, law: Spectral, measure: Measure, d: int) -> None:
        """Does nothing if there is a rule for the law, else raises the InputError that says why not."""
        return

    @abstractmethod
    def rule(self, rng: np.random.Generator, law: Law, count: int, d: int) -> Frequencies:
        """`size(d, count)` frequencies of one law that was accepted, without their density."""

    def size(self, d: int, count: int) -> int:
        """How many frequencies of one law come for a ceiling of `count`."""
        return count

    def seeded(self, d: int, count: int) -> bool:
        """Whether those frequencies depend on the seed."""
        return True

    def numbers(self, d: int, count: int) -> int:
        """How many numbers (of 8 bytes) the transform of `count` frequencies of one law holds."""
        return 2 * self.size(d, count) * d

    def flops(self, d: int, count: int) -> float:
        """Floating-point operations of the transform of one row, for one law."""
        return 2.0 * self.size(d, count) * d

    @final
    def check(self, kernel: OperatorKernel, d: int, p: int) -> None:
        """Does nothing if `draw` has a rule for the kernel, else raises the InputError that says why not."""
        self.laws(kernel, d, p)

    @final
    def draw(self, kernel: OperatorKernel, *, d: int, p: int, count: int, seed: int) -> Frequencies:
        """The frequencies that come for a ceiling of `count` (see `cost`). InputError where there is no rule. Laws get
        frequencies in shares tr k_i(0), rounded to whole ones. From a mixture (Minh 2016, eq. 58-59) the density is
        that of the shares actually used, so that the estimate of the kernel stays unbiased whatever the rounding. The
        views of a multi-view kernel have as many each, in turn, with zeros for unseen inputs."""
        rng = np.random.default_rng(seed)
        if not isinstance(kernel, MultiView):
            return self._drawn(kernel, d, p, count, rng)
        self.check(kernel, d, p)
        parts = [
            self.of_view(view)._drawn(view.kernel, view.d, p // kernel.V, size, child)
            for view, size, child in zip(kernel.views, dealt(kernel, count), rng.spawn(kernel.V), strict=True)
        ]
        return of_views(kernel, parts, d)

    def _drawn(self, kernel: OperatorKernel, d: int, p: int, count: int, rng: np.random.Generator) -> Frequencies:
        laws = self.laws(kernel, d, p)
        counts = apportion(laws, count)
        parts = [self.rule(rng, law, size, d) for law, size in zip(laws, counts, strict=True)]
        if self._weighed(laws):
            parts = [replace(one, log_density=law.log_density(one.omega)) for one, law in zip(parts, laws, strict=True)]
        if len(laws) == 1:
            return parts[0]
        found = _mixed(rng, parts, laws, len(kernel.terms()))
        if self._apart(kernel, laws):
            return found
        shares = [np.log(size / count) for size in counts]
        densities = [share + law.log_density(found.omega) for law, share in zip(laws, shares, strict=True)]
        return Frequencies(found.transform, uniform(count), log_density=np.logaddexp.reduce(densities, axis=0))

    def cost(self, kernel: OperatorKernel, *, d: int, p: int, count: int) -> Cost:
        """What `draw` of the same arguments gives and takes."""
        if isinstance(kernel, MultiView):
            self.check(kernel, d, p)
            each = zip(kernel.views, dealt(kernel, count), strict=True)
            parts = [self.of_view(one).cost(one.kernel, d=one.d, p=p // kernel.V, count=size) for one, size in each]
            D = sum(part.frequencies for part in parts)
            return Cost(D, 2 * D * d + max(part.numbers for part in parts), 2.0 * D * d)
        laws = self.laws(kernel, d, p)
        sizes = [self.size(d, part) for part in apportion(laws, count)]
        D = sum(sizes)
        written = 2 * D * d  # with the copy that the product wants
        if len(laws) > 1:
            return Cost(D, written + max(self.numbers(d, size) for size in sizes), 2.0 * D * d)
        return Cost(D, max(self.numbers(d, D), written if self._weighed(laws) else 0), self.flops(d, D))

    def recipe(self, kernel: OperatorKernel, *, d: int, p: int, count: int) -> list[Config]:
        """All of the kernel that the frequencies depend on: scalar kernels, measures and counts, and the terms that a
        law serves where not all do; `weighed`, which rules depend on; the view and its columns, if there are any."""
        if isinstance(kernel, MultiView):
            shares = enumerate(zip(kernel.views, dealt(kernel, count), strict=True))
            return [
                {**law, "view": number, "columns": list(view.columns)}
                for number, (view, size) in shares
                for law in self.of_view(view).recipe(view.kernel, d=view.d, p=p // kernel.V, count=size)
            ]
        laws = self.laws(kernel, d, p)
        apart = self._apart(kernel, laws)
        listed = list[Config]()
        for law, size in zip(laws, apportion(laws, count), strict=True):
            listed.append({"scalar": law.scalar.config(), "measure": law.measure.config(), "count": size})
            listed[-1] |= {} if self.mixes else {"weighed": law.weighed}
            listed[-1] |= {"terms": list(law.terms)} if apart else {}
        return listed

    @final
    def laws(self, kernel: OperatorKernel, d: int, p: int) -> list[Law]:
        """The laws of the kernel's terms of positive weight, in order; InputError where there is no rule for one."""
        if isinstance(kernel, MultiView):
            if not (self.mixes or self.viewed):
                problem = f"sampler: {self.config()['type']} is no rule for the views of a multi-view kernel"
                raise InputError(f"{problem}, which have frequencies of their own; use iid, orthogonal or qmc")
            found, before = list[Law](), 0
            for view in kernel.views:
                laws = self.of_view(view).laws(view.kernel, view.d, p // kernel.V)
                found += [replace(law, terms=tuple(before + term for term in law.terms)) for law in laws]
                before += len(view.kernel.terms())
            return found
        by_key: dict[Any, Law] = {}
        for number, (weight, base) in enumerate(kernel.terms()):
            share = weight * base.trace(d, p)
            if share > 0:
                measure = self.measure(base, d)
                key = number if kernel.concatenated else (base.scalar, measure)
                so_far = by_key.get(key, Law(base.scalar, measure))
                weighed = so_far.weighed or not isinstance(base, Decomposable)
                by_key[key] = Law(base.scalar, measure, so_far.share + share, (*so_far.terms, number), weighed)
        return list(by_key.values())

    @final
    def measure(self, base: BaseKernel, d: int) -> Measure:
        """The kernel's measure, or the first of its `measures` that there is a rule for; InputError without a rule."""
        law = spectrum(base.scalar)
        law.check(d)
        for measure in base.measures if base.measure is None else (base.measure,):
            try:
                law.check_measure(measure)
                kind = self.config()["type"]
                if self.draws_frequencies and law.sampler and law.sampler != kind:
                    problem = f"the frequencies of {type(law).__name__} are drawn by {law.sampler} alone"
                    raise InputError(f"sampler: {problem}, not by {kind}; leave the sampler out")
                self.accept(law, measure, d)
                return measure
            except InputError as error:
                refusal = error
        raise refusal

    def _apart(self, kernel: OperatorKernel, laws: Sequence[Law]) -> bool:
        """Whether there are several laws and they are drawn law by law."""
        return len(laws) > 1 and (kernel.concatenated or not self.mixes)

    def _weighed(self, laws: Sequence[Law]) -> bool:
        """Whether frequencies come with their density: psi depends on them, or the sampler tells it anyhow."""
        own = self.viewed and not laws[0].spectrum.sampler  # of a skeleton nobody needs it
        return self.mixes or own or len(laws) != 1 or laws[0].weighed


class DenseSampler(Sampler):
    """Frequencies drawn from a law itself, each of the same weight, and written out."""

    mixes = True

    @abstractmethod
    def omega(self, rng: np.random.Generator, law: Spectral, measure: Measure, count: int, d: int) -> FloatArray:
        """`count` frequencies (count, d) of one law."""

    @final
    def rule(self, rng: np.random.Generator, law: Law, count: int, d: int) -> Frequencies:
        omega = self.omega(rng, law.spectrum, law.measure, count, d)
        return Frequencies(Dense(np.ascontiguousarray(omega)), uniform(count))


def spectrum(scalar: ScalarKernel) -> Spectral:
    """The law that frequencies of a scalar kernel have: its own, or N(0, I) for an expectation over N(0, I)."""
    if isinstance(scalar, GaussianWeighted):
        return Gaussian(1.0)
    if isinstance(scalar, Spectral):
        return scalar
    raise InputError(f"{type(scalar).__name__} has no frequencies to draw; it brings features of its own")


def isotropic(law: Spectral, measure: Measure, sampler: str) -> Isotropic:
    """The law where it is rotation-invariant under the measure, else InputError."""
    if not isinstance(law, Isotropic):
        remedy = f"that of {type(law).__name__} is not such a one: use iid or qmc"
        raise InputError(f"sampler: {sampler} needs a spectrum that no rotation changes; {remedy}")
    if not law.rotation_invariant(measure):
        problem = f"the {measure} measure of unequal length-scales is not such a one"
        remedy = "use the unbounded or the defensive measure, or iid or qmc"
        raise InputError(f"sampler: {sampler} needs a law that no rotation changes; {problem}: {remedy}")
    return law


def unbounded(measure: Measure, sampler: str) -> None:
    """InputError for a measure that is not the spectrum itself."""
    if measure != Measure.UNBOUNDED:
        remedy = "leave the kernel's measure out or set unbounded, or use iid, orthogonal or qmc"
        raise InputError(f"sampler: {sampler} is a rule for a spectrum itself, not for its {measure} measure; {remedy}")


def _mixed(rng: np.random.Generator, parts: Sequence[Frequencies], laws: Sequence[Law], terms: int) -> Frequencies:
    """The laws' frequencies in one, in random order, so that leaving out the last ones leaves out none of the laws."""
    table = np.array([[term in law.terms for law in laws] for term in range(terms)])
    owner = np.repeat(np.arange(len(parts)), [len(part.weights) for part in parts])
    order = rng.permutation(len(owner))
    log_densities = [part.log_density for part in parts if part.log_density is not None]
    return Frequencies(
        Dense(np.concatenate([part.omega for part in parts])[order]),
        np.concatenate([part.weights for part in parts])[order],
        reflected=parts[0].reflected,
        log_density=np.concatenate(log_densities)[order],
        serves=table[:, owner[order]],
        centres=table @ np.array([part.centre for part in parts]),
    )


def apportion(laws: Sequence[Law], count: int) -> list[int]:
    """Whole counts that sum to `count`, nearest to the shares (largest remainders), at least one each."""
    shares = np.array([law.share for law in laws])
    if count < len(shares):
        needs = f"the kernel's sum needs at least one for each of its {len(shares)} spectra"
        remedy = f"raise n_features to {2 * len(shares)} or more"
        raise InputError(f"n_features gives {count} frequencies, but {needs}; {remedy}")
    exact = shares / shares.sum() * (count - len(shares))
    whole = np.floor(exact).astype(int)
    rest = count - len(shares) - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:rest]] += 1
    return [int(size) + 1 for size in whole]
