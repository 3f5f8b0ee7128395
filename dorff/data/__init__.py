"""Data sets on disk: made from files, checked, opened, and read by rows."""

from dorff.data.array_files import Fault
from dorff.data.dataset import Dataset, class_counts
from dorff.data.ingest import ingest
from dorff.data.labels import Classes, Label
from dorff.data.layout import ArrayLayout, ShardWriter, shard_and_unit_rows, write_metadata
from dorff.data.opening import open_dataset
from dorff.data.rows import RowBlock
from dorff.data.upkeep import trim, verify
