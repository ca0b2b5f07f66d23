"""The mountPoint and options of one mount, translated to a source and its store's options. Pure.

Errors never quote the value of an option: it may be a key in the wrong place.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.errors import PenstockError, SpecProblem, did_you_mean
from penstock.fluid.properties import LISTED
from penstock.fluid.stores import FAMILIES, STORAGES, USED, family_of, names_of, why_unused
from penstock.fluid.values import UNKNOWN, Report, Written, misspelled
from penstock.store.connect import StoreOptions, is_address
from penstock.store.credentials import Keys
from penstock.store.etags import VERIFY_MODES
from penstock.store.source import Source, parse_source

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_TRUE, _FALSE = ("true", "yes", "1", ""), ("false", "no", "0")
# Both want the bucket in the host's name, as OSS does.
_CLOUDS = {
    "cos": ("https://cos.{}.myqcloud.com", re.compile(r"cos\.([a-z0-9-]+)\.myqcloud\.")),
    "obs": ("https://obs.{}.myhuaweicloud.com", re.compile(r"obs\.([a-z0-9-]+)\.myhuaweicloud\.")),
}
_GOOGLE_S3 = "https://storage.googleapis.com"
# Keys that need another one. An account name may be set alone.
_NEEDS = {
    "access_key_id": "secret_access_key", "secret_access_key": "access_key_id",
    "session_token": "access_key_id", "account_key": "account_name", "sas_token": "account_name",
}  # fmt: skip
# JuiceFS has one pair of names for the keys of all stores.
_AZURE = {"access_key_id": "account_name", "secret_access_key": "account_key"}
_PLACEHOLDER = "still holds a <PLACEHOLDER>"

_Words = dict[str, tuple[str, str]]  # by meaning: the value, and the path where it is written


@dataclass(frozen=True, slots=True)
class Place:
    source: Source
    store: StoreOptions
    mount_options: Written = field(default_factory=Written)  # those that are not the store's


def locate(
    mount_point: str,
    options: Written,
    path: str,
    report: Report,
    *,
    defaults: Written,
    read_file: Callable[[str], str],
    is_mount_option: Callable[[str], bool],
    volume: str = "",
) -> Place:
    """Translate one mount, which is at `path` in the manifest. `volume` is its name, which Fluid
    gives to the JuiceFS volume.

    `defaults` are options for all mounts of any scheme; this one ignores those that it does not
    know. `is_mount_option` tells whether a name is an option of the mount itself: JuiceFS' users
    write these here too.
    """
    scheme, _, rest = mount_point.partition("://")
    if scheme not in FAMILIES:
        hint = "schemes: " + ", ".join(FAMILIES)
        raise SpecProblem(f"{path}.mountPoint", f"scheme {scheme!r} is not supported", hint=hint)
    family = FAMILIES[scheme]
    found = _check_names(family, scheme, options, path, report, is_mount_option)
    words = _by_meaning(family, options, defaults, report)
    root: str | None = None
    if family == "juicefs":
        bucket = find_bucket(
            _value(words, "storage"), _value(words, "bucket"), rest, f"{path}.options"
        )
        scheme, mount_point, family = bucket.scheme, bucket.address, FAMILIES[bucket.scheme]
        report.note(
            f"{path}: the objects of the bucket are shown as files; no JuiceFS metadata is used"
        )
        if bucket.endpoint is not None:
            words["endpoint"] = (bucket.endpoint, f"{path}.options.bucket")
        whole = find_bucket(_value(words, "storage"), _value(words, "bucket"), volume, path)
        root = _parsed(whole.address, path).prefix
        if family == "az":
            words = {_AZURE.get(name, name): word for name, word in words.items()}
    place = _place(family, scheme, mount_point, words, path, read_file)
    return replace(place, store=replace(place.store, juicefs=root), mount_options=found)


def _check_names(
    family: str,
    scheme: str,
    options: Written,
    path: str,
    report: Report,
    is_mount_option: Callable[[str], bool],
) -> Written:
    """Refuse or report each option that the store does not have; return the mount's own."""
    known = names_of(family)
    found: list[str] = []
    for name in options.values:
        where = options.paths[name]
        if any(fnmatchcase(name, one) for one in known):
            continue
        if family == "dataset":
            report.no_effect(where, "the options of the referenced data set are used")
        elif (reason := why_unused(name, exactly=True)) is not None:
            report.no_effect(where, reason)
        elif family == "juicefs" and is_mount_option(name):
            found.append(name)
        elif (other := family_of(name)) is not None:
            report.no_effect(where, f"it is for {other}:// and this mount is {scheme}://")
        elif (meant := misspelled(name, known)) is not None:
            raise SpecProblem(where, f"{name} is not an option", hint=f"did you mean {meant}?")
        elif (reason := why_unused(name)) is not None:
            report.no_effect(where, reason)
        else:
            hint = did_you_mean(name, known, LISTED)
            raise SpecProblem(where, f"{name} is not an option of {scheme}:// mounts", hint=hint)
    return options.only(found)


def _by_meaning(family: str, options: Written, defaults: Written, report: Report) -> _Words:
    """Return the first name of each meaning that is set; the mount's own win over the defaults."""
    words: _Words = {}
    for written in (options, defaults):
        for meaning, names in USED[family].items():
            there = [one for name in names for one in written.values if fnmatchcase(one, name)]
            for name in there:
                if meaning not in words:
                    words[meaning] = (written.values[name], written.paths[name])
                    if name.startswith("fs.azure."):  # the account is part of the name
                        words.setdefault("account_name", (name.split(".")[4], written.paths[name]))
                elif written is options and written.values[name] != words[meaning][0]:
                    report.no_effect(written.paths[name], f"{words[meaning][1]} sets it already")
    return words


def _place(
    family: str,
    scheme: str,
    mount_point: str,
    words: _Words,
    path: str,
    read_file: Callable[[str], str],
) -> Place:
    rest = mount_point.partition("://")[2]
    if family == "file":
        return Place(_parsed(f"file://{rest}", path), StoreOptions())
    endpoint = _endpoint(words)
    region = _value(words, "region")
    path_style = _flag(words, "path_style")
    keys = _keys(family, words)
    if family in _CLOUDS:
        default, region_in = _CLOUDS[family]
        if endpoint is None and region is None:
            example = default.format("REGION").removeprefix("https://")
            hint = f"{USED[family]['endpoint'][-1]}: {example}"
            raise SpecProblem(f"{path}.options", f"{scheme}:// needs an endpoint", hint=hint)
        endpoint = endpoint or default.format(region)
        if region is None and (match := region_in.search(endpoint)):
            region = match[1]
        path_style = is_address(endpoint) if path_style is None else path_style
        if (app := _value(words, "app_id")) and not rest.partition("/")[0].endswith(f"-{app}"):
            bucket, slash, prefix = rest.partition("/")
            rest = f"{bucket}-{app}{slash}{prefix}"
    elif family == "oss" and endpoint and ".oss-dls." in endpoint:
        raise SpecProblem(
            words["endpoint"][1],
            "this is an address of OSS-HDFS, which is not supported",
            hint="the bucket's own endpoint is like oss-cn-hangzhou.aliyuncs.com",
        )
    elif family == "gs":
        if file := _value(words, "service_account_file"):
            keys["service_account_json"] = _read(file, words["service_account_file"][1], read_file)
        if "access_key_id" in keys:
            # Google's XML interface takes such keys, and speaks S3.
            scheme, family = "s3", "s3"
            endpoint, region = endpoint or _GOOGLE_S3, region or "auto"
    ours = {"s3": "s3", "cos": "s3", "obs": "s3", "https": scheme}.get(family, family)
    store = StoreOptions(
        endpoint=endpoint,
        region=region,
        anonymous=bool(_flag(words, "anonymous")),
        manifest=Path(words["manifest"][0]) if "manifest" in words else None,
        verify=_one_of(words, "verify", VERIFY_MODES) or "auto",
        keys=Keys(**keys) if keys else None,
        path_style=path_style,
    )
    return Place(_parsed(f"{ours}://{rest}", path), store)


def _keys(family: str, words: _Words) -> dict[str, str]:
    keys = {name: value for name in Keys.__slots__ if (value := _value(words, name))}
    for given, needed in _NEEDS.items():
        if given in keys and needed not in keys:
            names = USED[family].get(needed, (needed.replace("_", "-"),))
            raise SpecProblem(
                words[given][1],
                f"it is of no use without its {needed.replace('_', ' ')}",
                hint="set that too: " + ", ".join(names),
            )
    return keys


def _parsed(address: str, path: str) -> Source:
    if "<" in address:
        hint = "put the name of your bucket there"
        raise SpecProblem(f"{path}.mountPoint", _PLACEHOLDER, hint=hint)
    try:
        return parse_source(address)
    except PenstockError as error:
        raise SpecProblem(f"{path}.mountPoint", str(error), hint=error.hint) from error


def _endpoint(words: _Words) -> str | None:
    """Return the endpoint with its scheme: https unless it is on this machine or `tls` is off."""
    text = _value(words, "endpoint")
    if text is None:
        return None
    path = words["endpoint"][1]
    bare = "://" not in text
    url = f"https://{text}" if bare else text
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid, parts = False, None
    if parts is not None and "@" in parts.netloc:
        what = "an address must not hold keys"
        raise SpecProblem(path, what, hint="name a Secret in encryptOptions")
    if not valid or set(url) & set(" \t\n<>"):
        hint = "write it like oss-cn-hangzhou.aliyuncs.com or http://127.0.0.1:9000"
        raise SpecProblem(path, "is not an address", hint=hint)
    tls = _flag(words, "tls")
    if bare and (tls is False or (tls is None and _is_local(url))):
        url = f"http://{text}"
    return url.rstrip("/")


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in _THIS_MACHINE


def _value(words: _Words, meaning: str) -> str | None:
    return words[meaning][0].strip() or None if meaning in words else None


def _flag(words: _Words, meaning: str) -> bool | None:
    if meaning not in words:
        return None
    text, path = words[meaning]
    if text == UNKNOWN:
        return None
    if text.strip().lower() not in (*_TRUE, *_FALSE):
        raise SpecProblem(path, "is neither true nor false", hint='write "true" or "false"')
    return text.strip().lower() in _TRUE


def _one_of(words: _Words, meaning: str, choices: tuple[str, ...]) -> str | None:
    text = _value(words, meaning)
    if text == UNKNOWN:
        return None
    if text is not None and text not in choices:
        raise SpecProblem(words[meaning][1], f"must be one of {', '.join(choices)}")
    return text


def _read(file: str, path: str, read_file: Callable[[str], str]) -> str:
    try:
        return read_file(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = "put the file there, or its content into a Secret: service-account-json"
        raise SpecProblem(path, f"the file cannot be read: {reason}", hint=hint) from error


# -- the bucket of a JuiceFS volume, from the options of `juicefs format` ----------------------

# The kind of store by its host, where `storage` is not set.
_HOSTS = (
    ("aliyuncs.com", "oss"), ("bcebos.com", "bos"), ("myqcloud.com", "cos"),
    ("myhuaweicloud.com", "obs"), ("core.windows.net", "wasb"),
)  # fmt: skip
# A bucket of AWS may have dots in its name; the host begins at S3's own name.
_AMAZON = re.compile(r"^(?P<bucket>.+?)\.(?P<host>s3(?:[.-][a-z0-9.-]+)?\.amazonaws\.com[a-z.]*)$")
_BUCKET_HINT = "write it like https://bucket.s3.us-east-2.amazonaws.com or http://host:9000/bucket"


class Bucket(NamedTuple):
    scheme: str
    address: str  # s3://bucket/prefix
    endpoint: str | None


def find_bucket(storage: str | None, bucket: str | None, folder: str, path: str) -> Bucket:
    """Return the bucket. `path` is where the options are written, `folder` follows juicefs://."""
    if not bucket:
        raise SpecProblem(
            path,
            "juicefs:// names no bucket",
            hint="objects are read in place, without JuiceFS' metadata engine: "
            "name the bucket in options.bucket, and its keys in access-key and secret-key",
        )
    if "<" in bucket:
        hint = "put the address of your bucket there"
        raise SpecProblem(f"{path}.bucket", _PLACEHOLDER, hint=hint)
    if not re.fullmatch(r"[\w.:/-]+", bucket):
        raise SpecProblem(f"{path}.bucket", "is not an address of a bucket", hint=_BUCKET_HINT)
    given_scheme, separator, rest = bucket.partition("://")
    address = rest if separator else bucket
    kind = (
        "s3"
        if storage == UNKNOWN
        else storage or _kind_of(given_scheme if separator else "", address)
    )
    if kind not in STORAGES:
        hint = "storages: " + ", ".join(STORAGES)
        raise SpecProblem(f"{path}.storage", f"storage {kind!r} is not supported", hint=hint)
    scheme = STORAGES[kind]
    prefix = folder.strip("/")
    if scheme == "file":
        return Bucket("file", f"file://{_joined('/' + address.strip('/'), prefix)}", None)
    if scheme == "gs" or not set("/.:") & set(address.strip("/")):
        name, _, inside = address.strip("/").partition("/")
        return Bucket(scheme, f"{scheme}://{_joined(name, inside, prefix)}", None)
    url = urlsplit(f"{given_scheme if given_scheme in ('http', 'https') else 'https'}://{address}")
    name, host, inside = _split(url.netloc, url.path.strip("/"), kind)
    if not name:
        raise SpecProblem(f"{path}.bucket", "names a host, but no bucket", hint=_BUCKET_HINT)
    endpoint = None if scheme == "az" else f"{url.scheme}://{host}"
    return Bucket(scheme, f"{scheme}://{_joined(name, inside, prefix)}", endpoint)


def _kind_of(scheme: str, address: str) -> str:
    if scheme in STORAGES:
        return scheme
    if address.startswith("/"):
        return "file"
    host = urlsplit(f"//{address}").hostname or ""
    return next((kind for end, kind in _HOSTS if host.endswith(end)), "s3")


def _split(host: str, path: str, kind: str) -> tuple[str, str, str]:
    """Return the bucket's name, the host without it, and the prefix in the bucket."""
    if path:
        names = path.split("/")
        # MinIO's own web page shows buckets below /minio, and people copy that address.
        if kind == "minio" and len(names) > 1 and names[0] == "minio":
            names = names[1:]
        return names[0], host, "/".join(names[1:])
    if match := _AMAZON.match(host):
        return match["bucket"], match["host"], ""
    name, _, rest = host.partition(".")
    return (name, rest, "") if "." in rest else ("", host, "")


def _joined(*names: str) -> str:
    return "/".join(name.rstrip("/") for name in names if name)
