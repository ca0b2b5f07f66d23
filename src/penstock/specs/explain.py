"""Explain a field: its type, its meaning, and whether it has an effect here. Pure."""

from dataclasses import dataclass, field
from inspect import cleandoc

from penstock.errors import ManifestError, did_you_mean
from penstock.specs.fields import Fields
from penstock.specs.kinds import KINDS, find_kind
from penstock.specs.models import MODELS
from penstock.specs.schema import Shape, shapes_of


@dataclass(frozen=True, slots=True)
class Explanation:
    kind: str
    path: str  # "" for the kind itself
    type: str
    description: str
    effect: str | None  # why it has no effect here; None: it has one
    required: bool = False
    groups: tuple[str, ...] = ()  # apiVersions, of a kind
    fields: list["Explanation"] = field(default_factory=list["Explanation"])  # below it

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2] or self.kind


def explain(path: str, *, recursive: bool = False) -> Explanation:
    """Explain `dataset` or `dataset.spec.mounts`; the path may have numbers or [] of list items."""
    word, _, rest = path.strip().replace("[]", "").partition(".")
    info = find_kind(word)
    model: type[Fields] = MODELS[info.kind]
    steps = [step for step in rest.split(".") if step and not step.isdigit()]
    depth = 1000 if recursive else 1
    if not steps:
        return Explanation(
            info.kind,
            "",
            "resource",
            cleandoc(model.__doc__ or ""),
            None,
            groups=info.groups,
            fields=_below(info.kind, model, "", None, depth),
        )
    shape: Shape | None = None
    inside: type[Fields] | None = model
    reason: str | None = None
    for index, step in enumerate(steps):
        above = ".".join(steps[:index])
        shape = _step(info.kind, inside, above, step)
        reason = reason or shape.no_effect
        inside = shape.model
    assert shape is not None
    whole = ".".join(steps)
    return _explanation(info.kind, whole, shape, reason, depth)


def explain_all() -> list[Explanation]:
    """Explain every kind with all its fields."""
    return [explain(kind, recursive=True) for kind in KINDS]


def _step(kind: str, inside: type[Fields] | None, above: str, step: str) -> Shape:
    if inside is None:
        raise ManifestError(f"{kind.lower()}.{above} has no fields of its own")
    shapes = shapes_of(inside)
    for name, shape in shapes.items():
        if name.lower() == step.lower():
            return shape
    where = f"{kind.lower()}.{above}" if above else kind.lower()
    hint = did_you_mean(step, shapes, f"its fields: {', '.join(shapes)}")
    raise ManifestError(f"{where} has no field {step!r}", hint=hint)


def _explanation(kind: str, path: str, shape: Shape, reason: str | None, depth: int) -> Explanation:
    return Explanation(
        kind,
        path,
        shape.type_name,
        shape.description,
        _effect(shape, reason),
        shape.required,
        fields=_below(kind, shape.model, path, reason, depth),
    )


_WHEN = {
    "above one": "more than one",
    "false": "false",
    "writing": "write access",
    "exclusive": "Exclusive",
    "without a secret": "a volume that is not a Secret",
}


def _effect(shape: Shape, reason: str | None) -> str | None:
    if reason is not None and reason == shape.no_effect and shape.when in _WHEN:
        return f"{_WHEN[shape.when]} has no effect ({reason})"
    return reason and f"no effect ({reason})"


def _below(
    kind: str, model: type[Fields] | None, path: str, reason: str | None, depth: int
) -> list[Explanation]:
    if model is None or depth == 0:
        return []
    return [
        _explanation(
            kind, f"{path}.{name}" if path else name, shape, reason or shape.no_effect, depth - 1
        )
        for name, shape in shapes_of(model).items()
        if name not in _NOT_SHOWN or path
    ]


_NOT_SHOWN = ("status",)
