"""How many rows of a data set have each label."""

import numpy as np

from dorff.data.dataset import Dataset
from dorff.data.labels import stored_labels
from dorff.data.nodes import committed, group_attributes
from dorff.storage.location import locate


def class_counts(dataset: Dataset) -> tuple[float, ...]:
    """Rows of each label of a data set of classes: what ingest counted, or else counted by reading all labels. Where
    rows have weights it is their sum; rows whose weight is not finite, or that a column calls unlabelled, are out."""
    coding = dataset.classes()
    path = locate(dataset.path)
    attributes = group_attributes(path)
    table = stored_labels(attributes, path)
    counts = np.zeros(len(coding.labels) + 1)  # the last: of rows without a label
    counted = coding.values is None and not (dataset.weights or dataset.labelled or dataset.dropped)
    if table is not None and counted and committed(path, attributes) == range(dataset.first, dataset.n):
        np.add.at(counts, np.array(coding.places), table.counts)
    else:
        for start, stop in dataset.runs():
            weights = dataset.row_weights(start, stop)
            weights = None if weights is None else np.where(np.isfinite(weights), weights, 0.0)
            counts += np.bincount(dataset.codes(start, stop) % len(counts), weights, minlength=len(counts))
    return tuple(counts[:-1].tolist())
