"""Where the API server is and how to authenticate: from a pod's service account or a kubeconfig.

Reads files only; sends nothing. Supports tokens and client certificates. Programs that print
credentials (`exec`) are not started: the operator runs in a pod.
"""

import base64
import binascii
import os
import ssl
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from penstock.errors import UsageError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Connection:
    server: str  # https://10.96.0.1:443, without a slash at its end
    tls: ssl.SSLContext | None  # None for http
    token: Callable[[], str | None]  # called for each request: tokens rotate
    namespace: str = "default"


def connection_from_environment(
    kubeconfig: Path | None = None, context: str | None = None
) -> Connection:
    """Return the connection of `kubeconfig`, $KUBECONFIG, this pod or ~/.kube/config.

    The first of them that exists wins, as with kubectl.
    """
    if kubeconfig is not None:
        return connection_from_files([kubeconfig], context)
    if listed := [Path(one) for one in os.environ.get("KUBECONFIG", "").split(":") if one]:
        return connection_from_files(listed, context)
    if context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return connection_of_pod(SERVICE_ACCOUNT)
    own = Path("~/.kube/config").expanduser()
    if not own.exists():
        raise UsageError(
            "no cluster is configured: neither KUBECONFIG nor ~/.kube/config nor a pod's account",
            hint="set KUBECONFIG to the file that kubectl uses",
        )
    return connection_from_files([own], context)


def connection_of_pod(account: Path) -> Connection:
    """Return the connection of the pod that this process runs in."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = TokenFile(account / "token")
    token()  # fail now, not at the first request
    namespace = account / "namespace"
    return Connection(
        server=f"https://{host}:{port}",
        tls=_tls(cafile=account / "ca.crt"),
        token=token,
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def connection_from_files(files: list[Path], context: str | None = None) -> Connection:
    """Return the connection of a context of some kubeconfig files; by default the current one.

    An entry in an earlier file wins over one of the same name in a later file.
    """
    entries = _Entries(files)
    name = context or entries.current_context
    if not name:
        raise UsageError(
            f"{entries.where} names no current context",
            hint="choose one: kubectl config use-context NAME",
        )
    chosen = entries.find("contexts", "context", name)
    cluster = entries.find("clusters", "cluster", str(chosen.get("cluster", "")))
    user_name = str(chosen.get("user") or "")
    user = entries.find("users", "user", user_name) if user_name else {}
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise UsageError(f"{entries.where}: context {name}: server {server!r} is not an address")
    if "exec" in user or "auth-provider" in user:
        raise UsageError(
            f"{entries.where}: user {user_name} gets its credentials from a program",
            hint="use a token: kubectl create token SERVICEACCOUNT",
        )
    tls = _tls_of(cluster, user, entries.where) if server.startswith("https://") else None
    return Connection(
        server=server,
        tls=tls,
        token=_token_of(user),
        namespace=str(chosen.get("namespace") or "default"),
    )


class TokenFile:
    """The token in a file, read again when the file changes: the kubelet renews it every hour."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        try:
            found = self._path.stat()
            seen = (found.st_mtime_ns, found.st_ino)
            with self._lock:
                if seen != self._seen:
                    self._token = self._path.read_text().strip()
                    self._seen = seen
                return self._token
        except OSError as error:
            raise UsageError(
                f"the service account's token {self._path} cannot be read: {error.strerror}",
                hint="the pod needs automountServiceAccountToken: true",
            ) from error


class _Entries:
    """The clusters, users and contexts of one or more kubeconfig files."""

    def __init__(self, files: list[Path]) -> None:
        self.where = ", ".join(map(str, files))
        self.current_context = ""
        self._found: dict[tuple[str, str], Json] = {}
        for file in files:
            self._read(file)

    def find(self, section: str, key: str, name: str) -> Json:
        if (found := self._found.get((section, name))) is None:
            known = sorted(one for where, one in self._found if where == section)
            raise UsageError(
                f"{self.where} has no {key} {name!r}", hint=f"it has: {', '.join(known) or 'none'}"
            )
        return found

    def _read(self, file: Path) -> None:
        try:
            content: Any = yaml.safe_load(file.read_text())
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(
                f"the kubeconfig {file} cannot be read: {error}", hint="set KUBECONFIG to another"
            ) from error
        if not isinstance(content, dict):
            raise UsageError(f"{file} is not a kubeconfig")
        config = cast("Json", content)
        self.current_context = self.current_context or str(config.get("current-context") or "")
        for section, key in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            for entry in cast("list[Json]", config.get(section) or []):
                value = {one: _absolute(one, text, file) for one, text in entry[key].items()}
                self._found.setdefault((section, str(entry["name"])), value)


_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def _absolute(key: str, value: Any, file: Path) -> Any:
    """Return a file's path relative to the kubeconfig that names it."""
    return str(file.parent / str(value)) if key in _FILES and value else value


def _token_of(user: Mapping[str, Any]) -> Callable[[], str | None]:
    if token := user.get("token"):
        return lambda: str(token)
    if file := user.get("tokenFile"):
        return TokenFile(Path(str(file)))
    return lambda: None


def _tls_of(cluster: Mapping[str, Any], user: Mapping[str, Any], where: str) -> ssl.SSLContext:
    authority = cluster.get("certificate-authority")
    data = cluster.get("certificate-authority-data")
    tls = _tls(
        cafile=Path(str(authority)) if authority and not data else None,
        cadata=_decoded(str(data), where) if data else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    # OpenSSL takes a client certificate only from files.
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        certificate = _file_of(user, "client-certificate", Path(folder), where)
        key = _file_of(user, "client-key", Path(folder), where)
        if certificate is not None:
            try:
                tls.load_cert_chain(certificate, key)
            except OSError as error:  # ssl.SSLError too
                raise UsageError(f"{where}: the client certificate cannot be read") from error
    return tls


def _tls(*, cafile: Path | None = None, cadata: str | None = None) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=cafile, cadata=cadata)
    except OSError as error:
        raise UsageError(
            f"the cluster's certificate authority cannot be read: {cafile or 'in the kubeconfig'}"
        ) from error
    # From Python 3.13 on the default; certificates of older kubeadm clusters fail it.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def _file_of(user: Mapping[str, Any], key: str, folder: Path, where: str) -> Path | None:
    if data := user.get(f"{key}-data"):
        file = folder / key
        file.touch(mode=0o600)
        file.write_text(_decoded(str(data), where))
        return file
    return Path(str(user[key])) if user.get(key) else None


def _decoded(data: str, where: str) -> str:
    try:
        return base64.b64decode("".join(data.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: certificate data is not base64") from error
