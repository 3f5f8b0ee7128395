"""A model from its arrays and words as they lie in files, which anybody may have written."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dorff import kernels
from dorff.errors import InputError
from dorff.features import FeatureMap, Projected, feature_arrays, features_from
from dorff.frequencies.transforms import Arrays, Dense
from dorff.model import Model
from dorff.model.calibration import HeldSample
from dorff.model.posterior import Posterior
from dorff.model.weights import OperatorWeights

#: What content that is not what it should be may raise, wherever it is looked at.
UNREADABLE: Final = (
    OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError,
)  # fmt: skip


def build_model(arrays: Arrays, words: Mapping[str, Any]) -> Model:
    """The model of these arrays, by name, and of these words: `kernel`, `sampler`, `seed`, `features` and `info`.

    InputError where they do not fit each other, something is not finite, or an array is nobody's. Runs no code that
    they name, and allocates little more than they have."""
    try:
        return _built(arrays, words)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"its arrays and words do not fit each other ({type(error).__name__}: {error})") from error


def _built(arrays: Arrays, words: Mapping[str, Any]) -> Model:
    _check_words(words)
    m, _ = arrays["coefficients"].shape
    roots, r, inside = arrays["root"].shape
    kernel = kernels.from_config(words["kernel"])
    features = features_from(words["features"], arrays)
    weights = _weights(arrays, kernel, features)
    p = kernel.V * inside
    q = len(arrays["observe"]) if "observe" in arrays else inside
    posterior, held = Posterior.of_arrays(arrays, (m, r, p), q), HeldSample.of_arrays(arrays, features.d, q)
    expected = {
        "coefficients": (m, r),
        "intercept": (p,),
        "target_scale": (p,),
        "gain": (m,),
        "root": (1 if roots == 1 else m, r, inside),
        **({"observe": (q, p)} if "observe" in arrays else {}),
    }
    for name, shape in expected.items():
        _check(name, arrays[name], shape)
    if m != features.m or not np.all(arrays["target_scale"] > 0):
        raise InputError(
            f"{features.m} features have coefficients of shape {(m, r)}, or a target's scale is not above 0"
        )
    if weights.views is not None and q != inside:
        raise InputError(f"views of {inside} outputs have {q} targets")
    known = {
        *expected,
        *(["views"] if weights.views is not None else []),
        *feature_arrays(features),
        *(name for part in (posterior, held) if part for name in part.arrays()),
    }
    if arrays.keys() - known:
        raise InputError(f"array {min(arrays.keys() - known)} is no part of such a model")
    return Model(
        feature_map=features, operator_weights=weights,
        coefficients=arrays["coefficients"], intercept=arrays["intercept"], target_scale=arrays["target_scale"],
        kernel=kernel, sampler=words["sampler"], seed=words["seed"], info=words["info"], observe=arrays.get("observe"),
        posterior=posterior, held=held,
    )  # fmt: skip


def _check_words(words: Mapping[str, Any]) -> None:
    for key, kind in {"kernel": Mapping, "sampler": Mapping, "info": Mapping, "seed": int}.items():
        if not isinstance(words[key], kind) or isinstance(words[key], bool):
            wanted = "a whole number" if kind is int else "a mapping"
            raise InputError(f"{key} should be {wanted}, got {type(words[key]).__name__}")


def _weights(arrays: Arrays, kernel: kernels.OperatorKernel, features: FeatureMap) -> OperatorWeights:
    """psi; InputError where features are of views that the kernel has not, or see columns that their view does not."""
    if not isinstance(kernel, kernels.MultiView):
        return OperatorWeights(arrays["gain"], arrays["root"])
    views, phi = arrays["views"], features.phi
    kernel.check_inputs(features.d)
    if not isinstance(phi, Projected) or not isinstance(phi.projection, Dense) or phi.m != 2 * phi.projection.D:
        raise InputError("a multi-view kernel has cosines and sines of frequencies that are written out")
    if views.dtype != np.int64 or views.shape != (phi.m,):
        raise InputError(f"array views should be int64 of shape {(phi.m,)}, got {views.dtype} of shape {views.shape}")
    first, second = views.reshape(2, -1)
    if not np.array_equal(first, second) or np.any((first < 0) | (first >= kernel.V)):
        raise InputError(f"array views should number the {kernel.V} views, of cosines as of sines")
    for number, view in enumerate(kernel.views):
        if np.any(np.delete(phi.omega[first == number], view.columns, axis=1)):
            raise InputError(f"features of view {view.name} see columns that it does not")
    return OperatorWeights(arrays["gain"], arrays["root"], views, kernel.V)


def _check(name: str, value: np.ndarray[Any, Any], shape: tuple[int, ...]) -> None:
    fits = value.shape == shape and value.dtype == np.float64 and min(shape) > 0
    if not fits or not np.isfinite(value).all():
        got = f"{value.dtype} of shape {value.shape}" if not fits else "numbers that are not"
        raise InputError(f"array {name} should be float64 of shape {shape}, and finite; got {got}")
