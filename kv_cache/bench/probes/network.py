"""Whether a server is on this machine: what goes to it then passes no network interface but the
loopback, which is not counted."""

import ipaddress
import socket
from urllib.parse import urlsplit

import psutil


def is_here(url: str) -> bool | None:
    """Whether the host of a URL is this machine; None if its name cannot be resolved."""
    host = urlsplit(url).hostname or ""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return None
    return all(_is_ours(str(address)) for address in addresses)


def _is_ours(address: str) -> bool:
    address = address.partition("%")[0]
    addresses = {a.address.partition("%")[0] for nic in psutil.net_if_addrs().values() for a in nic}
    return address in addresses or ipaddress.ip_address(address).is_loopback
