"""Settings as JSON, for the way from whoever mounts through the supervisor to a server.

The server may be of a newer release than what wrote them: what it does not
know is left out, and what is missing has its default.
"""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from penstock.cache.tier import TierSpec
from penstock.daemon.settings import MountSettings, Part
from penstock.store.connect import StoreOptions
from penstock.store.keys import Keys
from penstock.store.source import Source


def encode(settings: MountSettings) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(settings), default=str))


def decode(data: dict[str, Any]) -> MountSettings:
    known = _known(MountSettings, data)
    parts = data.get("parts")
    if parts is None:  # from before a mount had several
        parts = [{"path": "", "source": data["source"], "store": data["store"]}]
    known["parts"] = tuple(map(_part, parts))
    known["mountpoint"] = Path(data["mountpoint"])
    known["tiers"] = tuple(map(_tier, data["tiers"]))
    return MountSettings(**known)


def _part(data: dict[str, Any]) -> Part:
    store = _known(StoreOptions, data["store"])
    if store.get("manifest") is not None:
        store["manifest"] = Path(store["manifest"])
    if store.get("keys") is not None:
        store["keys"] = Keys(**_known(Keys, store["keys"]))
    source = Source(**_known(Source, data["source"]))
    return Part(data["path"], source, StoreOptions(**store))


def _tier(data: dict[str, Any]) -> TierSpec:
    known = _known(TierSpec, data)
    known["paths"] = tuple(map(Path, known["paths"]))
    return TierSpec(**known)


def _known(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
