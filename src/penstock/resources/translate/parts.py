"""The parts of a Dataset: each of its mounts, with its keys, at its path. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.daemon.settings import Part
from penstock.errors import PenstockError, SpecProblem
from penstock.resources.translate.choices import is_mount_option
from penstock.resources.translate.places import locate
from penstock.resources.translate.problems import Said, Written
from penstock.resources.translate.references import Referenced, move_parts, parse_reference
from penstock.specs.dataset import Dataset, EncryptOption
from penstock.specs.keys import ResourceKey
from penstock.specs.models import Runtime

Secret = Callable[[str, str, str], str]  # namespace, name, key
JUICEFS = "JuiceFSRuntime"


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is looked up elsewhere."""

    secret: Secret
    referenced: Callable[[ResourceKey], Referenced | None]
    read_file: Callable[[Path], str]
    store_settings: Callable[[Runtime], Written]  # what a runtime says for the stores of all mounts


def plan_parts(
    dataset: Dataset, runtime: Runtime | None, look: Lookup, said: Said,
    seen: tuple[ResourceKey, ...] = (),
) -> tuple[tuple[Part, ...], Written]:  # fmt: skip
    """The parts, and options that are the mount's own. `seen` are the data sets that led here."""
    if dataset.key in seen:
        chain = " -> ".join(map(str, (*seen, dataset.key)))
        raise SpecProblem("spec.mounts", f"data sets refer to each other in a circle: {chain}")
    of_juicefs = runtime is not None and runtime.kind == JUICEFS
    defaults = Written({}, {}) if runtime is None else look.store_settings(runtime)
    of_mounts = Written({}, {})
    found: dict[str, Part] = {}
    for number, mount in enumerate(dataset.spec.mounts):
        path = f"spec.mounts.{number}"
        # A volume of JuiceFS is the whole of a data set, whatever its name is.
        whole = of_juicefs and len(dataset.spec.mounts) == 1 and not mount.path
        below = "" if whole else mount.place.strip("/")
        options = _options(dataset, number, look.secret)
        if mount.mount_point.startswith("dataset://"):
            parts = _referenced(dataset, number, below, look, seen)
            for name in options.values:
                reason = "the options of the data set that it refers to are used"
                said.no_effect(options.paths[name], reason)
        else:
            place = locate(
                mount.mount_point, options, path, said, defaults=defaults,
                read_file=_file_reader(dataset, runtime, look),
                mount_option=lambda name: is_mount_option(JUICEFS, name),
            )  # fmt: skip
            parts = [Part(below, place.source, place.store)]
            if of_juicefs:
                of_mounts = place.mount_options.over(of_mounts)
            else:
                for where in place.mount_options.paths.values():
                    said.no_effect(where, f"it is for a {JUICEFS}")
        for part in parts:
            if part.path in found:
                what = f"two mounts at /{part.path}"
                raise SpecProblem(path, what, hint="give each a path of its own")
            found[part.path] = part
    return tuple(found.values()), of_mounts


def _referenced(
    dataset: Dataset, number: int, below: str, look: Lookup, seen: tuple[ResourceKey, ...]
) -> list[Part]:
    path = f"spec.mounts.{number}"
    namespace = dataset.metadata.namespace
    key, folder = parse_reference(dataset.spec.mounts[number].mount_point, namespace)
    other = look.referenced(key)
    if other is None:
        hint = "apply it first"
        # The first name is a namespace; people write the data set there, and a folder of it.
        if key.namespace != namespace and look.referenced(
            ResourceKey("Dataset", namespace, key.namespace)
        ):
            meant = "/".join(filter(None, (namespace, key.namespace, key.name, folder)))
            hint = f"did you mean dataset://{meant}?"
        raise SpecProblem(f"{path}.mountPoint", f"there is no {key}", hint=hint)
    parts, _ = plan_parts(other.dataset, other.runtime, look, Said(), (*seen, dataset.key))
    return move_parts(parts, folder, below, key, path)


def _options(dataset: Dataset, number: int, secret: Secret) -> Written:
    """Of one mount: its own before those of all, and Secrets before plain text."""
    spec, mount = dataset.spec, dataset.spec.mounts[number]
    path = f"spec.mounts.{number}"
    written = Written.at(f"{path}.options", mount.options).over(
        Written.at("spec.sharedOptions", spec.shared_options)
    )
    for at, encrypted in (
        ("spec.sharedEncryptOptions", spec.shared_encrypt_options),
        (f"{path}.encryptOptions", mount.encrypt_options),
    ):
        written = _decrypted(dataset, encrypted, at, secret).over(written)
    return written


def _decrypted(
    dataset: Dataset, options: list[EncryptOption], path: str, secret: Secret
) -> Written:
    values: dict[str, str] = {}
    paths: dict[str, str] = {}
    for number, option in enumerate(options):
        reference = option.value_from.secret_key_ref
        paths[option.name] = f"{path}.{number}"
        try:
            values[option.name] = secret(
                dataset.metadata.namespace, reference.name, reference.key or option.name
            )
        except PenstockError as error:
            raise SpecProblem(paths[option.name], str(error), hint=error.hint) from error
    return Written(values, paths)


def _file_reader(dataset: Dataset, runtime: Runtime | None, look: Lookup) -> Callable[[str], str]:
    """Reads a file of this machine, or what a Secret would have put in its place in a pod."""
    mounted = {} if runtime is None else _mounted_secrets(runtime)

    def read(text: str) -> str:
        folder, _, name = text.rpartition("/")
        if folder in mounted:
            return look.secret(dataset.metadata.namespace, mounted[folder], name)
        return look.read_file(Path(text))

    return read


def _mounted_secrets(runtime: Runtime) -> dict[str, str]:
    """By folder: the Secret that a pod of this runtime would see there."""
    secrets: dict[str, str] = {}
    for volume in cast("list[dict[str, Any]]", getattr(runtime.spec, "volumes", [])):
        source = cast("dict[str, Any]", volume.get("secret") or {})
        if "secretName" in source:
            secrets[str(volume.get("name"))] = str(source["secretName"])
    found: dict[str, str] = {}
    for component in ("master", "worker", "fuse"):
        pod: Any = getattr(runtime.spec, component, None)
        for mount in cast("list[dict[str, Any]]", getattr(pod, "volume_mounts", [])):
            name = str(mount.get("name"))
            if name in secrets:
                found[str(mount.get("mountPath", "")).rstrip("/")] = secrets[name]
    return found
