"""Where the data of one mount is: its mountPoint and options as a source and its store's options.

Pure. No value of an option stands in an error: it may be a key in the wrong place.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from penstock.errors import PenstockError, SpecProblem, did_you_mean
from penstock.fluid.properties import LISTED
from penstock.fluid.stores import FAMILIES, USED, family_of, find_bucket, names_of, why_unused
from penstock.fluid.values import Said, Written, misspelled
from penstock.store.connect import StoreOptions
from penstock.store.keys import Keys
from penstock.store.source import Source, parse_source
from penstock.store.versions import WAYS

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_TRUE, _FALSE = ("true", "yes", "1", ""), ("false", "no", "0")
# Both want the bucket in the host's name, as OSS does.
_CLOUDS = {
    "cos": ("https://cos.{}.myqcloud.com", re.compile(r"cos\.([a-z0-9-]+)\.myqcloud\.")),
    "obs": ("https://obs.{}.myhuaweicloud.com", re.compile(r"obs\.([a-z0-9-]+)\.myhuaweicloud\.")),
}
_GOOGLE_S3 = "https://storage.googleapis.com"
# Neither is anything without the other; an account's name may stand alone.
_NEEDS = {
    "access_key_id": "secret_access_key", "secret_access_key": "access_key_id",
    "session_token": "access_key_id", "account_key": "account_name", "sas_token": "account_name",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    source: Source
    store: StoreOptions
    mount_options: Written = field(default_factory=lambda: Written({}, {}))  # not of the store


def locate(
    mount_point: str,
    options: Written,
    path: str,
    said: Said,
    *,
    defaults: Written,
    read_file: Callable[[str], str],
    mount_option: Callable[[str], bool],
) -> Place:
    """`path` is that of the mount. `defaults` are options that were said for all mounts, of any
    scheme: those that this one does not know are not its business. `mount_option` tells whether a
    name is an option of the mount itself, which JuiceFS' users write here too."""
    scheme, _, rest = mount_point.partition("://")
    if scheme not in FAMILIES:
        hint = "schemes: " + ", ".join(FAMILIES)
        raise SpecProblem(f"{path}.mountPoint", f"scheme {scheme!r} is not read", hint=hint)
    family = FAMILIES[scheme]
    found = _sort(family, scheme, options, path, said, mount_option)
    words = _chosen(family, options, defaults, said)
    if family == "juicefs":
        bucket = find_bucket(
            _value(words, "storage"), _value(words, "bucket"), rest, f"{path}.options"
        )
        scheme, mount_point, family = bucket.scheme, bucket.address, FAMILIES[bucket.scheme]
        said.note(
            f"{path}: the objects of the bucket are shown as files; no JuiceFS metadata is used"
        )
        if bucket.endpoint is not None:
            words["endpoint"] = (bucket.endpoint, f"{path}.options.bucket")
        if family == "az":
            words = {_AZURE.get(name, name): word for name, word in words.items()}
    return replace(_place(family, scheme, mount_point, words, path, read_file), mount_options=found)


# JuiceFS has one pair of names for the keys of all stores.
_AZURE = {"access_key_id": "account_name", "secret_access_key": "account_key"}
_Words = dict[str, tuple[str, str]]  # by meaning: the value, and where it was written


def _sort(
    family: str,
    scheme: str,
    options: Written,
    path: str,
    said: Said,
    mount_option: Callable[[str], bool],
) -> Written:
    """Looks at each name; returns those that are the mount's own."""
    known = names_of(family)
    found: dict[str, str] = {}
    for name, value in options.values.items():
        where = options.paths[name]
        if any(fnmatchcase(name, one) for one in known):
            continue
        if family == "dataset":
            said.no_effect(where, "the options of the data set that it refers to are used")
        elif (reason := why_unused(name, exactly=True)) is not None:
            said.no_effect(where, reason)
        elif family == "juicefs" and mount_option(name):
            found[name] = value
        elif (other := family_of(name)) is not None:
            said.no_effect(where, f"it is for {other}:// and this mount is {scheme}://")
        elif (slip := misspelled(name, known)) is not None:
            raise SpecProblem(where, f"{name} is not an option", hint=f"did you mean {slip}?")
        elif (reason := why_unused(name)) is not None:
            said.no_effect(where, reason)
        else:
            hint = did_you_mean(name, known, LISTED)
            raise SpecProblem(where, f"{name} is not an option of {scheme}:// mounts", hint=hint)
    return Written(found, {name: options.paths[name] for name in found})


def _chosen(family: str, options: Written, defaults: Written, said: Said) -> _Words:
    """The first name of each meaning that is there; what was said for this mount before what was
    said for all."""
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
                    said.no_effect(written.paths[name], f"{words[meaning][1]} says it already")
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
    keys = {name: value for name in Keys.__slots__ if (value := _value(words, name))}
    for here, missing in _NEEDS.items():
        if here in keys and missing not in keys:
            names = USED[family].get(missing, (missing.replace("_", "-"),))
            raise SpecProblem(
                words[here][1],
                f"without its {missing.replace('_', ' ')} it opens nothing",
                hint="say it too: " + ", ".join(names),
            )
    if family in _CLOUDS:
        usual, region_in = _CLOUDS[family]
        if endpoint is None and region is None:
            raise SpecProblem(
                f"{path}.options",
                f"{scheme}:// needs an endpoint",
                hint=f"{USED[family]['endpoint'][-1]}: {usual.format('REGION').removeprefix('https://')}",
            )
        endpoint = endpoint or usual.format(region)
        if region is None and (match := region_in.search(endpoint)):
            region = match[1]
        path_style = _is_here(endpoint) if path_style is None else path_style
        if (app := _value(words, "app_id")) and not rest.partition("/")[0].endswith(f"-{app}"):
            bucket, slash, prefix = rest.partition("/")
            rest = f"{bucket}-{app}{slash}{prefix}"
    elif family == "oss" and endpoint and ".oss-dls." in endpoint:
        raise SpecProblem(
            words["endpoint"][1],
            "this is the address of OSS-HDFS, which is not read",
            hint="the bucket's own endpoint is like oss-cn-hangzhou.aliyuncs.com",
        )
    elif family == "gs":
        if file := _value(words, "service_account_file"):
            keys["service_account_json"] = _read(file, words["service_account_file"][1], read_file)
        if "access_key_id" in keys:
            # Google's own XML interface takes such keys, and speaks S3.
            scheme, family = "s3", "s3"
            endpoint, region = endpoint or _GOOGLE_S3, region or "auto"
    ours = {"s3": "s3", "cos": "s3", "obs": "s3", "https": scheme}.get(family, family)
    store = StoreOptions(
        endpoint=endpoint,
        region=region,
        anonymous=bool(_flag(words, "anonymous")),
        manifest=Path(words["manifest"][0]) if "manifest" in words else None,
        verify=_one_of(words, "verify", WAYS) or "auto",
        keys=Keys(**keys) if keys else None,
        path_style=path_style,
    )
    return Place(_parsed(f"{ours}://{rest}", path), store)


def _parsed(address: str, path: str) -> Source:
    if "<" in address:
        raise SpecProblem(
            f"{path}.mountPoint", "still holds a <PLACEHOLDER>", hint="put your bucket's name there"
        )
    try:
        return parse_source(address)
    except PenstockError as error:
        raise SpecProblem(f"{path}.mountPoint", str(error), hint=error.hint) from error


def _endpoint(words: _Words) -> str | None:
    """An address with its http:// or https://. Plain HTTP leaves the machine only if said so."""
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
        what = "credentials do not belong in an address"
        raise SpecProblem(path, what, hint="name a Secret in encryptOptions")
    if not valid or set(url) & set(" \t\n<>"):
        hint = "write it like oss-cn-hangzhou.aliyuncs.com or http://127.0.0.1:9000"
        raise SpecProblem(path, "is no address", hint=hint)
    tls = _flag(words, "tls")
    if bare and (tls is False or (tls is None and _is_here(url))):
        url = f"http://{text}"
    return url.rstrip("/")


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in _THIS_MACHINE


def _value(words: _Words, meaning: str) -> str | None:
    return words[meaning][0].strip() or None if meaning in words else None


def _flag(words: _Words, meaning: str) -> bool | None:
    if meaning not in words:
        return None
    text, path = words[meaning]
    if text.strip().lower() not in (*_TRUE, *_FALSE):
        raise SpecProblem(path, "is neither true nor false", hint='write "true" or "false"')
    return text.strip().lower() in _TRUE


def _one_of(words: _Words, meaning: str, choices: tuple[str, ...]) -> str | None:
    text = _value(words, meaning)
    if text is not None and text not in choices:
        raise SpecProblem(words[meaning][1], f"is none of {', '.join(choices)}")
    return text


def _read(file: str, path: str, read_file: Callable[[str], str]) -> str:
    try:
        return read_file(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = "put the file there, or what it holds into a Secret: service-account-json"
        raise SpecProblem(path, f"the file cannot be read: {reason}", hint=hint) from error
