"""Settings of Fluid's runtimes and the options of ours that they become: tables.

docs/reference/runtime-options.md is made from them. A setting that no table has, by name or by
pattern, is refused with the nearest name.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from penstock.fluid import values
from penstock.fluid.values import Converter
from penstock.units import MIB


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that has an effect here."""

    name: str
    options: tuple[str, ...]  # of `penstock mount`, without dashes; or one of those below
    convert: Converter
    example: str


LISTED = "docs/reference/runtime-options.md lists them"
# Targets that are no options of the command line.
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

# By runtime. The settings of a ThinRuntime belong to its own image, and cannot be known.
ACTED_ON: Final[dict[str, tuple[Setting, ...]]] = {
    "AlluxioRuntime": ALLUXIO,
    "JindoRuntime": JINDO,
    "JuiceFSRuntime": JUICEFS,
    "ThinRuntime": (),
    "PenstockRuntime": (),
}

_KERNEL_PAGES = "the kernel's page cache is the cache of the client"
_MASTER = "there is no master: the catalog is a file on this machine"
_WORKERS = "there are no remote workers: the cache is a folder on this machine"
_WRITES = "mounts are read-only"
_REQUESTS = "the kernel asks for up to 1 MiB at once, and each fetch is one block"
_JOBS = "there are no job processes: operations run beside the mount"
_METADATA = "there is no metadata engine: the bucket is listed"
_GROUPS = "the cache belongs to one machine; there are no groups"
_ALWAYS_CHECKED = "reads from the cache always verify checksums"
_TIERS = "tieredstore sets it"
_NAMES = "the kernel keeps as many names as it has memory for"
_SHARED = "readers of one block always share one request"
_SPREAD = "a hash of its name decides in which folder of a tier an object is"
_KEYS = "keys come from options, encryptOptions or this machine's environment"
_LOGS = "PENSTOCK_LOG sets the log level"
_STATS = "`penstock stats` shows the metrics"
_TRIES = "requests are retried until the mount's deadline"
_OPENS = "the kernel opens files by itself, and drops cached pages when a file changes"

UNUSED: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "AlluxioRuntime": (
        ("alluxio.user.client.cache.enabled", f"{_KERNEL_PAGES}, and always on"),
        ("alluxio.user.client.cache.page.size", f"{_KERNEL_PAGES}: its pages are 4 KiB"),
        ("alluxio.user.client.cache.*", _KERNEL_PAGES),
        ("alluxio.user.metadata.cache.enabled", "the kernel always caches names and attributes; "
         "Penstock tells it what changes"),
        ("alluxio.user.metadata.cache.max.size", _NAMES),
        ("alluxio.user.streaming.*", _REQUESTS),
        ("alluxio.user.local.reader.*", _REQUESTS),
        ("alluxio.worker.network.*", _REQUESTS),
        ("alluxio.worker.file.buffer.size", _WRITES),
        ("alluxio.user.file.buffer.bytes", _REQUESTS),
        ("alluxio.user.direct.memory.io.enabled", "the kernel reads the cache directly"),
        ("alluxio.user.short.circuit.*", "the cache is always read on this machine"),
        ("alluxio.user.file.writetype.default", _WRITES),
        ("alluxio.user.file.readtype.default", "all reads are cached while there is room"),
        ("alluxio.user.file.passive.cache.*", "the cache belongs to one machine"),
        ("alluxio.user.file.replication.*", "one machine holds one copy"),
        ("alluxio.user.file.create.ttl*", "cached data does not expire"),
        ("alluxio.user.ufs.block.read.location.policy*", _WORKERS),
        ("alluxio.user.block.write.location.policy*", _WORKERS),
        ("alluxio.user.block.avoid.eviction.policy.*", "tieredstore's high and low set it"),
        ("alluxio.user.block.*", _WORKERS),
        ("alluxio.user.file.master.*", _MASTER),
        ("alluxio.user.worker.*", _WORKERS),
        ("alluxio.user.update.file.accesstime.disabled", "access times are never kept"),
        ("alluxio.user.metrics.*", _STATS),
        ("alluxio.user.logging.threshold", _LOGS),
        ("alluxio.user.app.id", _STATS),
        ("alluxio.user.*", "it tunes Alluxio's own client"),
        ("alluxio.fuse.jnifuse.*", "Penstock does not use libfuse"),
        ("alluxio.fuse.debug.enabled", _LOGS),
        ("alluxio.fuse.logging.threshold", _LOGS),
        ("alluxio.fuse.cached.paths.max", "names are in the catalog, not in memory"),
        ("alluxio.fuse.maxcache.bytes", _KERNEL_PAGES),
        ("alluxio.fuse.user.group.translation.enabled", "all files have the data set's owner"),
        ("alluxio.fuse.shared.caching.reader.enabled", _SHARED),
        ("alluxio.fuse.*", "it tunes Alluxio's own FUSE program"),
        ("alluxio.master.*", _MASTER),
        ("alluxio.worker.tieredstore.*", _TIERS),
        ("alluxio.worker.ramdisk.size", _TIERS),
        ("alluxio.worker.memory.size", _TIERS),
        ("alluxio.worker.allocator.*", _SPREAD),
        ("alluxio.worker.*", "there is no worker process: the mount's server keeps the cache"),
        ("alluxio.job.*", _JOBS),
        ("alluxio.security.*", "the kernel checks owner and modes"),
        ("alluxio.web.*", "there is no web page"),
        ("alluxio.proxy.*", "there is no proxy"),
        ("alluxio.underfs.object.store.breadcrumbs.enabled", "mounts are read-only"),
        ("alluxio.underfs.s3.inherit.acl", "all files have the data set's owner"),
        ("alluxio.underfs.*", "it tunes Alluxio's own client of the store"),
        ("alluxio.network.*", "only requests to the store use the network"),
        ("alluxio.grpc.*", "only requests to the store use the network"),
        ("alluxio.zookeeper.*", _MASTER),
        ("alluxio.*", "it configures Alluxio's own processes, which do not run here"),
    ),
    "JindoRuntime": (
        ("fs.oss.read.buffer.size", _REQUESTS),
        ("fs.oss.read.readahead.*", "prefetch.size.max sets how much is read ahead"),
        ("fs.oss.read.*", _REQUESTS),
        ("fs.oss.memory.buffer.size.watermark", "prefetching always leaves buffers for readers"),
        ("fs.*.download.queue.size", "requests wait in one queue of unlimited length"),
        ("fs.*.upload.*", _WRITES),
        ("fs.oss.write.*", _WRITES),
        ("fs.oss.flush.*", _WRITES),
        ("fs.oss.blocklet.*", _WRITES),
        ("fs.oss.tmp.*", _WRITES),
        ("fs.*.retry.*", _TRIES),
        ("fs.*.timeout.*", _TRIES),
        ("fs.*.connection.*", _TRIES),
        ("fs.oss.max.connections.*", "threads sets how many requests are sent at once"),
        ("fs.oss.checksum.*", _ALWAYS_CHECKED),
        ("fs.oss.provider.*", _KEYS),
        ("fs.oss.credentials.*", _KEYS),
        ("fs.xengine", "the engine is Penstock itself"),
        ("fs.jindo*", "it configures Jindo's own processes, which do not run here"),
        ("fs.dls.*", "OSS-HDFS is not supported, only OSS itself"),
        ("fs.oss.*", "it tunes Jindo's own client of the store"),
        ("fs.s3.*", "it tunes Jindo's own client of the store"),
        ("fs.cos.*", "it tunes Jindo's own client of the store"),
        ("fs.obs.*", "it tunes Jindo's own client of the store"),
        ("namespace.*", _MASTER),
        ("storage.watermark.*", "tieredstore's high and low set it"),
        ("storage.data-dirs*", _TIERS),
        ("storage.ram.cache.size", _TIERS),
        ("storage.*", "there is no worker process: the mount's server keeps the cache"),
        ("client.oss.upload.*", _WRITES),
        ("client.oss.*", _TRIES),
        ("client.*", "it tunes Jindo's own client"),
        ("jfs.*", "it configures JindoFS' namespaces, which are not used"),
        ("jindo*", "it configures Jindo's own processes, which do not run here"),
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
        ("dir-entry-cache", "entry-cache also applies to folders"),
        ("direntrycacheto", "entry-cache also applies to folders"),
        ("negative-entry-cache", "missing names are not cached"),
        ("readdir-cache", "the kernel caches listings; Penstock tells it what changes"),
        ("metacache", "the kernel caches names and attributes"),
        ("metacacheto", "the kernel caches names and attributes"),
        ("max-cached-inodes", _NAMES),
        ("free-space-ratio", "without a size, the cache leaves a tenth of the free space unused"),
        ("cache-partial-only", "whole files are cached too"),
        ("cache-items", "the size of a cache is limited, not its number of files"),
        ("cache-mode", "only their owner can read cache files"),
        ("cache-expire", "cached data does not expire"),
        ("cache-scan-interval", "the cache keeps an index, and needs no scan"),
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
        ("download-limit", "reads are not rate-limited"),
        ("max-fuse-io", _REQUESTS),
        ("read-only", "a mount is always read-only"),
        ("enable-xattr", "objects have no extended attributes here"),
        ("enable-cap", _WRITES),
        ("enable-selinux", "objects have no extended attributes here"),
        ("enable-ioctl", _WRITES),
        ("root-squash", "all files have the data set's owner"),
        ("all-squash", "all files have the data set's owner"),
        ("atime-mode", "access times are never kept"),
        ("skip-dir-*", _WRITES),
        ("sort-dir", "folders are listed in the catalog's order"),
        ("fast-statfs", _METADATA),
        ("backup-meta", _METADATA),
        ("backup-skip-trash", _METADATA),
        ("heartbeat", _METADATA),
        ("no-bgjob", _METADATA),
        ("meta*", _METADATA),
        ("token", _METADATA),
        ("conf-dir", _METADATA),
        ("rsa-*", "JuiceFS' encryption is not supported"),
        ("foreground", "the supervisor watches the server"),
        ("no-update", _METADATA),
        ("update-fstab", "`penstock up` mounts again after a reboot"),
        ("prefix-internal", "there are no internal files"),
        ("no-agent", _STATS),
        (
            "metrics*",
            "it names an address inside a pod; `options.metrics` of a PenstockRuntime, or "
            "`metrics=` among the FUSE arguments, serves them on this machine",
        ),
        ("consul", _STATS),
        ("custom-labels", _STATS),
        ("pushgateway", _STATS),
        ("no-usage-report", "Penstock reports no usage"),
        ("verbose", _LOGS),
        ("debug", _LOGS),
        ("trace", _LOGS),
        ("quiet", _LOGS),
        ("log*", _LOGS),
        ("no-syslog", _LOGS),
        ("check-storage", "the bucket is listed when it is mounted"),
        ("force", "nothing needs to be forced"),
        ("internal", "the endpoint selects the network"),
        ("external", "the endpoint selects the network"),
    ),
    "ThinRuntime": (
        ("*", "it is for the image of the runtime's profile, which does not run here"),
    ),
    "PenstockRuntime": (),
}  # fmt: skip

# Refused: to ignore these would show the wrong data.
REFUSED: Final[dict[str, str]] = {"subdir": "write it into mountPoint: juicefs:///SUBDIR"}


def find_setting(runtime: str, name: str) -> Setting | None:
    return next((one for one in ACTED_ON[runtime] if one.name == name), None)


def why_unused(runtime: str, name: str) -> str | None:
    return next((reason for pattern, reason in UNUSED[runtime] if fnmatchcase(name, pattern)), None)


def has_name(runtime: str, name: str) -> bool:
    """Whether the table of unused settings has this name, or a pattern of one word that matches."""
    return any(
        pattern == name or (pattern != "*" and "." not in name and fnmatchcase(name, pattern))
        for pattern, _ in UNUSED[runtime]
    )


def names_of(runtime: str) -> list[str]:
    return [setting.name for setting in ACTED_ON[runtime]]
