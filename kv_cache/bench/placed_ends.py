"""The end of a write without a sink, when its rows have gone well or one of them has not."""

import errno
from collections.abc import Mapping

from kv_cache.bench.batches import Batched, BatchMover
from kv_cache.core.effect import VANISHED
from kv_cache.core.errors import StoreError
from kv_cache.core.kinds import Tier
from kv_cache.tiers.base import PlacedStore, reason_of

_EXISTS = reason_of(OSError(errno.EEXIST, ""))


class PlacedEnds:
    """Ends writes of copies that these stores have placed."""

    def __init__(self, stores: Mapping[Tier, PlacedStore], batches: BatchMover) -> None:
        self._stores, self._batches = stores, batches

    def end(self, one: Batched) -> None:
        """Do what is left of a write, or leave nothing of it."""
        try:
            if one.error is None:
                self._complete(one)
        except StoreError as error:
            one.error = error
        if one.error is not None and (one.names or one.place):
            self._give_up(one, one.error)

    def _complete(self, one: Batched) -> None:
        store, spans = self._stores[one.ref.tier], () if one.place is None else one.place.spans
        where = one.names or one.place
        assert where is not None
        if where.keep:
            fd, one.kept = one.kept, None
            due = store.synced_with(one.ref, spans, fd)
            if due is not None:
                self._batches.sync(one, due)
        if one.place is not None and one.place.ends:
            one.timer.begin()
            steps = store.complete(one.ref, spans)
            one.timer.end_of_names()
            one.timer.steps += tuple(steps)

    def _give_up(self, one: Batched, error: StoreError) -> None:
        """Leave nothing, unless the name was another's before."""
        one.close_kept()
        if error.reason == _EXISTS:
            return
        try:
            spans = () if one.place is None else one.place.spans
            self._stores[one.ref.tier].give_up(one.ref, spans)
        except StoreError as failed:
            if failed.reason != VANISHED:
                one.error = failed
