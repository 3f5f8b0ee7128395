"""Durable bytes: atomic files, receipts, moments, models."""

from dorff.moments import Folds, check_patterns, merge_folds
from dorff.store.atomic import remove_torn, space_on, write_atomic, write_json
from dorff.store.models import load_model, resolve_model, save_model
from dorff.store.moments import load_moments, load_sums, merge_moments, save_moments, undamaged
from dorff.store.receipts import Receipt

__all__ = [
    "Folds",
    "Receipt",
    "check_patterns",
    "load_model",
    "load_moments",
    "load_sums",
    "merge_folds",
    "merge_moments",
    "remove_torn",
    "resolve_model",
    "save_model",
    "save_moments",
    "space_on",
    "undamaged",
    "write_atomic",
    "write_json",
]
