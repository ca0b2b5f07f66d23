"""What every part of a resource is made of: the base model, and how a field says what it means.

A field carries its own documentation: one or two sentences for `penstock explain`, and, where it
changes nothing on one machine, the reason. Both live in the models, so that neither can be
forgotten. Pure.
"""

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

# When a field has no effect. "always", or only with some of its values: four replicas are one
# replica too many for one machine (three, to be exact), one replica is just right.
When = Literal["always", "above one", "false", "writing", "exclusive", "without a secret"]

NO_EFFECT = "x-no-effect"
NO_EFFECT_WHEN = "x-no-effect-when"
REFUSED = "refused"  # the type of our own errors among pydantic's


class Fields(BaseModel):
    """A map with known keys. Written in camelCase, as Kubernetes does; read in snake_case.

    Unknown keys are dropped here, so that the state of a newer release can be read; manifests are
    searched for them before (specs/wording.py).
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,  # the input may be a secret
        defer_build=True,  # a kind that is not met costs nothing: 0.19 s to import, not 0.26
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """`fuse:` with nothing behind it is the same as no `fuse`, as it is in Kubernetes."""
        if not isinstance(value, dict):
            return value
        entries = cast("dict[str, Any]", value)
        return {key: one for key, one in entries.items() if one is not None}


def said(
    text: str,
    *,
    default: Any = None,
    factory: Any = None,
    required: bool = False,
    no_effect: str | None = None,
    when: When = "always",
    alias: str | None = None,
    ge: int | None = None,
    secret: bool = False,
) -> Any:
    """A field, with what it means. `secret`: its value may be one, and stays out of any repr."""
    extra: dict[str, Any] = {}
    if no_effect is not None:
        extra = {NO_EFFECT: no_effect, NO_EFFECT_WHEN: when}
    common: dict[str, Any] = {
        "description": text,
        "json_schema_extra": extra or None,
        "repr": not secret,
    }
    if alias is not None:
        common["alias"] = alias
    if ge is not None:
        common["ge"] = ge
    if required:
        return Field(**common)
    if factory is not None:
        return Field(default_factory=factory, **common)
    return Field(default=default, **common)


def refuse(what: str, hint: str | None = None) -> PydanticCustomError:
    """What a validator raises. Both are literal: no placeholder is looked for in them."""
    return PydanticCustomError(REFUSED, "{what}", {"what": what, "hint": hint})


def _as_text(value: Any) -> Any:
    """Kubernetes wants `"0.95"` in quotes; many write 0.95, and what they mean is clear."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return value


def _as_texts(value: Any) -> Any:
    """`debug:` without a value, as flags are written in options, is an empty one."""
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    return {key: "" if one is None else _as_text(one) for key, one in entries.items()}


def _as_count(value: Any) -> Any:
    if isinstance(value, bool):
        raise refuse("must be a whole number, and is true or false")
    return value


Text = Annotated[str, BeforeValidator(_as_text)]
TextMap = Annotated[dict[str, str], BeforeValidator(_as_texts)]
Count = Annotated[int, BeforeValidator(_as_count)]

# Parts of Kubernetes' own objects: taken as they are, since nothing here depends on them.
FreeMap = dict[str, Any]
FreeList = list[dict[str, Any]]
