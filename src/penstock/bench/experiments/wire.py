"""What the network brings to this machine, by the kernel's own count. For a store that speaks TLS:
nobody can look into its lines, but what comes over them is counted all the same, from outside of
the system that is measured and alike for all. It is the count of a whole interface, with headers
and with whatever else comes that way: one experiment at a time, and a quiet machine.
"""

import fcntl
import socket
import struct
from pathlib import Path
from urllib.parse import urlsplit

from penstock.errors import UsageError

_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s4x4s16x")  # name, and an address of the kind AF_INET


class Wire:
    def __init__(self, endpoint: str) -> None:
        """Raises UsageError if there is no way to it."""
        self._interface = _interface_to(endpoint)

    def received_bytes(self) -> int:
        """Since the machine started, in this process's network namespace."""
        for line in Path("/proc/self/net/dev").read_text().splitlines():
            name, _, figures = line.partition(":")
            if name.strip() == self._interface:
                return int(figures.split()[0])
        raise UsageError(f"the network interface {self._interface} is gone")


def _interface_to(endpoint: str) -> str:
    """The one that the kernel would send by. Nothing is sent to find out."""
    there = urlsplit(endpoint)
    try:
        found = socket.getaddrinfo(there.hostname, there.port or 443, type=socket.SOCK_DGRAM)
        family, _, _, _, address = found[0]
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect(address)
            own = asking.getsockname()[0].partition("%")[0]
    except OSError as error:
        raise UsageError(f"{endpoint}: {error.strerror}", hint="check the endpoint") from error
    has = _has_sixth if family == socket.AF_INET6 else _has_fourth
    for _, name in socket.if_nameindex():
        if has(name, own):
            return name
    raise UsageError(f"{endpoint}: no network interface has the address {own}")


def _has_fourth(interface: str, address: str) -> bool:
    wanted = socket.inet_pton(socket.AF_INET, address)
    if wanted[0] == 127:  # lo has all of them, and names one
        return interface == "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            said = fcntl.ioctl(asking, _SIOCGIFADDR, _IFREQ.pack(interface.encode(), b"\0" * 4))
        except OSError:
            return False  # it has none
    return _IFREQ.unpack(said)[1] == wanted


def _has_sixth(interface: str, address: str) -> bool:
    wanted = socket.inet_pton(socket.AF_INET6, address).hex()
    lines = Path("/proc/self/net/if_inet6").read_text().splitlines()
    return any(line.split()[0] == wanted and line.split()[-1] == interface for line in lines)
