"""The seam between one engine and the cluster that it belongs to: what an instance reports."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from kv_cache.sim.cluster.flight import Flight
from kv_cache.sim.cluster.prefix_match import PrefixPart

InstanceT = TypeVar("InstanceT", contravariant=True)


class InstanceEvents(ABC, Generic[InstanceT]):
    """What an instance reports to the coordinator of all instances. The laws:

    1. An instance reports between two of its steps; it has booked the change before it reports it.
    2. Each report is made once, in the order of the events; a flight is with one instance at a
       time, but for one that prefills here while memory waits for it where it decodes.
    3. A report may call back: `enqueue`, `join`, `prefill` and `nudge` at once, of any instance.
       Only `kick` does not begin again while it runs.
    """

    @abstractmethod
    def admitting(self, instance: InstanceT) -> None:
        """An instance is about to admit its next flight; who waits in a central queue may come."""

    @abstractmethod
    def admitted(self, instance: InstanceT, flight: Flight) -> None:
        """A flight has its memory, and is out of the queue."""

    @abstractmethod
    def declined(self, flight: Flight) -> None:
        """There is no memory for a flight that was offered."""

    @abstractmethod
    def prefix_matched(
        self, instance: InstanceT, flight: Flight, parts: Sequence[PrefixPart]
    ) -> None:
        """The stored prefix of a flight is pinned; what is not in HBM has to be loaded."""

    @abstractmethod
    def prompt_secured(self, flight: Flight) -> None:
        """All of a prompt has memory where it prefills, and will be computed: only now may it hold
        memory elsewhere."""

    @abstractmethod
    def chunk_computed(self, flight: Flight) -> None:
        """A part of a prompt is computed that is decoded elsewhere."""

    @abstractmethod
    def prompt_computed(self, instance: InstanceT, flight: Flight) -> None:
        """All of a prompt is there, computed or loaded: the first token is out."""

    @abstractmethod
    def answered(self, instance: InstanceT, flight: Flight) -> None:
        """The last token is out."""

    @abstractmethod
    def preempted(self, instance: InstanceT, flight: Flight, *, decoded: bool) -> None:
        """A flight has left the batch for want of memory, which it still holds."""

    @abstractmethod
    def swap_in(self, instance: InstanceT, flight: Flight) -> None:
        """There is memory for a flight that was swapped out."""
