"""What this process is: a run alone, one rank of several that run together, or the coordinator.

kv-cache.py run --clients 3        the coordinator, which starts three ranks
mpirun -n 3 kv-cache.py run        three ranks; rank 0's process is the coordinator, and has a
                                   child that is rank 0
"""

import logging
import secrets
import socket
from collections.abc import MutableMapping, Sequence

import orjson

from kv_cache.app.prepare import check_output, output_of
from kv_cache.config.root import Config
from kv_cache.core.errors import ConfigError, PlaceError, os_reason
from kv_cache.core.launched import COORDINATOR, KEY
from kv_cache.core.mpirank import MpiRank
from kv_cache.crew.coordinator import Coordinator, Plan
from kv_cache.crew.rendezvous import NoMpi, look_for_mpi, meet
from kv_cache.crew.seat import Seat
from kv_cache.crew.wire import Gone, Listener, addresses_of_this_machine, connect

_KEY_BYTES = 32

log = logging.getLogger("kv_cache")


def take_part(
    config: Config, rank: MpiRank, environ: MutableMapping[str, str]
) -> "Seat | Coordinator | str | None":
    """The rank's seat, or the coordinator; None where this run is alone, and a sentence where it is
    alone although others were started. Raises UsageError."""
    if COORDINATOR in environ:
        return _seat_of_child(rank, environ)
    if config.run.clients > 1:
        _check_clients(config, rank)
        return _coordinator("clients", config.run.clients, config, everywhere=False)
    if rank.alone:
        return None
    alone = _why_apart(config, rank)
    if alone is not None:
        return alone
    try:
        return _of_job(config, rank)
    except NoMpi as error:
        if config.run.mpi == "together":
            raise ConfigError(f"run.mpi (--mpi) is together, but {error}") from None
        return f"ranks run apart, and nothing is added up: {error}; --mpi apart asks for it"


def _check_clients(config: Config, rank: MpiRank) -> None:
    option = f"run.clients (--clients) is {config.run.clients}"
    if rank.source is not None:
        raise ConfigError(
            f"{option}, but this is {rank} already ({rank.source}); leave --clients out, or start "
            "without mpirun"
        )
    if config.run.mpi == "apart":
        raise ConfigError(f"{option}: clients run together; leave --mpi apart out")
    reason = _cannot(config)
    if reason is not None:
        raise ConfigError(f"{option}, but {reason}; leave --clients out")


def _why_apart(config: Config, rank: MpiRank) -> str | None:
    """Why the ranks of an MPI job run apart without being asked; empty where they were asked."""
    if config.run.mpi == "apart":
        return ""
    reason = _cannot(config)
    if reason is None and rank.ranks is None:
        reason = f"{rank.source} does not come with the number of ranks"
    if reason is None:
        return None
    if config.run.mpi == "together":
        raise ConfigError(f"run.mpi (--mpi) is together, but {reason}; leave it out")
    return f"ranks run apart, and nothing is added up: {reason}"


def _cannot(config: Config) -> str | None:
    """Why ranks with this configuration cannot run together."""
    if config.run.virtual_time:
        return "virtual time (--virtual-time, --io-trace-log) has no clock that ranks could share"
    if config.run.trials > 1:
        return "run.trials (--trials) repeats single runs, and ranks have one window together"
    return None


# --- the ends of the wires -------------------------------------------------------------------


def _of_job(config: Config, rank: MpiRank) -> "Seat | Coordinator":
    """By MPI: rank 0 tells where it listens, the others come there."""
    look_for_mpi()
    if rank.rank:
        address = meet(rank, None)
        return _seat(
            [tuple(each) for each in address["addresses"]], bytes.fromhex(address["key"]), rank
        )
    everywhere = rank.on_machine != rank.ranks
    coordinator = _coordinator("mpi", rank.ranks or 1, config, everywhere=everywhere)
    plan = coordinator.plan
    try:
        meet(rank, {"addresses": plan.addresses, "key": plan.key.hex()})
    except BaseException:
        coordinator.close()
        raise
    return coordinator


def _coordinator(how: str, expected: int, config: Config, *, everywhere: bool) -> Coordinator:
    output = output_of(config)
    check_output(config, output)
    key, port = secrets.token_bytes(_KEY_BYTES), config.run.clients_port
    try:
        listener = Listener(key, everywhere=everywhere, port=port)
    except OSError as error:
        raise PlaceError(
            f"run.clients_port (--clients-port) {port}: it cannot be listened on "
            f"({os_reason(error)}); name another, or 0 for any that is free"
        ) from None
    addresses = (
        addresses_of_this_machine(listener.port) if everywhere else [("127.0.0.1", listener.port)]
    )
    plan = Plan(
        how=how, expected=expected, config=config, output=output, addresses=addresses, key=key
    )
    return Coordinator(plan, listener)


def _seat_of_child(rank: MpiRank, environ: MutableMapping[str, str]) -> Seat:
    """The key is taken out of the environment: nobody whom this process starts is to have it."""
    addresses = [tuple(each) for each in orjson.loads(environ.pop(COORDINATOR))]
    return _seat(addresses, bytes.fromhex(environ.pop(KEY, "")), rank)


def _seat(addresses: Sequence[tuple[str, int]], key: bytes, rank: MpiRank) -> Seat:
    try:
        return Seat(connect(addresses, key), rank)
    except Gone as error:
        raise PlaceError(
            f"{rank} on {socket.gethostname()} does not reach the coordinator of the ranks "
            f"({error}); open the port (--clients-port) between the machines, or give --mpi apart"
        ) from None
