"""What a volume may ask for, and what it may not."""

from pathlib import PurePosixPath

import pytest

from penstock.errors import VolumeProblem
from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.node.volume_context import Claim, Inline, parse
from tests.support.csi import CLAIM, IMAGENET, INLINE


def test_a_claim_of_fluids_shape_is_the_mount_of_its_data_set():
    volume = parse(CLAIM)
    assert volume == Claim("alluxio", IMAGENET, "")
    assert volume.mount_path == PurePosixPath(CLAIM[names.FLUID_PATH])


def test_a_claim_may_name_a_folder_of_the_data_set():
    assert parse({**CLAIM, names.SUB_PATH: "train/n01440764"}) == Claim(
        "alluxio", IMAGENET, "train/n01440764"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/etc",
        "/",
        "/runtime-mnt/alluxio/other/imagenet/alluxio-fuse",
        "/runtime-mnt/alluxio/default/imagenet/alluxio-fuse/..",
        "/runtime-mnt/alluxio/default/imagenet/alluxio-fuse/",
        "/runtime-mnt/jindo/default/imagenet/jindo-fuse",
    ],
)
def test_a_claim_binds_no_path_but_the_mount_of_its_data_set(path: str):
    with pytest.raises(VolumeProblem, match=r"fluid_path: .* is not the mount of default/imagenet"):
        parse({**CLAIM, names.FLUID_PATH: path})


@pytest.mark.parametrize("sub_path", ["/etc", "..", "a/../..", "a//b", "./a", "a/", "a\0b"])
def test_a_sub_path_that_is_not_plain_is_refused(sub_path: str):
    with pytest.raises(VolumeProblem, match=r"^fluid_sub_path"):
        parse({**CLAIM, names.SUB_PATH: sub_path})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.MOUNT_TYPE, "../x"),
        (names.MOUNT_TYPE, ""),
        (names.RUNTIME_NAMESPACE, ".."),
        (names.RUNTIME_NAMESPACE, "a/b"),
        (names.RUNTIME_NAMESPACE, "a.b"),
        (names.RUNTIME_NAME, "../.."),
        (names.RUNTIME_NAME, "a..b"),
        (names.RUNTIME_NAME, "imagenet\n"),
    ],
)
def test_a_claim_whose_path_would_leave_its_folder_is_refused(name: str, value: str):
    context = {**CLAIM, name: value}
    context[names.FLUID_PATH] = str(
        names.mount_path(
            context[names.MOUNT_TYPE],
            ServedKey(context[names.RUNTIME_NAMESPACE], context[names.RUNTIME_NAME]),
        )
    )
    with pytest.raises(VolumeProblem, match=f"^{name}"):
        parse(context)


@pytest.mark.parametrize("role", ["link", "state"])
def test_a_folder_of_a_server_pod_belongs_to_a_data_set_of_its_own_namespace(role: str):
    assert parse({**INLINE, names.ROLE: role}) == Inline(
        role, IMAGENET, None, "imagenet-fuse-x7k2p", "0b1c"
    )


def test_the_namespace_that_a_user_wrote_does_not_count():
    volume = parse({**INLINE, names.RUNTIME_NAMESPACE: "kube-system", "namespace": "kube-system"})
    assert volume.key == IMAGENET


def test_an_inline_volume_cannot_be_a_claim():
    with pytest.raises(VolumeProblem, match=r"^penstock.dev/role: the volume lacks"):
        parse({**CLAIM, names.EPHEMERAL: "true"})


@pytest.mark.parametrize("ephemeral", ["false", "", "True"])
def test_a_persistent_volume_gets_no_folder_of_a_server_pod(ephemeral: str):
    with pytest.raises(VolumeProblem, match=r"^mount_type: the volume lacks"):
        parse({**INLINE, names.EPHEMERAL: ephemeral})


@pytest.mark.parametrize(
    "root",
    [
        "/data",
        "/data/etc",
        "/mnt/ssd-1",
        "/dev/shm",
        "/dev/shm/cache",
        "/var/lib/docker/alluxio",
        str(names.DEFAULT_CACHE),
        "/var/lib/penstock/cache",
        "/libraries",
    ],
)
def test_a_cache_lies_on_a_disk_or_in_memory(root: str):
    volume = parse({**INLINE, names.ROLE: "cache", names.CACHE_ROOT: root})
    assert volume.cache_root == PurePosixPath(root)


@pytest.mark.parametrize(
    "root",
    [
        "/",
        "data",
        "//data",
        "/data/",
        "/data/../etc",
        "/data/./x",
        "/proc/1/root",
        "/sys/fs",
        "/etc",
        "/etc/cache",
        "/boot",
        "/usr/local",
        "/bin",
        "/sbin",
        "/lib",
        "/lib64",
        "/libx32/a",
        "/root",
        "/dev",
        "/dev/shm2",
        "/run/containerd",
        "/var/run",
        "/var/lib",
        "/var/lib/penstock",
        "/var/lib/penstock/sets",
        "/var/lib/penstock/cache/below",
        "/var/lib/kubelet",
        "/var/lib/kubelet/pods",
        "/srv/kubelet/pods",
        "/runtime-mnt",
        "/data/\0",
    ],
)
def test_a_cache_lies_in_no_folder_of_the_system(root: str):
    context = {**INLINE, names.ROLE: "cache", names.CACHE_ROOT: root}
    with pytest.raises(VolumeProblem, match=r"^penstock.dev/cache-root"):
        parse(context, kubelet_dir=PurePosixPath("/srv/kubelet"))


def test_only_a_cache_has_a_cache_root():
    with pytest.raises(VolumeProblem, match="role state has no cache"):
        parse({**INLINE, names.CACHE_ROOT: "/data"})
    with pytest.raises(VolumeProblem, match="cache-root: the volume lacks"):
        parse({**INLINE, names.ROLE: "cache"})


@pytest.mark.parametrize(
    "name", [names.DATASET, names.POD_NAMESPACE, names.POD_NAME, names.POD_UID]
)
def test_an_inline_volume_without_its_names_is_refused(name: str):
    with pytest.raises(VolumeProblem, match=f"^{name}: the volume lacks"):
        parse({one: value for one, value in INLINE.items() if one != name})


def test_an_unknown_role_is_refused():
    with pytest.raises(VolumeProblem, match="'host' is none of link, state, cache"):
        parse({**INLINE, names.ROLE: "host"})
