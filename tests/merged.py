"""Results of ranks, and the crews they are of."""

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import orjson

from kv_cache.core.crew import Crew, Member
from kv_cache.core.text import as_json
from kv_cache.core.units import NS_PER_MS, NS_PER_S
from kv_cache.result.chain import seal
from kv_cache.result.derive import derive
from kv_cache.result.ranks import merged_document
from kv_cache.result.run import read_run
from tests import cli

RANKS = 4


@cache
def _real() -> tuple[bytes, ...]:
    """Results of four small runs, each of which was told that it is a rank of four. They are paced,
    so that a fast machine has no more to check than a slow one."""
    told = dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), str(RANKS))
    with TemporaryDirectory(dir=".") as place:
        for rank in range(RANKS):
            here = Path(place, str(rank))
            here.mkdir()
            with patch.dict(os.environ, told, OMPI_COMM_WORLD_RANK=str(rank)):
                ran = cli.small(
                    here, *cli.LIGHT, "--duration=1", "--mpi=apart", "--request-rate=50"
                )
            assert ran.code == 0, ran.err
        files = [next(Path(place, str(rank)).glob("R*.json")) for rank in range(RANKS)]
        documents = [orjson.loads(file.read_bytes()) for file in files]
        for document in documents:  # as if they had begun together
            own, first = document["kv_cache"], documents[0]["kv_cache"]
            late_ns = own["phases_ns"]["measure_start"] - first["phases_ns"]["measure_start"]
            began = datetime.fromisoformat(first["started_utc"]) - timedelta(
                microseconds=late_ns / 1e3
            )
            own["started_utc"] = began.isoformat()
        return tuple(as_json(resealed(document)) for document in documents)


def results(count: int = RANKS) -> dict[int, Any]:
    """The first of them, as plain JSON that may be changed."""
    return {rank: orjson.loads(_as_of(rank, count)) for rank in range(count)}


@cache
def _as_of(rank: int, count: int) -> bytes:
    """Return the result of a rank as if it were one of `count`."""
    if count == RANKS:
        return _real()[rank]
    document = orjson.loads(_real()[rank])
    document["kv_cache"]["rank"] |= {"ranks": count, "on_machine": count}
    document["kv_cache"]["passport"]["evidence"]["sample"]["ranks"] = count
    document["kv_cache"].pop("chain")
    return as_json(seal(derive(read_run(document)), {}))


def resealed(document: Any) -> Any:
    """With a chain that fits whatever was changed."""
    document["kv_cache"].pop("chain", None)
    return seal(document, {})


def member(rank: int, *, opened_ms: float = 0.0, **changed: Any) -> Member:
    told: dict[str, Any] = {
        "host": platform.node(),
        "pid": 100 + rank,
        "offset_ns": 10 * rank,
        "offset_error_ns": 20_000,
        "ready_ns": NS_PER_S,
        "opened_ns": 2 * NS_PER_S + int(opened_ms * NS_PER_MS),
        "ended_ns": 5 * NS_PER_S,
        **changed,
    }
    return Member(rank=rank, **told)


def crew(count: int = RANKS, opened_ms: Sequence[float] = (), **changed: Any) -> Crew:
    """One that opened together, or so many ms after the plan."""
    late = [*opened_ms, *([0.0] * count)]
    members = [member(rank, opened_ms=late[rank]) for rank in range(count)]
    told: dict[str, Any] = {"how": "clients", "planned_ns": 2 * NS_PER_S, "members": members}
    return Crew(expected=count, **{**told, **changed})


def merged(documents: dict[int, Any] | None = None, of: Crew | None = None) -> dict[str, Any]:
    """All ranks in one document."""
    if documents is None and of is None:
        whole: dict[str, Any] = orjson.loads(_merged())
        return whole
    return merged_document(results() if documents is None else documents, of or crew())


@cache
def _merged() -> bytes:
    return as_json(merged_document(results(), crew()))
