"""The store as a mount uses it: bodies checked, failures waited out, credentials renewed."""

from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.patience import PatientStore
from penstock.store.source import Source
from penstock.store.verified import VerifiedStore, is_verified

# How long a mount waits for a store that has never answered: a wrong --endpoint is told in seconds.
FIRST_CONTACT_S = 3.0


def open_reliable_store(source: Source, options: StoreOptions, counters: Counters) -> PatientStore:
    def open_again() -> Store:
        store = open_store(source, options, counters)
        if is_verified(options.verify, store.identity):
            return VerifiedStore(store, counters)
        return store

    has_credentials = source.scheme in ("s3", "oss", "bos", "gs", "az") and not options.anonymous
    return PatientStore(
        open_again(), counters, deadline_s=options.deadline_s,
        reopen=open_again if has_credentials else None,
    )  # fmt: skip
