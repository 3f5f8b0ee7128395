"""Data sets on disk: made from files, checked, opened, and read by rows."""

from dorff.data.counts import class_counts
from dorff.data.dataset import Dataset, RowBlock
from dorff.data.ingest import ingest
from dorff.data.labels import Classes, Label
from dorff.data.layout import ArrayLayout, ShardWriter, shard_and_unit_rows, write_metadata
from dorff.data.stores import drop, open_dataset, trim, verify
