"""Messages between a rank and the coordinator: JSON over TCP, between two who know one key.

A message is a mapping with `what`; bytes may follow one (a result as it was written). Nothing that
is received is ever run or unpickled. A connection that does not know the key is closed before
anything else is read. Messages are not encrypted.
"""

import contextlib
import logging
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import orjson
import psutil

from kv_cache.core.text import to_json

Message = Mapping[str, Any]
Address = tuple[str, int]

PATIENCE_S = 30.0  # how long bytes may take to or from another machine
_CONNECT_S = 3.0  # for one of the addresses
_KNOCK_S = 10.0  # for a new connection to prove that it knows the key
_MOST_BYTES = 1 << 32

log = logging.getLogger("kv_cache")


class Gone(Exception):  # noqa: N818  (no error: the other end may have every reason)
    """The other end has left, or its machine has."""


class Wire:
    """One connection. Any thread may send; only one may receive."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, what: str, attached: bytes | None = None, **fields: Any) -> None:
        """Raises Gone."""
        with self._sending:
            try:
                more = {} if attached is None else {"attached": len(attached)}
                self._connection.send_bytes(to_json({"what": what, **fields, **more}))
                if attached is not None:
                    self._connection.send_bytes(attached)
            except (OSError, ValueError) as error:
                raise Gone(str(error)) from error

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message, its attachment under `attached`; None if none came in time.
        Raises Gone."""
        try:
            if not self._connection.poll(max(0.0, timeout_s)):
                return None
            message = orjson.loads(self._connection.recv_bytes(_MOST_BYTES))
            if "attached" in message:
                message["attached"] = self._connection.recv_bytes(_MOST_BYTES)
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise Gone(str(error)) from error
        if not isinstance(message, dict) or not isinstance(message.get("what"), str):
            raise Gone("it speaks another language")
        return message

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()


def connect(addresses: Sequence[Address], key: bytes, patience_s: float = PATIENCE_S) -> Wire:
    """Connect to the coordinator at one of these addresses. Raises Gone."""
    deadline, why = time.monotonic() + patience_s, "no address was given"
    while True:
        for address in addresses:
            try:
                return _connected(address, key)
            except (OSError, EOFError, AuthenticationError) as error:
                why = f"{address[0]} port {address[1]}: {error or type(error).__name__}"
            if time.monotonic() > deadline:
                raise Gone(why)
        time.sleep(0.2)


def _connected(address: Address, key: bytes) -> Wire:
    connection = _taken(socket.create_connection(address, timeout=_CONNECT_S), _CONNECT_S)
    try:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        _limit(connection, PATIENCE_S)
    except BaseException:
        connection.close()
        raise
    return Wire(connection)


class Listener:
    """Accepts connections that know the key, on its own thread, until it is closed."""

    def __init__(self, key: bytes, *, everywhere: bool, port: int = 0) -> None:
        """Listen on all of this machine's addresses, or on the loopback alone. Raises OSError."""
        self._key = key
        self._socket = _listening(everywhere, port)
        self._socket.settimeout(0.5)
        self._came: queue.SimpleQueue[Wire] = queue.SimpleQueue()
        self._closed = False
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="ranks-join", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> Wire | None:
        try:
            return self._came.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                came, address = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                log.debug("a connection could not be taken: %s", error)
                time.sleep(0.05)
                continue
            threading.Thread(target=self._let_in, args=(came, address), daemon=True).start()

    def _let_in(self, came: socket.socket, address: Any) -> None:
        try:
            connection = _taken(came, _KNOCK_S)
        except OSError:
            return
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            _limit(connection, PATIENCE_S)
        except (OSError, EOFError, AuthenticationError, AssertionError) as error:
            log.debug("%s was not let in: %s", address, error)
            connection.close()
            return
        self._came.put(Wire(connection))


def _listening(everywhere: bool, port: int) -> socket.socket:
    if not everywhere:
        return socket.create_server(("127.0.0.1", port), backlog=1024)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be turned off
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
    return socket.create_server(("", port), backlog=1024)


def _taken(one: socket.socket, patience_s: float) -> "Connection[Any, Any]":
    """The socket as a connection; it blocks, for so long at most."""
    one.setblocking(True)
    if one.family in (socket.AF_INET, socket.AF_INET6):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(PATIENCE_S * 1000))
    connection: Connection[Any, Any] = Connection(one.detach())
    _limit(connection, patience_s)
    return connection


def _limit(connection: "Connection[Any, Any]", patience_s: float) -> None:
    """Limit the time of each read and write."""
    span = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, span)


def addresses_of_this_machine(port: int) -> list[Address]:
    """Return the addresses at which ranks can connect, the loopback first, as it is the shortest
    way for ranks on this machine; without link-local addresses."""
    addresses = [
        each.address
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    usable = [text for text in addresses if not text.startswith(("127.", "fe80", "::1"))]
    return [(text, port) for text in ("127.0.0.1", *dict.fromkeys(usable))]
