"""How many rows each class has."""

from __future__ import annotations

import numpy as np

from dorff.data.dataset import Dataset
from dorff.data.labels import stored_labels
from dorff.data.nodes import committed_first, committed_rows, group_attributes
from dorff.storage.location import locate


def class_counts(dataset: Dataset) -> tuple[float, ...]:
    """Rows of each label of a data set of classes: what ingest counted, or else counted by reading all labels.

    Where rows have weights it is their sum; rows of a weight that is not finite are left out, and so are those that a
    column says are not labelled.
    """
    coding = dataset.classes()
    path = locate(dataset.path)
    attributes = group_attributes(path)
    table = stored_labels(attributes, path)
    counts = np.zeros(len(coding.labels) + 1)  # the last: of rows without a label
    counted = table is not None and coding.values is None and dataset.weights is None and dataset.labelled is None
    same = (committed_first(path, attributes), committed_rows(path, attributes)) == (dataset.first, dataset.n)
    if counted and table is not None and same:
        np.add.at(counts, np.array(coding.places), table.counts)
    else:
        for start, stop in dataset.runs():
            weights = dataset.row_weights(start, stop)
            weights = None if weights is None else np.where(np.isfinite(weights), weights, 0.0)
            counts += np.bincount(dataset.codes(start, stop) % len(counts), weights, minlength=len(counts))
    return tuple(counts[:-1].tolist())
