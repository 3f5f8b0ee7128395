"""Durable bytes: atomic files, receipts, moments, models, the lease and the history of a model."""

from dorff.storage.files import check_output, identity, read_plain, space_on, unseal, write_atomic
from dorff.store.lease import LEASE, Lease, forget, lease_beside, lease_state
from dorff.store.models import content, current_version, load_model, model_arrays, resolve_model, save_model, versions
from dorff.store.moments import load_moments, load_sums, merge_moments, save_moments, undamaged
from dorff.store.receipts import Receipt, append_history, last_used, prune_state, prune_versions, read_history
