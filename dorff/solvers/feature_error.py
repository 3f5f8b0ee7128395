"""How far a fit depends on the draw of its random features."""

from dataclasses import replace

import numpy as np

from dorff.moments import FloatArray
from dorff.solvers.choose import select_frequencies
from dorff.solvers.problem import Parts
from dorff.solvers.setting import Fit, Setting, carried_ridges


def feature_variance(parts: Parts, setting: Setting, fit: Fit) -> FloatArray:
    """Return the variance (p,) of f by the draw of the features, in the targets' units squared, a mean over the rows.

    Half the mean squared difference of fits by disjoint halves of the frequencies, from the same moments: the variance
    of a fit by half as many features. With cosine and sine pairs k(x, x) is exact at every x, whatever the draw, so
    that the posterior of the linear model does not see what the features get wrong elsewhere. Fits by more features
    are closer to each other than that, but also to the exact process, whose posterior is wider than theirs: on the
    functions of `benchmarks/truths.py` the squared distance to a fit by four times the features was between 0.6 and
    1.5 times this. `setting` has `halves`.
    """
    half, setting = setting.m // 4, replace(setting, kernel=fit.kernel)
    W, bias = np.zeros((setting.m, fit.W.shape[1])), np.zeros(fit.W.shape[1])
    for sign, start in ((1.0, 0), (-1.0, half)):
        folds, some = select_frequencies([parts], setting, start, start + half)
        (own,) = folds
        (found,) = some.solve(own, [carried_ridges(some, own, fit)])
        factor = sign * np.sqrt(setting.m / some.m)
        columns = np.arange(start, start + half)
        W[columns] = factor * found.W[:half]
        W[setting.m // 2 + columns] = factor * found.W[half:]
        bias += sign * found.bias
    squares, weight = np.zeros(len(bias)), 0.0
    for part in parts:
        squares += part.squares(np.vstack([W, bias, np.zeros((part.q, len(bias)))]))
        weight += float(part.corner[0, 0])
    return np.asarray(0.5 * squares / weight)
