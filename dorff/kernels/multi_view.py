"""Kernels of several views: each sees columns of the inputs of its own, and has outputs of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dorff.errors import InputError
from dorff.kernels.operator import BaseKernel, Decomposable, OperatorKernel
from dorff.kernels.output import Covariance, Learned
from dorff.kernels.scalar import FloatArray, IntArray, ScalarKernel
from dorff.kernels.stretched import Stretched
from dorff.spec.registry import Config


@dataclass(frozen=True, eq=False)
class View:
    """A name, the columns of X that the view sees, in order, and a kernel for these d inputs."""

    name: str
    columns: tuple[int, ...]
    kernel: OperatorKernel

    @property
    def d(self) -> int:
        return len(self.columns)


@dataclass(frozen=True, eq=False)
class MultiView(OperatorKernel):
    """V views of p outputs each: f = (f_1, .., f_V) of V p outputs, K(x, z) = diag(K_1(x_1, z_1), .., K_V(x_V, z_V)).

    The targets observe C f, the mean of the views: C = `average`. What ties views together is the between-view
    term <f, (I (x) Q) f> with Q = `between` (x) I_p, which is sum_{v<w} |f_v - f_w|^2 summed over rows (Minh 2016,
    eq. 67 and 72, in the setting of Minh, Bazzani & Murino 2016). Without it their mean alone is near the targets.

    `views` are pairs of columns and a kernel: columns by number, or a count of them, which follow the view before.
    Views may share columns. A scalar kernel stands for independent outputs. `names` are "view0", "view1", ... unless
    given. Each view has frequencies of its own (`dorff.frequencies`).

    Raises InputError for fewer than two views, columns or names that are named twice, kernels that are no spectral
    ones or multi-view themselves, and outputs "covariance" or "learned", which are of targets that are the outputs."""

    views: tuple[View, ...]
    concatenated = True

    def __init__(
        self,
        views: Sequence[tuple[int | Sequence[int], OperatorKernel | ScalarKernel]],
        names: Sequence[str | None] | None = None,
    ) -> None:
        if len(views) < 2:
            raise InputError(f"a multi-view kernel needs two views or more, got {len(views)}; use the view's kernel")
        given = [None] * len(views) if names is None else list(names)
        if len(given) != len(views):
            raise InputError(f"names: wanted one for each of the {len(views)} views, got {len(given)}")
        found: list[View] = []
        for number, ((columns, kernel), name) in enumerate(zip(views, given, strict=True)):
            called = f"view{number}" if name is None else name
            if not isinstance(called, str) or not called or called in {view.name for view in found}:
                raise InputError(f"names: wanted another text for each view, got {called!r}; name each once")
            first = found[-1].columns[-1] + 1 if found else 0
            found.append(View(called, _columns(called, columns, first), _kernel(called, kernel)))
        vars(self).update(views=tuple(found), V=len(found))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(view.name for view in self.views)

    @property
    def outputs(self) -> int:
        """p, the outputs of each view; InputError before `fix` where they are known only with the targets."""
        terms = ((view, base) for view in self.views for _, base in view.kernel.terms())
        known = {base.output.p if isinstance(base, Decomposable) else view.d for view, base in terms} - {None}
        if not known:
            raise InputError("the outputs of the views are known only with the targets; use kernel.fix(d, V p) first")
        return int(next(iter(known)) or 0)

    @property
    def average(self) -> FloatArray:
        """C (p, V p): the mean of the views. InputError as `outputs`."""
        return self.mean()

    def mean(self, views: Sequence[str | int] | None = None) -> FloatArray:
        """C (p, V p) of some views, by name or number: the mean of those; of all if None."""
        return mean_of(self.V, self.chosen(views), self.outputs)

    @property
    def between(self) -> FloatArray:
        """V I - 1 1^T (V, V): u^T between u is the sum of (u_v - u_w)^2 over all pairs of views."""
        return self.V * np.eye(self.V) - 1.0

    def chosen(self, views: Sequence[str | int] | None = None) -> tuple[int, ...]:
        """The numbers of views that are named or numbered, in order; all if None. InputError for unknown ones."""
        if views is None:
            return tuple(range(self.V))
        asked = [views] if isinstance(views, str | int) else list(views)
        numbers = {name: number for number, name in enumerate(self.names)}
        found = [numbers.get(view, -1) if isinstance(view, str) else view for view in asked]
        for view, number in zip(asked, found, strict=True):
            if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < self.V:
                raise InputError(f"views: there is no view {view!r}; name some of {', '.join(self.names)}")
        if not found or len(set(found)) < len(found):
            raise InputError(f"views: wanted some of {', '.join(self.names)}, each once; got {asked!r}")
        return tuple(sorted(int(number) for number in found))

    def seen(self, views: Sequence[str | int] | None = None) -> IntArray:
        """The numbers of the columns of X, ascending, that some views see; that all see if None."""
        return np.unique(np.concatenate([self.views[number].columns for number in self.chosen(views)]))

    def tied(self, d: int) -> tuple[IntArray, ...]:
        groups: list[set[int]] = []
        for view in self.views:
            if view.kernel.vector_field:
                own = set(view.columns)  # and what shares columns with it
                groups = [*(one for one in groups if not one & own), own.union(*(one for one in groups if one & own))]
        return tuple(np.array(sorted(group)) for group in groups)

    def terms(self) -> tuple[tuple[float, BaseKernel], ...]:
        """Those of each view in turn, each of all inputs and outputs; `scalar` is of the view's inputs alone."""
        each = ((number, view.columns, term) for number, view in enumerate(self.views) for term in view.kernel.terms())
        return tuple((weight, InView(base, columns, number, self.V)) for number, columns, (weight, base) in each)

    def check_inputs(self, d: int) -> None:
        """Does nothing if the views see all columns of d inputs, else raises the InputError that says why not."""
        seen = self.seen()
        if seen[-1] >= d or len(seen) < d:
            unseen = set(range(d)) - set(seen.tolist())
            wrong = f"sees column {seen[-1]}" if seen[-1] >= d else f"leaves out column {min(unseen)}"
            problem = f"the multi-view kernel {wrong}, but the inputs have {d} columns, numbered from 0"
            raise InputError(f"{problem}; give views that see each of them")

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> "MultiView":
        self.check_inputs(d)
        if p % self.V:
            raise InputError(f"a kernel of {self.V} views has {self.V} times as many outputs as targets, not {p}")
        return MultiView([(view.columns, view.kernel.fix(view.d, p // self.V)) for view in self.views], self.names)

    def config(self) -> Config:
        views = [{"columns": list(one.columns), "name": one.name, "kernel": one.kernel.config()} for one in self.views]
        return {"type": "multi_view", "views": views}


@dataclass(frozen=True, eq=False)
class InView(BaseKernel):
    """A view's kernel k as one of all inputs and outputs: e_v e_v^T (x) k of the view's columns."""

    base: BaseKernel
    columns: tuple[int, ...]
    number: int
    views: int

    def __post_init__(self) -> None:
        measure = self.base.measures[0] if self.base.measure is None else self.base.measure
        vars(self).update(scalar=self.base.scalar, measure=measure, vector_field=self.base.vector_field, V=self.views)

    def fix(self, d: int, p: int, covariance: FloatArray | None = None) -> "InView":
        ((_, base),) = self.base.fix(len(self.columns), p // self.views).terms()
        return InView(base, self.columns, self.number, self.views)

    def check_rows(self, X: FloatArray, *, scaled: bool) -> None:
        self.base.check_rows(X[:, self.columns], scaled=scaled)

    def gram(self, X: FloatArray, Z: FloatArray) -> FloatArray:
        inside = self.base.gram(X[:, self.columns], Z[:, self.columns])
        n, k, p, _ = inside.shape
        values = np.zeros((n, k, self.views, p, self.views, p))
        values[:, :, self.number, :, self.number] = inside
        return values.reshape(n, k, self.views * p, self.views * p)

    def root(self, omega: FloatArray) -> FloatArray:
        inside = self.base.root(omega[:, self.columns])
        D, r, p = inside.shape
        root = np.zeros((D, r, self.views, p))
        root[:, :, self.number] = inside
        return root.reshape(D, r, self.views * p)

    def trace(self, d: int, p: int) -> float:
        return self.base.trace(len(self.columns), p // self.views)

    def config(self) -> Config:
        return self.base.config()


def mean_of(V: int, views: Sequence[int], p: int) -> FloatArray:
    """(p, V p): takes the outputs of V views, of p each, to the mean of some."""
    share = np.zeros(V)
    share[list(views)] = 1.0 / len(views)
    return np.asarray(np.kron(share, np.eye(p)))


def _columns(name: str, columns: int | Sequence[int], first: int) -> tuple[int, ...]:
    counted = isinstance(columns, int | np.integer)
    found = list(range(first, first + columns)) if isinstance(columns, int | np.integer) else list(columns)
    whole = all(isinstance(column, int | np.integer) and not isinstance(column, bool) for column in found)
    if isinstance(columns, bool) or not found or not whole or min(found) < 0 or len(set(found)) < len(found):
        wanted = "a count of at least 1" if counted else "whole numbers of 0 or more, each once"
        raise InputError(f"columns of view {name}: wanted {wanted}, got {columns!r}")
    return tuple(int(column) for column in found)


def _kernel(name: str, kernel: OperatorKernel | ScalarKernel) -> OperatorKernel:
    found = Decomposable(kernel) if isinstance(kernel, ScalarKernel) else kernel
    if not isinstance(found, OperatorKernel) or found.V > 1:
        raise InputError(f"the kernel of view {name} must be one that is not multi-view itself, not {kernel!r}")
    for _, base in found.terms():
        if not base.scalar.shift_invariant:
            problem = f"the kernel of view {name} must be shift-invariant, since views have frequencies of their own"
            raise InputError(f"{problem}, which {type(base.scalar).__name__} has not; use a Gaussian, say")
        if isinstance(base, Decomposable) and isinstance(base.output, Covariance | Learned):
            problem = "which is of targets that are the outputs, but here they are the mean of the views"
            output = f"the kernel of view {name} has output '{base.output.config()}'"
            raise InputError(f"{output}, {problem}; use identity or a matrix")
    return found


def input_lengthscales(kernel: OperatorKernel, scale: FloatArray) -> list[dict[int, float] | None]:
    """Return the length-scale of each term of a kernel along each input, in that input's own units.

    Parameters
    ----------
    kernel : OperatorKernel
        Of inputs that are divided by `scale`.
    scale : ndarray of shape (d,)
        `FeatureMap.scale`: standard deviations of inputs that are standardized, else ones.

    Returns
    -------
    list
        For each of `kernel.terms()` the length-scales by the number of the input; of a view those of its inputs. None
        for a term whose scalar kernel has no length-scale.
    """
    found = list[dict[int, float] | None]()
    for _, term in kernel.terms():
        columns = list(term.columns) if isinstance(term, InView) else list(range(len(scale)))
        if isinstance(term.scalar, Stretched):
            lengths = scale[columns] / term.scalar.stretch(len(columns))
            found.append(dict(zip(columns, lengths.tolist(), strict=True)))
        else:
            found.append(None)
    return found
