"""The environment of commands that users run here, in operations and jobs.

It holds what any command needs of this machine's environment, and what the manifest says; nothing
else of ours, which may hold keys. Imports models only when used: the keepers of jobs start without.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.specs.kinds import ResourceKey
from penstock.store.redaction import remember

if TYPE_CHECKING:
    from penstock.reconcile.state import State
    from penstock.specs.dataset import Env

_INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SHELL",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
)
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def environment(
    variables: Sequence["Env"], where: str, secret: Callable[[str, str], str]
) -> tuple[dict[str, str], list[str]]:
    """Return the environment, and those of its values that are secrets.

    `where`: the path of the variables in the manifest. `secret` returns the value of a (name, key)
    in a Secret of the same namespace.
    """
    from penstock.specs.secret_fields import is_secret

    env = inherited()
    secrets: list[str] = []
    for number, variable in enumerate(variables):
        value = expanded(variable.value, env)
        if (source := variable.value_from) is not None:
            if source.secret_key_ref is None:
                raise UsageError(
                    f"{where}.{number}: the value of {variable.name} is in no Secret",
                    hint="there are no ConfigMaps and no pods here: write its value",
                )
            value = secret(source.secret_key_ref.name, source.secret_key_ref.key)
            secrets.append(value)
        elif is_secret(variable.name, value):
            secrets.append(value)
        env[variable.name] = value
    remember(*secrets)
    return env, secrets


def expanded(text: str, env: Mapping[str, str]) -> str:
    """Expand $(NAME) as Kubernetes does; $$ is a dollar, and an unknown name stays as it is."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return env.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def named_secret(state: "State", namespace: str, name: str, key: str) -> str:
    from penstock.specs.models import Secret, model_of

    found = state.find(ResourceKey("Secret", namespace, name))
    if found is None:
        raise UsageError(f"there is no Secret {namespace}/{name}", hint="apply it")
    secret = model_of(found.manifest, state.secrets(found))
    assert isinstance(secret, Secret)
    return secret.value_of(key)
