"""Class labels of any type in any kind of array: found in one pass, made into ones and zeros chunk by chunk."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import compute
from dask.delayed import delayed
from sklearn.utils.multiclass import check_classification_targets

from dorff.data.array_files import ArrayFiles
from dorff.data.nodes import StoredArray, open_zarr
from dorff.data.packing import NUMBER_KINDS, Packing
from dorff.errors import InputError
from dorff.estimators.adapter import adapt_labels, refuse_null_labels
from dorff.estimators.arrays import known, runs_of
from dorff.kernels.scalar import FloatArray

Labels: TypeAlias = npt.NDArray[Any]
MOST_CLASSES = 2**14  # moments have a column for each
UNLABELLED = -1  # as scikit-learn's semi-supervised estimators have it
AnyLabels: TypeAlias = "Labels | StoredLabels | da.Array"


@dataclass(frozen=True, eq=False)
class StoredLabels:
    """A Zarr array (n,) or (n, 1) in a local folder, of numbers or text, read by runs of rows. As for `StoredRows`
    chunks are checked before they are read, and packed numbers unpacked; others keep their type."""

    stored: StoredArray
    ndim: ClassVar = 1

    @classmethod
    def of(cls, path: Path, name: str) -> Self:
        """`name` is the argument's, for messages. InputError where the array is not one of one column."""
        what = f"{name}, array {path.name} of {path.parent}"
        array = open_zarr(path, what, v3=(path / "zarr.json").is_file())
        _check_column(array.shape)
        dtype = np.dtype(array.dtype)
        # Text is not packed.
        packing = Packing.of(dict(array.attrs), dtype, what) if dtype.kind in NUMBER_KINDS else Packing()
        return cls(StoredArray(ArrayFiles(array, path, path.name), packing, None))

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self[:0].dtype

    @property
    def unit_rows(self) -> int:
        return max(1, self.stored.files.inner[0])

    def __len__(self) -> int:
        return self.stored.rows

    def __getitem__(self, key: slice | tuple[slice]) -> Labels:
        """Labels (k,) of a slice without step; as a tuple of one, as Dask asks."""
        start, stop, _ = (key[0] if isinstance(key, tuple) else key).indices(len(self))
        dtype = self.stored.packing.dtype(np.dtype(self.stored.array.dtype))
        return _fixed_text(self.stored.values(start, max(start, stop), dtype, "")[:, 0])


@dataclass(frozen=True, eq=False)
class OneHot:
    """Labels (n,) that stand for rows (n, K) of zeros with one 1, made when they are read. Not for Dask's arrays."""

    labels: Labels | StoredLabels
    classes: Labels

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.labels), len(self.classes)


def unwrap_labels(y: Any) -> Any:
    """Targets of any type: 1-d, or one column; what scikit-learn can check is returned as it is."""
    y = adapt_labels(y, "y", StoredLabels.of)
    if isinstance(y, da.Array):
        _check_column(y.shape)
        return known(y if y.ndim == 1 else y[:, 0], "y")
    return _fixed_text(y) if isinstance(y, np.ndarray) else y


def _fixed_text(values: Labels) -> Labels:
    """Text of any length, or of bytes, as NumPy's own text; scikit-learn knows no other."""
    text = values.astype(object) if values.dtype.kind == "T" else values
    return text.astype(np.str_) if values.dtype.kind in "ST" else values


def in_memory(labels: Labels) -> tuple[Labels, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The classes of labels (n,) in memory, sorted; each label's place among them (n,); how many rows each has."""
    try:
        check_classification_targets(labels)
        classes, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    except TypeError as error:
        raise InputError(f"y has labels that are missing or of mixed types ({error}); give all as text") from None
    return classes, codes, counts


def refuse_gaps(y: Any, *, semi: bool) -> None:
    """InputError at the first of labels (n,) that is None, NaN or pandas' NA; `semi` allows rows without a label."""
    if isinstance(y, StoredLabels | da.Array) or (isinstance(y, np.ndarray) and y.dtype.kind not in "Of"):
        return
    remedy = "leave the row out, or give it a label"
    if semi:
        there = "put it there (in an array of dtype object, where labels are text)"
        remedy = f"a row without a label has the number {UNLABELLED}: {there}"
    refuse_null_labels(y, "y", remedy)


def labelled(labels: Labels) -> npt.NDArray[np.bool_]:
    """Which of labels (n,) in memory are not UNLABELLED. InputError where all are, and where '-1' is text, which would
    be a label like others but can hardly be meant as one."""
    if labels.dtype.kind in "OU" and np.any(labels == str(UNLABELLED)):
        remedy = "which text labels need dtype object for: np.array(labels, dtype=object)"
        raise InputError(f"y has '-1' as text; a row without a label has the number -1, {remedy}")
    seen = np.ones(len(labels), bool) if labels.dtype.kind == "U" else np.asarray(labels != UNLABELLED, dtype=bool)
    if not seen.any():
        raise InputError(f"y: all of its {len(labels)} rows are unlabelled ({UNLABELLED}); give labels of some")
    return seen


def plain_type(labels: Labels) -> Labels:
    """Labels of dtype object that are all of one type other than text, as an array of that type."""
    if labels.dtype != object or len(types := {type(label) for label in labels}) != 1 or str in types:
        return labels
    return np.array(labels.tolist())


def _check_column(shape: tuple[int, ...]) -> None:
    if len(shape) != 1 and (len(shape) != 2 or shape[1] != 1):
        raise InputError(f"y must be labels, (rows,), but has shape {shape}; give one label a row")


def one_hot(labels: Labels, classes: Labels) -> FloatArray:
    """(n, K): 1 in the column of a row's label among the sorted `classes`; InputError at any other label."""
    place = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    if not np.all(classes[place] == labels):
        raise InputError("y has other labels now than when its classes were found; keep it still during a fit")
    rows = np.zeros((len(labels), len(classes)))
    rows[np.arange(len(labels)), place] = 1.0
    return rows


def target_rows(labels: AnyLabels, classes: Labels) -> OneHot | da.Array:
    """One-hot rows of labels (n,), made chunk by chunk: a Dask array of Dask's."""
    if not isinstance(labels, da.Array):
        return OneHot(labels, classes)
    chunks, of = (labels.chunks[0], (len(classes),)), np.empty((0, 0))
    rows: da.Array = da.map_blocks(one_hot, labels, classes=classes, new_axis=1, chunks=chunks, dtype=float, meta=of)
    return rows


def find_classes(labels: StoredLabels | da.Array) -> tuple[Labels, npt.NDArray[np.int64]]:
    """The classes, sorted, and how many rows each has, from one pass over the labels. Raises InputError: labels that
    are missing, of mixed types, or numbers that are not whole; more than MOST_CLASSES."""
    if isinstance(labels, StoredLabels):
        return _merged(_counted(labels[a:b], a) for a, b in runs_of(len(labels), labels.unit_rows))
    starts = np.concatenate([[0], np.cumsum(labels.chunks[0])[:-1]])
    tasks = [delayed(_counted)(chunk, int(a)) for chunk, a in zip(labels.to_delayed(), starts, strict=True)]
    return _merged(compute(*tasks))


def _counted(labels: Labels, first: int) -> tuple[Labels, npt.NDArray[np.int64]]:
    """Sorted classes and counts of a chunk whose first row is number `first`."""
    labels = np.asarray(labels)
    if labels.dtype.kind == "f" and not (whole := np.isfinite(labels) & (labels == np.floor(labels))).all():
        row = int(np.argmin(whole))
        problem = f"y, row {first + row}: Unknown label type: continuous or missing, got {labels[row]}"
        raise InputError(f"{problem}; give labels that are whole numbers, text or booleans, or use ORFFRegressor")
    if labels.dtype.kind == "O" and len({type(label) for label in labels.tolist()}) > 1:
        raise InputError(f"y has labels of mixed types in rows {first} to {first + len(labels) - 1}; give all as text")
    classes, counts = np.unique(labels, return_counts=True)
    _check_number(classes)
    return classes, counts


def _check_number(classes: Labels) -> None:
    """Of a chunk too: a column of numbers would fill the driver's memory before its chunks are merged."""
    if len(classes) > MOST_CLASSES:
        raise InputError(f"y has more than {MOST_CLASSES} different labels; use ORFFRegressor for numbers")


def _merged(parts: Iterable[tuple[Labels, npt.NDArray[np.int64]]]) -> tuple[Labels, npt.NDArray[np.int64]]:
    classes: Labels | None = None
    counts = np.zeros(0, dtype=np.int64)
    for own, some in (part for part in parts if len(part[0])):
        classes, place = np.unique(own if classes is None else np.concatenate([classes, own]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, some])).astype(np.int64)
        _check_number(classes)
    if classes is None:
        raise InputError("y has no labels; give at least one row")
    return classes, counts
