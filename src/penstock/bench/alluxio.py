"""Alluxio as an arm: a master, a worker and a FUSE process over the bucket as it is.

Its jars come from the folder that PENSTOCK_ALLUXIO_HOME names: they are no package, and a benchmark
on a machine without them leaves Alluxio out. Everything that the three processes write, temporary
files of the Java runtime included, lies in the arm's own folder.
"""

import ctypes
import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.bench.arms import TRUSTED_S, Mount
from penstock.bench.workspace import BenchError, Process, find_program, free_port, wait_until
from penstock.errors import UsageError
from penstock.units import GIB

HOME_VARIABLE = "PENSTOCK_ALLUXIO_HOME"
_MASTER_JAR = re.compile(r"alluxio-core-server-master-(.+)\.jar")
# Alluxio 2 was made for Java 8 and 11, and looks into what later runtimes hide.
_OPENED = (
    "java.lang",
    "java.lang.reflect",
    "java.io",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "jdk.internal.misc",
    "sun.nio.ch",
)
_LOGGING = """\
<Configuration status="WARN">
  <Appenders><Console name="out" target="SYSTEM_OUT"/></Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""
# Of the S3 client, which has a logger of its own. Without settings that one formats every byte that
# it reads as text and then throws the text away: 15 to 30 MB/s instead of 60 to 70 on two cores.
_S3_LOGGING = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.SimpleLayout
"""


class Alluxio(Mount):
    name = "alluxio"
    dashes = ""
    ready_s = 120.0  # a Java runtime starts in 5 s on two idle cores, and there are four

    @property
    def _configuration(self) -> Path:
        return self.place / "conf"

    @classmethod
    def require(cls) -> None:
        _master_jar()
        find_program("java")
        try:
            ctypes.CDLL("libfuse.so.2")
        except OSError as error:
            hint = "install the system's package libfuse2"
            raise BenchError("libfuse.so.2: no such library", hint=hint) from error

    def launch(self) -> Process:
        if self.plan.cache_share < 1:
            raise UsageError(
                f"{self.plan.name}: Alluxio is measured with room for all data only",
                hint="leave cacheShare out",
            )
        for name in ("conf", "journal", "logs", "tmp"):
            (self.place / name).mkdir()
        self._write("log4j2.xml", _LOGGING)
        self._write("log4j.properties", _S3_LOGGING)
        properties = self._properties()
        self._write("alluxio-site.properties", "".join(f"{k}={v}\n" for k, v in properties.items()))
        workspace, environment = self.site.workspace, self.environment()
        workspace.run(self.name, self._java("alluxio.cli.Format", "master"), environment)
        for main, started in (
            ("alluxio.master.AlluxioMaster", "Primary started"),
            ("alluxio.worker.AlluxioWorker", "Alluxio worker started"),
        ):
            process = workspace.spawn(self.name, self._java(main), environment)
            wait_until(
                lambda process=process, started=started: _printed(process, started),
                timeout_s=self.ready_s,
                what=main,
            )
        options = (
            "ro",
            # Pages stay when a file is closed.
            "kernel_cache",
            # Else the kernel's readahead arrives out of order, and a quarter more is read from S3.
            "sync_read",
            f"attr_timeout={TRUSTED_S}",
            f"entry_timeout={TRUSTED_S}",
            *self.extra_options(),
        )
        mount = ("-m", str(self.mountpoint), "-a", "/", "-o", ",".join(options))
        fuse = self._java("alluxio.fuse.AlluxioFuse", *mount)
        return workspace.spawn(self.name, fuse, environment)

    def version(self) -> str:
        match = _MASTER_JAR.fullmatch(_master_jar().name)
        assert match is not None
        return match[1]

    def _properties(self) -> Mapping[str, object]:
        server, place = self.site.server, self.place
        # Room for everything, as for the others; blocks of 64 MiB are reserved whole.
        room = f"{self.site.dataset.size_bytes * 5 // 4 + GIB}B"
        root = "alluxio.master.mount.table.root"
        ports = {
            name: free_port() for name in ("master.rpc", "master.web", "worker.rpc", "worker.web")
        }
        return {
            "alluxio.home": place,
            "alluxio.conf.dir": self._configuration,
            "alluxio.logs.dir": place / "logs",
            "alluxio.work.dir": place / "work",
            "alluxio.tmp.dirs": place / "tmp",
            "alluxio.master.journal.type": "UFS",
            "alluxio.master.journal.folder": place / "journal",
            "alluxio.master.metastore": "HEAP",
            # The worker is there before anyone asks; for so long the master answers EIO.
            "alluxio.master.worker.connect.wait.time": "0s",
            **{f"alluxio.{name}.port": port for name, port in ports.items()},
            **{
                f"alluxio.{name}": "127.0.0.1"
                for name in (
                    "master.hostname",
                    "master.bind.host",
                    "master.web.bind.host",
                    "worker.hostname",
                    "worker.bind.host",
                    "worker.web.bind.host",
                    "user.hostname",
                )
            },
            f"{root}.ufs": f"s3://{self.site.bucket}/",
            f"{root}.readonly": "true",
            f"{root}.option.s3a.accessKeyId": server.access_key,
            f"{root}.option.s3a.secretKey": server.secret_key,
            f"{root}.option.alluxio.underfs.s3.endpoint": server.endpoint,
            f"{root}.option.alluxio.underfs.s3.endpoint.region": server.region,
            f"{root}.option.alluxio.underfs.s3.disable.dns.buckets": "true",
            f"{root}.option.alluxio.underfs.s3.inherit.acl": "false",
            "alluxio.security.login.username": getpass.getuser(),
            "alluxio.security.authorization.permission.enabled": "false",
            # The worker's tier.
            "alluxio.worker.tieredstore.levels": "1",
            "alluxio.worker.tieredstore.level0.alias": "MEM",
            "alluxio.worker.tieredstore.level0.dirs.path": self.cache / "worker",
            "alluxio.worker.tieredstore.level0.dirs.quota": room,
            "alluxio.worker.ramdisk.size": room,
            "alluxio.user.file.readtype.default": "CACHE",
            "alluxio.user.file.passive.cache.enabled": "false",
            # And a cache in the FUSE process: without it a small file is a request to the worker,
            # which gave 500 to 1,400 files/s on two cores, and with it 6,200.
            "alluxio.user.client.cache.enabled": "true",
            "alluxio.user.client.cache.size": room,
            "alluxio.user.client.cache.dirs": self.cache / "client",
            # The data does not change.
            "alluxio.user.metadata.cache.enabled": "true",
            "alluxio.user.metadata.cache.expiration.time": f"{TRUSTED_S}s",
            "alluxio.user.metadata.cache.max.size": "2000000",  # every file of the data set
            "alluxio.user.update.file.accesstime.disabled": "true",
            "alluxio.master.replication.check.interval": "1hr",
            "alluxio.master.update.check.enabled": "false",
        }

    def _java(self, main: str, *words: str) -> list[str | Path]:
        return [
            find_program("java"),
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Dalluxio.home={self.place}",
            f"-Dalluxio.conf.dir={self._configuration}",
            # Nowhere else: a user's own settings must not steer it.
            f"-Dalluxio.site.conf.dir={self._configuration}",
            f"-Dalluxio.logs.dir={self.place / 'logs'}",
            f"-Dlog4j2.configurationFile={self._configuration / 'log4j2.xml'}",
            f"-Duser.home={self.place}",
            f"-Djava.io.tmpdir={self.place / 'tmp'}",
            "-XX:-UsePerfData",  # a file in /tmp, which stays there when the process is killed
            "-XX:+UseG1GC",
            "-Xmx1g",
            "-XX:MaxDirectMemorySize=1g",
            "-cp",
            f"{self._configuration}:{_master_jar().parent}/*",
            main,
            *words,
        ]

    def _write(self, name: str, text: str) -> None:
        # The properties hold keys.
        path = self._configuration / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)


def _master_jar() -> Path:
    home = os.environ.get(HOME_VARIABLE)
    hint = "let it name the folder where Alluxio's jars lie below lib/"
    if not home:
        raise BenchError(f"{HOME_VARIABLE} is not set", hint=hint)
    for path in sorted(Path(home).absolute().glob("lib/*.jar")):
        if _MASTER_JAR.fullmatch(path.name):
            return path
    raise BenchError(f"{HOME_VARIABLE}: {home} has no jars of Alluxio", hint=hint)


def _printed(process: Process, text: str) -> bool:
    process.require_alive()
    return text in process.log.read_text(errors="replace")
