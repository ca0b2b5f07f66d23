"""penstock edit: change a declared resource in an editor."""

import os
import tempfile
from typing import Any

import click

from penstock.cli.apply import apply_manifests
from penstock.cli.options import find_kinds, namespace_option
from penstock.cli.output import as_text, notify
from penstock.errors import UsageError

# Set by Penstock: an editor would only show them.
_NOT_GIVEN = ("uid", "creationTimestamp", "generation")


@click.command()
@click.argument("kind")
@click.argument("name")
@namespace_option
def edit(kind: str, name: str, namespace: str | None) -> None:
    """Change a resource in your editor, and apply it.

    The editor is $VISUAL or $EDITOR. Secrets are not shown, and stay as they are. Nothing is
    applied if the file is not changed. A file with a mistake is kept.

    \b
    Example:
      penstock edit dataset imagenet
    """
    from penstock.api import resources

    find_kinds(kind, "edit", namespace)
    shown = resources.get(kind, name, namespace=namespace or "default").as_dict()
    metadata: dict[str, Any] = shown["metadata"]
    given = {key: value for key, value in metadata.items() if key not in _NOT_GIVEN}
    rest = {key: value for key, value in shown.items() if key != "status"}
    text = as_text({**rest, "metadata": given}, "yaml") + "\n"
    changed = click.edit(text, extension=".yaml")
    if changed is None or changed == text:
        notify("not changed")
        return
    descriptor, path = tempfile.mkstemp(prefix=f"penstock-{name}-", suffix=".yaml")
    with os.fdopen(descriptor, "w") as file:
        file.write(changed)
    try:
        apply_manifests([path], namespace)
    except UsageError as error:
        kept = f"your change is in {path}: correct it, then penstock apply -f {path}"
        error.hint = f"{error.hint}; {kept}" if error.hint else kept
        raise
    os.unlink(path)
