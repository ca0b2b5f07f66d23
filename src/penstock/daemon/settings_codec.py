"""Settings as JSON, for the way from the command line through the supervisor to a server.

The server may be of a newer release than the command line that wrote them: what it does not
know is left out, and what is missing has its default.
"""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from penstock.cache.tier import TierSpec
from penstock.daemon.settings import MountSettings
from penstock.store.connect import StoreOptions
from penstock.store.source import Source


def encode(settings: MountSettings) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(settings), default=str))


def decode(data: dict[str, Any]) -> MountSettings:
    known = _known(MountSettings, data)
    store = _known(StoreOptions, data["store"])
    if store.get("manifest") is not None:
        store["manifest"] = Path(store["manifest"])
    known["source"] = Source(**_known(Source, data["source"]))
    known["mountpoint"] = Path(data["mountpoint"])
    known["store"] = StoreOptions(**store)
    known["tiers"] = tuple(map(_tier, data["tiers"]))
    return MountSettings(**known)


def _tier(data: dict[str, Any]) -> TierSpec:
    known = _known(TierSpec, data)
    known["paths"] = tuple(map(Path, known["paths"]))
    return TierSpec(**known)


def _known(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
