"""Features that a kernel brings itself: monomials, random Maclaurin features, sampled eigenfunctions."""

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from dorff.features.base import ScalarMap, numbers
from dorff.frequencies.transforms import Arrays
from dorff.kernels import FloatArray, Mercer, Polynomial
from dorff.kernels.scalar import IntArray
from dorff.spec.registry import Config


def series(kernel: Polynomial) -> list[float]:
    """a_n, n = 0 .. degree, with which the kernel is sum_n a_n (x . z)^n."""
    degree, scale, offset = kernel.degree, kernel.scale, kernel.offset
    return [math.comb(degree, n) * scale**n * offset ** (degree - n) for n in range(degree + 1)]


def _deal(degree: int, of: IntArray, count: int) -> IntArray:
    """`count` columns among the degrees `of`, in shares binomial(degree, n); what is left over goes to the last."""
    shares = np.array([math.comb(degree, n) for n in of.tolist()], dtype=np.float64)
    dealt: IntArray = np.floor(shares / shares.sum() * count).astype(np.int64)
    dealt[-1] += count - dealt.sum()
    return dealt


def monomial_count(kernel: Polynomial, d: int) -> int:
    """Columns of the explicit features of a polynomial kernel."""
    return sum(math.comb(d + n - 1, n) for n, a in enumerate(series(kernel)) if a > 0)


class OwnFeatures(ScalarMap):
    """Features whose columns have `weights` (m,) each."""

    weights: FloatArray

    @property
    def m(self) -> int:
        return len(self.weights)

    def arrays(self) -> Arrays:
        held = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return {"feature_weights" if name == "weights" else name: value for name, value in held.items()}


@dataclass(frozen=True, eq=False)
class Monomials(OwnFeatures):
    """Every monomial of the kernel: F(x) . F(z) is the polynomial kernel exactly. Column j is `weights[j]` times the
    product of the inputs `factors[j]` (degree of them; d stands for 1)."""

    inputs: int
    factors: IntArray
    weights: FloatArray
    kind = "monomials"
    differentiable = True

    @classmethod
    def of(cls, kernel: Polynomial, d: int) -> "Monomials":
        """(x . z)^n = sum over multi-indices of n! / alpha! x^alpha z^alpha."""
        factors, coefficients = [], []
        for n, a in enumerate(series(kernel)):
            for chosen in combinations_with_replacement(range(d), n) if a > 0 else ():
                powers = math.prod(math.factorial(chosen.count(i)) for i in set(chosen))
                factors.append(chosen + (d,) * (kernel.degree - n))
                coefficients.append(math.sqrt(a * math.factorial(n) / powers))
        return cls(d, np.array(factors, dtype=np.int64).reshape(len(factors), kernel.degree), np.array(coefficients))

    @property
    def d(self) -> int:
        return self.inputs

    def write(self, x: FloatArray, out: FloatArray, work: FloatArray) -> None:
        padded = np.column_stack([x, np.ones(len(x))])
        F = out[:, : self.m]
        F[:] = self.weights
        for factor in self.factors.T:
            F *= padded[:, factor]

    def jacobian(self, x: FloatArray, W: FloatArray) -> FloatArray:
        padded = np.column_stack([x, np.ones(len(x))])
        out = np.zeros((len(x), W.shape[1], self.d + 1))
        for k, wanted in enumerate(self.factors.T):
            others = np.tile(self.weights, (len(x), 1))
            for j, factor in enumerate(self.factors.T):
                if j != k:
                    others *= padded[:, factor]
            picks = np.zeros((self.m, self.d + 1))
            picks[np.arange(self.m), wanted] = 1.0
            for i in range(W.shape[1]):
                out[:, i] += (others * W[:, i]) @ picks
        return out[:, :, : self.d]

    def config(self) -> Config:
        return {"type": self.kind, "d": self.inputs}

    def fits(self) -> bool:
        within = not self.factors.size or bool(self.factors.min() >= 0 and self.factors.max() <= self.inputs)
        typed = self.factors.dtype == np.int64 and self.factors.ndim == 2
        return typed and within and numbers((len(self.factors),), self.weights)


@dataclass(frozen=True, eq=False)
class Maclaurin(OwnFeatures):
    """Random features of a polynomial kernel (Kar & Karnick 2012): products of n projections on random signs. The
    kernel is sum_n a_n (x . z)^n. Degrees share the columns before the draw, rather than by it: it has less variance,
    and is as unbiased. The shares are binomial(degree, n), those of the terms where scale x . x is about the offset;
    the constant is exact in one column, and so is degree 1 in d columns, the inputs, where its share is d. `signs`
    (sum of n over the columns, d) lies column by column, degrees (m,) ascending."""

    signs: FloatArray
    degrees: IntArray
    weights: FloatArray
    kind = "maclaurin"

    @classmethod
    def of(cls, kernel: Polynomial, d: int, count: int, rng: np.random.Generator) -> "Maclaurin":
        a = np.asarray(series(kernel))
        present = np.flatnonzero(a)
        random = present[present > 0]
        sizes = np.zeros(len(a), dtype=np.int64)
        sizes[present] = 1
        if a[1] > 0 and kernel.degree > 1 and _deal(kernel.degree, random, count - len(present))[0] >= d:
            sizes[1], random = d, random[1:]
        sizes[random] += _deal(kernel.degree, random, count - int(sizes.sum()))
        degrees = np.repeat(np.arange(len(a)), sizes)
        signs = np.where(rng.random((int(degrees.sum()), d)) < 0.5, -1.0, 1.0)
        weights = np.sqrt(a[degrees] / sizes[degrees])
        if sizes[1] == d:  # sqrt(a_1) x itself
            signs[:d] = np.eye(d)
            weights[degrees == 1] = math.sqrt(a[1])
        return cls(signs, degrees, weights)

    @property
    def d(self) -> int:
        return int(self.signs.shape[1])

    @property
    def work_columns(self) -> int:
        return len(self.signs)

    def write(self, x: FloatArray, out: FloatArray, work: FloatArray) -> None:
        np.matmul(x, self.signs.T, out=work)
        start = 0
        for n in np.unique(self.degrees).tolist():
            columns = np.flatnonzero(self.degrees == n)
            part = work[:, start : start + n * len(columns)].reshape(len(x), len(columns), n)
            first, last = columns[0], columns[-1] + 1
            np.multiply(part.prod(axis=2), self.weights[first:last], out=out[:, first:last])
            start += n * len(columns)

    def config(self) -> Config:
        return {"type": self.kind}

    def fits(self) -> bool:
        if self.degrees.dtype != np.int64 or self.degrees.ndim != 1 or self.signs.ndim != 2:
            return False
        rows, m = len(self.signs), len(self.degrees)
        # Each degree is looked at before the sum, which could wrap around.
        within = bool(np.all((self.degrees >= 0) & (self.degrees <= rows))) and self.degrees.sum() == rows
        ascend = bool(np.all(self.degrees[1:] >= self.degrees[:-1]))
        return within and ascend and numbers(self.signs.shape, self.signs) and numbers((m,), self.weights)


@dataclass(frozen=True, eq=False)
class Eigenfunctions(OwnFeatures):
    """Eigenfunctions of a Mercer kernel, drawn with probability lambda_i / |lambda|_1 (Oono's note, 6.3): column j is
    sqrt(|lambda|_1 / m) phi_{i_j} (the note prints |lambda|_1 / sqrt(m)). If m suffices all: sqrt(lambda_i) phi_i."""

    kernel: Mercer
    inputs: int
    indices: IntArray
    weights: FloatArray
    kind = "eigenfunctions"

    @classmethod
    def of(cls, kernel: Mercer, d: int, count: int, rng: np.random.Generator) -> "Eigenfunctions":
        values = np.asarray(kernel.eigenvalues, dtype=np.float64)
        if len(values) <= count:
            return cls(kernel, d, np.arange(len(values)), np.sqrt(values))
        indices = np.sort(rng.choice(len(values), size=count, p=values / values.sum()))
        return cls(kernel, d, indices, np.full(count, math.sqrt(values.sum() / count)))

    @property
    def d(self) -> int:
        return self.inputs

    def write(self, x: FloatArray, out: FloatArray, work: FloatArray) -> None:
        np.multiply(self.kernel.functions(x, self.indices), self.weights, out=out[:, : self.m])

    def config(self) -> Config:
        return {"type": self.kind, "d": self.inputs, "kernel": self.kernel.config()}

    def fits(self) -> bool:
        within = bool(np.all((self.indices >= 0) & (self.indices < len(self.kernel.eigenvalues))))
        typed = self.indices.dtype == np.int64 and self.indices.ndim == 1
        return typed and within and numbers(self.indices.shape, self.weights)
