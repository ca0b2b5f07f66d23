"""Secret: keys and passwords, apart from the manifests that use them. Pure."""

import base64
import binascii
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from penstock.specs.fields import refuse, said
from penstock.specs.resource import Resource
from penstock.specs.secrets import HIDDEN


def _only_text(value: Any) -> Any:
    """A number is refused: 0123 would be read as 83, and a key that is nearly right is worse than
    none."""
    if value is not None and not isinstance(value, str):
        raise refuse("is not text", "put it in quotes")
    return value or ""


def _base64(text: str) -> str:
    try:
        if text != HIDDEN:
            base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise refuse(
            "is not base64",
            "put plain text under stringData, or encode it: printf %s VALUE | base64",
        ) from None
    return text


SecretText = Annotated[str, BeforeValidator(_only_text)]


class Secret(Resource):
    """Keys and passwords, which mounts name in encryptOptions. Kept sealed on disk, and shown
    nowhere."""

    data: dict[str, Annotated[SecretText, AfterValidator(_base64)]] = said(
        "Names and values, the values in base64.", factory=dict, secret=True
    )
    string_data: dict[str, SecretText] = said(
        "Names and values, as they are; they win over `data`.", factory=dict, secret=True
    )
    type: str = said(
        "Kubernetes' type of the Secret.",
        default="Opaque",
        no_effect="types of Secrets: all are the same here",
    )
    immutable: bool = said(
        "Whether it may be changed.",
        default=False,
        no_effect="immutable: a Secret can be applied anew here",
    )
