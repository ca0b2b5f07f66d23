"""The environment of what users run here: what a command needs of this machine's, and what its
manifest says. Nothing of our own environment that might be a key."""

import os
import re
from collections.abc import Callable, Mapping, Sequence

from penstock.errors import UsageError
from penstock.reconcile.state import State
from penstock.specs.dataset import Env
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import Secret, model_of
from penstock.specs.secret_fields import is_secret
from penstock.store.redaction import remember

# What a command needs of this machine's environment, and nothing that might be a key.

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


def inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def environment(
    variables: Sequence[Env], where: str, secret: Callable[[str, str], str]
) -> tuple[dict[str, str], list[str]]:
    """And those of its values that are secrets. `where`: of these variables in the manifest;
    `secret` gets the name and the key of one in the same namespace."""
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
    """$(NAME) as Kubernetes has it; $$ is a dollar."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return env.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def named_secret(state: State, namespace: str, name: str, key: str) -> str:
    found = state.find(ResourceKey("Secret", namespace, name))
    if found is None:
        raise UsageError(f"there is no Secret {namespace}/{name}", hint="apply it")
    secret = model_of(found.manifest, state.secrets(found))
    assert isinstance(secret, Secret)
    return secret.value_of(key)
