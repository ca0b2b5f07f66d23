"""The store as a mount uses it: bodies checked, failures waited out, credentials renewed."""

from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.patience import PatientStore
from penstock.store.source import OBJECT_SCHEMES, Source
from penstock.store.verified import VerifiedStore, is_verified

# How long a mount waits for a store that has never answered: a wrong --endpoint is told in seconds.
FIRST_CONTACT_S = 3.0
# Instead of the names of variables that nobody looked at.
_GIVEN_KEYS_HINT = "check the keys that this source was given, and that they may list and read here"


def open_plain_store(source: Source, options: StoreOptions, counters: Counters) -> Store:
    """The same without the patience: each question is asked once. Bodies are checked."""
    store = open_store(source, options, counters)
    if is_verified(options.verify, store.identity):
        return VerifiedStore(store, counters)
    return store


def open_reliable_store(source: Source, options: StoreOptions, counters: Counters) -> PatientStore:
    def open_again() -> Store:
        return open_plain_store(source, options, counters)

    # Those that were handed over cannot be read again; whoever did that hands over others.
    has_credentials = (
        source.scheme in OBJECT_SCHEMES and not options.anonymous and options.keys is None
    )
    return PatientStore(
        open_again(), counters, deadline_s=options.deadline_s,
        reopen=open_again if has_credentials else None,
        denied_hint=None if options.keys is None else _GIVEN_KEYS_HINT,
    )  # fmt: skip
