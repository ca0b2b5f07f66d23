"""What people tune in the runtimes of Fluid, and what it becomes here: tables, and nothing else.

docs/reference/runtime-options.md is written from them. A setting that is in none of them, and
begins like none of them, is refused with the nearest name.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from penstock.fluid import values
from penstock.fluid.values import Reader
from penstock.units import MIB


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that is acted on."""

    name: str
    options: tuple[str, ...]  # of `penstock mount`, without dashes; or one of SPECIAL
    read: Reader
    example: str


LISTED = "docs/reference/runtime-options.md lists them"
# What is not an option of the command line by itself.
KERNEL, READAHEAD, CACHE_DIR, CACHE_SIZE = "-o", "readahead", "cache-dir", "cache-size"
_KEPT = ("attr-cache", "entry-cache")

ALLUXIO: Final[tuple[Setting, ...]] = (
    Setting("alluxio.user.block.size.bytes.default", ("block-size",), values.block_size, "16MB"),
    Setting("alluxio.user.client.cache.size", ("page-cache",), values.client_cache, "1800MB"),
    Setting("alluxio.user.metadata.cache.expiration.time", _KEPT, values.time(0.001), "2day"),
    Setting("alluxio.user.file.metadata.sync.interval", ("refresh",), values.refresh, "30s"),
    Setting("alluxio.user.streaming.data.timeout", ("deadline",), values.deadline, "300sec"),
    Setting("alluxio.underfs.s3.threads.max", ("threads",), values.threads, "256"),
    Setting("alluxio.underfs.object.store.service.threads", ("threads",), values.threads, "64"),
    Setting("alluxio.worker.block.annotator.class", ("policy",), values.policy,
            "alluxio.worker.block.annotator.LRUAnnotator"),
    Setting("alluxio.worker.evictor.class", ("policy",), values.policy,
            "alluxio.worker.block.evictor.LRUEvictor"),
    Setting("alluxio.fuse.mount.options", (KERNEL,), values.text, "attr_timeout=600"),
)  # fmt: skip

JINDO: Final[tuple[Setting, ...]] = (
    Setting("fs.oss.download.thread.concurrency", ("threads",), values.threads, "200"),
    Setting("fs.s3.download.thread.concurrency", ("threads",), values.threads, "64"),
    Setting("fs.oss.download.async.concurrency", ("threads",), values.threads, "64"),
    Setting("fs.oss.memory.buffer.size.max.mb", ("buffer-size",), values.size(MIB), "384"),
    Setting("fs.oss.read.readahead.download.block.size.max", ("block-size",), values.block_size,
            "4194304"),
    Setting("fs.oss.read.readahead.prefetch.size.max", (READAHEAD,), values.size(), "268435456"),
    Setting("fs.oss.read.readahead.max.buffer.count", (READAHEAD,), values.readahead_buffers, "96"),
)  # fmt: skip

JUICEFS: Final[tuple[Setting, ...]] = (
    Setting("cache-dir", (CACHE_DIR,), values.text, "/var/jfsCache"),
    Setting("cache-size", (CACHE_SIZE,), values.size(MIB), "102400"),
    Setting("buffer-size", ("buffer-size",), values.size(MIB), "300"),
    Setting("prefetch", ("prefetch",), values.prefetch, "1"),
    Setting("max-readahead", (READAHEAD,), values.size(MIB), "64"),
    Setting("attr-cache", ("attr-cache",), values.time(1), "7200"),
    Setting("attrcacheto", ("attr-cache",), values.time(1), "3600"),
    Setting("entry-cache", ("entry-cache",), values.time(1), "7200"),
    Setting("entrycacheto", ("entry-cache",), values.time(1), "3600"),
    Setting("max-downloads", ("threads",), values.threads, "200"),
    Setting("cache-eviction", ("policy",), values.policy, "lru"),
)  # fmt: skip

# Runtime by runtime. Thin runtimes have settings of their own images, which nobody can know.
ACTED_ON: Final[dict[str, tuple[Setting, ...]]] = {
    "AlluxioRuntime": ALLUXIO,
    "JindoRuntime": JINDO,
    "JuiceFSRuntime": JUICEFS,
    "ThinRuntime": (),
    "PenstockRuntime": (),
}

_KERNEL_PAGES = "the kernel's page cache is the cache of the client"
_MASTER = "there is no master: the catalog is a file of this machine"
_WORKERS = "there are no workers to talk to: the cache is a folder of this machine"
_WRITES = "nothing is written"
_REQUESTS = "the kernel asks for up to 1 MiB at once; what is fetched is one block"
_JOBS = "there are no job processes: loads and copies run beside the mount"
_METADATA = "there is no metadata engine: the bucket is listed"
_GROUPS = "the cache is of one machine; there is no group"
_ALWAYS_CHECKED = "what is cached is always checked when it is read"
_TIERS = "tieredstore says it"
_NAMES = "the kernel keeps as many names as it has memory for"
_SHARED = "readers of one block always share one request"
_SPREAD = "objects are spread over the folders of a tier by their names"
_KEYS = "keys come from options, encryptOptions or this machine's environment"
_LOGS = "PENSTOCK_LOG sets what is logged"
_STATS = "`penstock stats` shows what is measured"
_TRIES = "a read tries again until the mount's deadline"
_OPENS = "files are opened by the kernel, and what it keeps is dropped when they change"

UNUSED: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "AlluxioRuntime": (
        ("alluxio.user.client.cache.enabled", f"{_KERNEL_PAGES}, and always on"),
        ("alluxio.user.client.cache.page.size", f"{_KERNEL_PAGES}: its pages are 4 KiB"),
        ("alluxio.user.client.cache.*", _KERNEL_PAGES),
        ("alluxio.user.metadata.cache.enabled", "the kernel always keeps names and attributes, "
         "and is told what changes"),
        ("alluxio.user.metadata.cache.max.size", _NAMES),
        ("alluxio.user.streaming.*", _REQUESTS),
        ("alluxio.user.local.reader.*", _REQUESTS),
        ("alluxio.worker.network.*", _REQUESTS),
        ("alluxio.worker.file.buffer.size", _WRITES),
        ("alluxio.user.file.buffer.bytes", _REQUESTS),
        ("alluxio.user.direct.memory.io.enabled", "the kernel reads the cache by itself"),
        ("alluxio.user.short.circuit.*", "the cache is always read on this machine"),
        ("alluxio.user.file.writetype.default", _WRITES),
        ("alluxio.user.file.readtype.default", "what is read is cached while there is room"),
        ("alluxio.user.file.passive.cache.*", "the cache is of one machine"),
        ("alluxio.user.file.replication.*", "one machine holds one copy"),
        ("alluxio.user.file.create.ttl*", "what is cached does not expire; the policy decides"),
        ("alluxio.user.ufs.block.read.location.policy*", _WORKERS),
        ("alluxio.user.block.write.location.policy*", _WORKERS),
        ("alluxio.user.block.avoid.eviction.policy.*", "tieredstore's high and low say it"),
        ("alluxio.user.block.*", _WORKERS),
        ("alluxio.user.file.master.*", _MASTER),
        ("alluxio.user.worker.*", _WORKERS),
        ("alluxio.user.update.file.accesstime.disabled", "access times are never kept"),
        ("alluxio.user.metrics.*", _STATS),
        ("alluxio.user.logging.threshold", _LOGS),
        ("alluxio.user.app.id", _STATS),
        ("alluxio.user.*", "it tunes Alluxio's own client"),
        ("alluxio.fuse.jnifuse.*", "Penstock speaks to the kernel itself, without libfuse"),
        ("alluxio.fuse.debug.enabled", _LOGS),
        ("alluxio.fuse.logging.threshold", _LOGS),
        ("alluxio.fuse.cached.paths.max", "names are in the catalog, not in memory"),
        ("alluxio.fuse.maxcache.bytes", _KERNEL_PAGES),
        ("alluxio.fuse.user.group.translation.enabled", "all files belong to the data set's owner"),
        ("alluxio.fuse.shared.caching.reader.enabled", _SHARED),
        ("alluxio.fuse.*", "Penstock speaks to the kernel itself"),
        ("alluxio.master.*", _MASTER),
        ("alluxio.worker.tieredstore.*", _TIERS),
        ("alluxio.worker.ramdisk.size", _TIERS),
        ("alluxio.worker.memory.size", _TIERS),
        ("alluxio.worker.allocator.*", _SPREAD),
        ("alluxio.worker.*", "there is no worker process: the mount keeps its cache itself"),
        ("alluxio.job.*", _JOBS),
        ("alluxio.security.*", "the kernel checks owner and modes"),
        ("alluxio.web.*", "there is no web page"),
        ("alluxio.proxy.*", "there is no proxy"),
        ("alluxio.underfs.object.store.breadcrumbs.enabled", "nothing is written to the bucket"),
        ("alluxio.underfs.s3.inherit.acl", "all files belong to the data set's owner"),
        ("alluxio.underfs.*", "it tunes Alluxio's own client of the store"),
        ("alluxio.network.*", "nothing goes over the network but requests to the store"),
        ("alluxio.grpc.*", "nothing goes over the network but requests to the store"),
        ("alluxio.zookeeper.*", _MASTER),
        ("alluxio.*", "it is of Alluxio's own processes, which are not run"),
    ),
    "JindoRuntime": (
        ("fs.oss.read.buffer.size", _REQUESTS),
        ("fs.oss.read.readahead.*", "what is read ahead is said by prefetch.size.max"),
        ("fs.oss.read.*", _REQUESTS),
        ("fs.oss.memory.buffer.size.watermark", "prefetching leaves room for readers by itself"),
        ("fs.*.download.queue.size", "requests wait in order, without a queue of their own"),
        ("fs.*.upload.*", _WRITES),
        ("fs.oss.write.*", _WRITES),
        ("fs.oss.flush.*", _WRITES),
        ("fs.oss.blocklet.*", _WRITES),
        ("fs.oss.tmp.*", _WRITES),
        ("fs.*.retry.*", _TRIES),
        ("fs.*.timeout.*", _TRIES),
        ("fs.*.connection.*", _TRIES),
        ("fs.oss.max.connections.*", "threads say how many requests are sent at once"),
        ("fs.oss.checksum.*", _ALWAYS_CHECKED),
        ("fs.oss.provider.*", _KEYS),
        ("fs.oss.credentials.*", _KEYS),
        ("fs.xengine", "the engine is Penstock itself"),
        ("fs.jindo*", "it is of Jindo's own processes, which are not run"),
        ("fs.dls.*", "OSS-HDFS is not read, only OSS itself"),
        ("fs.oss.*", "it tunes Jindo's own client of the store"),
        ("fs.s3.*", "it tunes Jindo's own client of the store"),
        ("fs.cos.*", "it tunes Jindo's own client of the store"),
        ("fs.obs.*", "it tunes Jindo's own client of the store"),
        ("namespace.*", _MASTER),
        ("storage.watermark.*", "tieredstore's high and low say it"),
        ("storage.data-dirs*", _TIERS),
        ("storage.ram.cache.size", _TIERS),
        ("storage.*", "there is no worker process: the mount keeps its cache itself"),
        ("client.oss.upload.*", _WRITES),
        ("client.oss.*", _TRIES),
        ("client.*", "it tunes Jindo's own client"),
        ("jfs.*", "it is of JindoFS' namespaces, which are not used"),
        ("jindo*", "it is of Jindo's own processes, which are not run"),
        ("aliyun.oss.*", _KEYS),
        ("default.credential.provider", _KEYS),
        ("hadoopConf.*", "there is no Hadoop client"),
        ("logger.*", _LOGS),
        ("application.report.on", _STATS),
        ("metric.*", _STATS),
    ),
    "JuiceFSRuntime": (
        ("open-cache", _OPENS),
        ("opencache", _OPENS),
        ("open-cache-limit", _OPENS),
        ("dir-entry-cache", "entry-cache holds for folders too"),
        ("direntrycacheto", "entry-cache holds for folders too"),
        ("negative-entry-cache", "names that are not there are not kept"),
        ("readdir-cache", "the kernel keeps listings, and is told what changes"),
        ("metacache", "the kernel keeps names and attributes"),
        ("metacacheto", "the kernel keeps names and attributes"),
        ("max-cached-inodes", _NAMES),
        ("free-space-ratio", "a tenth of what is free is left alone, where no size is said"),
        ("cache-partial-only", "whole files are cached too: they are what is read again"),
        ("cache-items", "a cache is bounded by its size, not by the number of files"),
        ("cache-mode", "cache files can be read by their owner only"),
        ("cache-expire", "what is cached does not expire; the policy decides"),
        ("cache-scan-interval", "the cache's index is kept, not scanned for"),
        ("cache-large-write", _WRITES),
        ("verify-cache-checksum", _ALWAYS_CHECKED),
        ("cache-group*", _GROUPS),
        ("group-*", _GROUPS),
        ("no-sharing", _GROUPS),
        ("fill-group-cache", _GROUPS),
        ("writeback*", _WRITES),
        ("upload-*", _WRITES),
        ("max-uploads", _WRITES),
        ("max-deletes", _WRITES),
        ("max-stage-write", _WRITES),
        ("max-write", _WRITES),
        ("put-timeout", _WRITES),
        ("storage-class", _WRITES),
        ("get-timeout", _TRIES),
        ("io-retries", _TRIES),
        ("download-limit", "reads are not slowed down"),
        ("max-fuse-io", _REQUESTS),
        ("read-only", "a mount is always read-only"),
        ("enable-xattr", "objects have no extended attributes here"),
        ("enable-cap", _WRITES),
        ("enable-selinux", "objects have no extended attributes here"),
        ("enable-ioctl", _WRITES),
        ("root-squash", "all files belong to the data set's owner"),
        ("all-squash", "all files belong to the data set's owner"),
        ("atime-mode", "access times are never kept"),
        ("skip-dir-*", _WRITES),
        ("sort-dir", "folders are listed as the catalog has them"),
        ("fast-statfs", _METADATA),
        ("backup-meta", _METADATA),
        ("backup-skip-trash", _METADATA),
        ("heartbeat", _METADATA),
        ("no-bgjob", _METADATA),
        ("meta*", _METADATA),
        ("token", _METADATA),
        ("conf-dir", _METADATA),
        ("rsa-*", "objects are read as they are, without JuiceFS' encryption"),
        ("foreground", "the supervisor minds the server"),
        ("no-update", _METADATA),
        ("update-fstab", "`penstock up` mounts again after a reboot"),
        ("prefix-internal", "there are no internal files"),
        ("no-agent", _STATS),
        ("metrics*", _STATS),
        ("consul", _STATS),
        ("custom-labels", _STATS),
        ("pushgateway", _STATS),
        ("no-usage-report", "nothing is reported to anyone"),
        ("verbose", _LOGS),
        ("debug", _LOGS),
        ("trace", _LOGS),
        ("quiet", _LOGS),
        ("log*", _LOGS),
        ("no-syslog", _LOGS),
        ("check-storage", "the bucket is listed when it is mounted"),
        ("force", "nothing needs to be forced"),
        ("internal", "the endpoint says which network"),
        ("external", "the endpoint says which network"),
    ),
    "ThinRuntime": (("*", "it is for the image of the runtime's profile, which is not run"),),
    "PenstockRuntime": (),
}  # fmt: skip

# Refused: where it would be wrong to go on without it.
REFUSED: Final[dict[str, str]] = {"subdir": "write it into mountPoint: juicefs:///SUBDIR"}


def find_setting(runtime: str, name: str) -> Setting | None:
    return next((one for one in ACTED_ON[runtime] if one.name == name), None)


def why_unused(runtime: str, name: str) -> str | None:
    return next((reason for pattern, reason in UNUSED[runtime] if fnmatchcase(name, pattern)), None)


def has_name(runtime: str, name: str) -> bool:
    """Whether the table of what is unused has this very name, or the beginning of it."""
    return any(
        pattern == name or (pattern != "*" and "." not in name and fnmatchcase(name, pattern))
        for pattern, _ in UNUSED[runtime]
    )


def names_of(runtime: str) -> list[str]:
    return [setting.name for setting in ACTED_ON[runtime]]
