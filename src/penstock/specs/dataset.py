"""Dataset: the sources of data, their keys, and the nodes that may mount them. Pure."""

import posixpath
import re
from typing import Annotated, Literal

from pydantic import AfterValidator

from penstock.errors import nearest
from penstock.specs.fields import Count, Fields, FreeMap, Text, TextMap, field, invalid
from penstock.specs.resource import Resource

# -- schemes of a mountPoint, and what to write instead of one that is not supported ------------

SCHEMES = (
    "s3",
    "s3a",
    "minio",
    "oss",
    "bos",
    "gs",
    "az",
    "cos",
    "cosn",
    "obs",
    "http",
    "https",
    "file",
    "local",
    "dataset",
    "juicefs",
)

_S3_ELSEWHERE = "it speaks S3: write s3://BUCKET/PREFIX and set its endpoint in options"
_A_FOLDER = "mount it on this machine, and name the folder: local:///FOLDER"
_INSTEAD = {
    "tos": _S3_ELSEWHERE,
    "ks3": _S3_ELSEWHERE,
    "s3n": "write s3://BUCKET/PREFIX",
    "gcs": "write gs://BUCKET/PREFIX",
    "wasb": "write az://CONTAINER/PREFIX",
    "wasbs": "write az://CONTAINER/PREFIX",
    "abfs": "write az://CONTAINER/PREFIX",
    "abfss": "write az://CONTAINER/PREFIX",
    "adl": "write az://CONTAINER/PREFIX",
    "hdfs": "mount HDFS on this machine (its NFS gateway, or fuse-dfs), "
    "and name the folder: local:///FOLDER",
    "pvc": "one machine has no volume claims; name the folder: local:///FOLDER",
    "nfs": _A_FOLDER,
    "ceph": _A_FOLDER,
    "cephfs": _A_FOLDER,
    "glusterfs": _A_FOLDER,
    "lustre": _A_FOLDER,
    "cpfs": _A_FOLDER,
    "efs": _A_FOLDER,
    "cubefs": _A_FOLDER,
    "alluxio": "name the store behind it",
    "ftp": "serve it over http://",
    "sftp": _A_FOLDER,
}


_CLAIM_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


def wrong_with(address: str, *, allowed: tuple[str, ...] = SCHEMES) -> tuple[str, str] | None:
    """Return what is wrong with an address and what to do; None if it is right.

    The texts quote nothing of the address that may be a secret.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        if address.startswith("/"):
            return "is a folder without a scheme", f"write local://{address.split('@')[0]}"
        if re.match(r"^[\w.-]+:/", address):
            return "looks like an NFS export, without a scheme", _A_FOLDER
        return "has no scheme", f"write it like s3://BUCKET/PREFIX; schemes: {', '.join(allowed)}"
    if scheme.lower() not in allowed or scheme != scheme.lower():
        near = nearest(scheme, allowed)
        hint = _INSTEAD.get(scheme.lower()) or (
            f"did you mean {near}://?" if near else f"schemes: {', '.join(allowed)}"
        )
        return f"scheme {scheme[:30]!r} is not supported", hint
    if re.search(r"<[^<>]+>", rest):
        return "still holds a <PLACEHOLDER>", "put the name of your bucket or folder there"
    if "@" in rest.split("/")[0]:
        return "holds a user or a key", "put keys into a Secret, and name it in encryptOptions"
    if scheme in ("http", "https") and "?" in rest:  # in a signed address it is the signature
        return "has a query", "name the folder alone; keys and tokens go into a Secret"
    if scheme in ("file", "local"):
        if not rest.startswith("/"):
            return "is not an absolute path", f"write {scheme}:///{rest}"
    elif not rest.strip("/") and scheme != "juicefs":
        return "names no bucket", f"write it like {scheme}://BUCKET/PREFIX"
    return None


class SecretKeyRef(Fields):
    name: str = field("Name of the Secret, in the same namespace.", required=True)
    key: str = field("Which of its keys.", default="")


class ValueFrom(Fields):
    secret_key_ref: SecretKeyRef = field("Secret and key that hold the value.", required=True)


class EncryptOption(Fields):
    """An option whose value is in a Secret."""

    name: str = field("Name of the option, as it would stand in `options`.", required=True)
    value_from: ValueFrom = field("Where the value is.", required=True)


CLAIM = "pvc://"  # a volume claim: only a cluster has them


def _mount_point(text: str) -> str:
    if text.startswith(CLAIM):
        if not _CLAIM_NAME.fullmatch(text.removeprefix(CLAIM).partition("/")[0]):
            raise invalid("names no volume claim", "write it like pvc://NAME/FOLDER")
        return text
    if (wrong := wrong_with(text)) is not None:
        raise invalid(*wrong)
    return text


def _mount_path(text: str) -> str:
    if not text:
        return text
    if not text.startswith("/"):
        raise invalid(f"{text!r} is not an absolute path", f"write /{text}")
    parts = text.strip("/").split("/") if text != "/" else []
    if any(part in ("", ".", "..") for part in parts) or "\0" in text:
        raise invalid(f"{text!r} is not a path below the data set", "write it like /images/train")
    return text


def _mount_name(text: str) -> str:
    if "/" in text or "\0" in text or text in (".", ".."):
        raise invalid(
            f"{text!r} is not a name",
            "it becomes a folder, so it has no slashes; use path for /a/b",
        )
    return text


class Mount(Fields):
    mount_point: Annotated[str, AfterValidator(_mount_point)] = field(
        "Source of the data: s3://bucket/prefix, oss://, gs://, az://, http(s)://, a folder on "
        "this machine (local:///folder), another data set (dataset://namespace/name) or, on a "
        "cluster, a volume claim (pvc://name/folder).",
        required=True,
    )
    name: Annotated[str, AfterValidator(_mount_name)] = field(
        "Name of this mount. It appears as the folder /NAME, unless `path` is set.", default=""
    )
    path: Annotated[str, AfterValidator(_mount_path)] = field(
        "Where in the data set it appears; `/` is the root. By default /NAME.", default=""
    )
    options: TextMap = field(
        "Endpoint, region and keys, under the names of Alluxio, Jindo or JuiceFS. "
        "Better keep keys in a Secret (encryptOptions).",
        factory=dict,
        secret=True,
    )
    encrypt_options: list[EncryptOption] = field(
        "Options whose values are in Secrets. They win over `options`.", factory=list
    )
    read_only: bool = field("Ignored: mounts are always read-only.", default=False)
    shared: bool = field(
        "Whether other users may read it.",
        default=False,
        no_effect="sharing: the owner and mode of the files decide who may read",
    )

    @property
    def place(self) -> str:
        """Its path in the data set: absolute, without a slash at its end; "/" for the root."""
        return posixpath.normpath("/" + (self.path or self.name).strip("/"))


class User(Fields):
    uid: Count | None = field("User id.", ge=0)
    gid: Count | None = field("Group id.", ge=0)
    user: str = field("Name of the user; only the id is used.", default="")
    group: str = field("Name of the group; only the id is used.", default="")


class Requirement(Fields):
    key: str = field("A label of the node, or metadata.name among matchFields.", required=True)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = field(
        "How the label is compared with the values.", required=True
    )
    values: list[Text] = field(
        "What it is compared with; none for Exists and DoesNotExist.", factory=list
    )


class NodeSelectorTerm(Fields):
    match_expressions: list[Requirement] = field("All of them must hold, by labels.", factory=list)
    match_fields: list[Requirement] = field("All of them must hold, by fields.", factory=list)


class NodeSelector(Fields):
    node_selector_terms: list[NodeSelectorTerm] = field("One of them must hold.", factory=list)


class NodeAffinity(Fields):
    required: NodeSelector | None = field(
        "Compared with the labels of this machine; without a match the data set stays NotBound."
    )


class Toleration(Fields):
    key: str = field("The taint's name.", default="")
    operator: Literal["Exists", "Equal"] = field("How it is compared.", default="Equal")
    value: Text = field("The taint's value.", default="")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = field(
        "Which effect of the taint.", default=""
    )
    toleration_seconds: Count | None = field("For how long.")


class RuntimeRef(Fields):
    name: str = field("Name of the runtime.", default="")
    namespace: str = field("Its namespace.", default="")
    category: str = field("Accelerate.", default="")
    type: str = field("alluxio, jindo, juicefs, thin.", default="")
    master_replicas: Count | None = field("How many masters it has.")


class RestoreLocation(Fields):
    path: str = field("A backup made by a DataBackup: local:///folder/FILE.", default="")
    node_name: str = field(
        "On which node the backup is.",
        default="",
        no_effect="scheduling: the backup must be on this machine",
    )


class DatasetSpec(Fields):
    mounts: list[Mount] = field(
        "The sources of the data set; each appears at its own path.", factory=list
    )
    shared_options: TextMap = field(
        "Options for all mounts; a mount's own options win over them.", factory=dict, secret=True
    )
    shared_encrypt_options: list[EncryptOption] = field(
        "Options for all mounts whose values are in Secrets.", factory=list
    )
    owner: User | None = field("Owner of the files.")
    node_affinity: NodeAffinity | None = field(
        "Machines that may mount the data set; compared with the labels of this machine."
    )
    tolerations: list[Toleration] = field(
        "Taints that the data set's pods tolerate.",
        factory=list,
        no_effect="scheduling: this machine has no taints",
    )
    access_modes: list[
        Literal["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"]
    ] = field(
        "How the data set is used: always read-only, by any number of readers.",
        factory=list,
        no_effect="access modes: data sets are read-only, for any number of readers",
        when="writing",
    )
    runtimes: list[RuntimeRef] = field(
        "Runtimes of the data set.",
        factory=list,
        no_effect="binding: the runtime of the same name and namespace is used",
    )
    placement: Literal["Exclusive", "", "Shared"] = field(
        "Whether other data sets may be on the same machine.",
        default="",
        no_effect="placement: data sets share this machine, each with a cache of its own",
        when="exclusive",
    )
    data_restore_location: RestoreLocation | None = field(
        "A backup to start from: its catalog is restored before the first mount, and the files "
        "that were cached are loaded again."
    )


class Dataset(Resource):
    """The sources of data, their keys, and the machines that may mount it. With a runtime of the
    same name it is mounted, and its phase is Bound."""

    spec: DatasetSpec = field("The desired state.", required=True)


class EnvSource(Fields):
    secret_key_ref: SecretKeyRef | None = field("Secret and key that hold the value.")
    config_map_key_ref: FreeMap | None = field("Key of a ConfigMap; not supported.")
    field_ref: FreeMap | None = field("Field of the pod; not supported.")
    resource_field_ref: FreeMap | None = field("Resource of a container; not supported.")


class Env(Fields):
    """One environment variable, as in a container."""

    name: str = field("Name of the variable.", required=True)
    value: Text = field("Its value.", default="", secret=True)
    value_from: EnvSource | None = field("Where its value is, instead of `value`.")
