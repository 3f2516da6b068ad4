"""From who prefills to who decodes: memory there, what is sent, and what is given up on the way.

Who waits for memory of another instance holds all of its prompt's where it is; of two mixed
instances none waits for the other, as each could be full of what waits.
"""

from kv_cache.sim.cluster.counts import ClusterCounts
from kv_cache.sim.cluster.event_loop import ENDS
from kv_cache.sim.cluster.fabric import Fabric
from kv_cache.sim.cluster.flight import DECODE_QUEUE, TRANSFER, Flight, Hold
from kv_cache.sim.cluster.instance import Instance
from kv_cache.sim.cluster.outcome import EventBytes
from kv_cache.sim.cluster.roster import Roster
from kv_cache.sim.cluster.routing import Routing


class Handover:
    def __init__(
        self, fabric: Fabric, counts: ClusterCounts, roster: Roster, routing: Routing
    ) -> None:
        self._fabric, self._counts = fabric, counts
        self._roster, self._routing = roster, routing
        section = fabric.scenario.separation
        self._push = section.transfer == "push"
        self._pipelined = self._push and section.pipelined
        self._chunk = 0  # tokens that are asked for at once; 0: all
        if section.transfer == "on-demand":
            self._chunk = section.chunk_blocks * fabric.block_tokens

    # --- memory where it decodes -----------------------------------------------------------

    def secure_early(self, flight: Flight) -> None:
        """Ask for memory of the decode side before prefill ends, where that is pushed to, and if a
        token is left behind the one that prefill gives."""
        left = flight.request.output_tokens - flight.generated
        if self._push and flight.decoder < 0 and left > 1:
            self._choose(flight)

    def _choose(self, flight: Flight) -> None:
        waits = self._routing.choose_decoder(flight)
        if flight.decoder == flight.home:
            return
        instance = self._roster.instance(flight.decoder)
        if waits:
            instance.enqueue(flight)
            instance.nudge()
        elif not instance.offer(flight):
            self.declined(flight)

    def declined(self, flight: Flight) -> None:
        """There is no room for it at another mixed instance: it is decoded at home."""
        self._counts.requests.handoffs_declined += 1
        self.leave(flight)
        self._routing.decode_at(flight, flight.home)
        if flight.prepared:
            flight.answered_offer(self._fabric.loop.now_ns)
            self._decode(flight).nudge()

    def accepted(self, flight: Flight) -> None:
        """The decode side has memory, and is ready for what is computed or asks for it."""
        flight.answered_offer(self._fabric.loop.now_ns)
        if flight.prepared:
            self._counts.turn(flight, TRANSFER, self._fabric.loop.now_ns)
            self._leave_home(flight)
        self._ask(flight)

    def leave(self, flight: Flight) -> None:
        """Take a flight out of where it was to decode; if that ends before its state was sent, it
        waits there, or has memory there."""
        there = self._roster.used[flight.decoder]
        there.members.pop(flight, None)
        self._routing.leave_decoder(flight)
        if flight.landing is not None:
            flight.landing.release()
            flight.landing = None
        elif not flight.landing_order and flight.decoder != flight.home:
            there.waiting.withdraw(flight)

    def forget(self, flight: Flight) -> None:
        """Who waits for memory must hold none elsewhere: others may wait for it there."""
        decoder = self._roster.instance(flight.decoder)
        self.leave(flight)
        flight.decoder = -1
        flight.sent = flight.sending = flight.landing_order = 0
        if flight.landed_ns < 0:
            flight.send_ns = flight.chunk_ns = -1
        decoder.nudge()

    # --- what is sent ----------------------------------------------------------------------

    def begin(self, flight: Flight) -> None:
        """Prefill is over: the sequence leaves the batch, its memory stays until it is sent."""
        if flight.decoder < 0:
            self._choose(flight)
        if flight.decoder == flight.home:
            self._decode(flight)
            return
        phase = DECODE_QUEUE if flight.landing is None else TRANSFER
        self._counts.turn(flight, phase, self._fabric.loop.now_ns)
        flight.prepared = True
        if flight not in self._roster.instance(flight.decoder).waiting.offers:
            self._leave_home(flight)
        self.send(flight)

    def _leave_home(self, flight: Flight) -> None:
        """Give its place in the batch to another; one that was offered keeps it until the answer,
        as it may have to decode there."""
        home = self._roster.instance(flight.home)
        if home.members.pop(flight, flight) is None:
            home.nudge()

    def _ask(self, flight: Flight) -> None:
        """Let the decode side ask for what is next, unless it is pushed there."""
        if self._push:
            self.send(flight)
            return
        loop = self._fabric.loop
        link_path = self._fabric.topology.path(flight.home, flight.decoder)
        delay_ns = sum(link.latency_ns for link in link_path)
        flight.sending += 1
        loop.at(loop.now_ns + delay_ns, ENDS, self._asked, flight)

    def _asked(self, flight: Flight) -> None:
        """The decode side's request has reached the prefill side."""
        flight.sending -= 1
        self.send(flight)

    def send(self, flight: Flight) -> None:
        """Send what is computed and not yet there."""
        fabric, landing = self._fabric, flight.landing
        if landing is None or (flight.sending and not self._push):
            return
        if not flight.prepared and not self._pipelined:
            return
        tokens = (flight.target if flight.prepared else flight.computed) - flight.sent
        if self._chunk:
            tokens = min(tokens, self._chunk)
        if tokens > 0:
            nbytes = tokens * fabric.token_bytes
            fabric.say("transfer", flight, flight.decoder, EventBytes("hbm", flight.home, nbytes))
            flight.sent += tokens
            flight.sending += 1
            if flight.send_ns < 0:
                flight.send_ns = fabric.loop.now_ns
            link_path = fabric.topology.path(flight.home, flight.decoder)
            fabric.network.send(link_path, nbytes, "pd-transfer", self._sent, (flight, landing))
        elif flight.prepared and not flight.sending:
            self._land(flight)

    def _sent(self, what: tuple[Flight, Hold]) -> None:
        flight, landing = what
        if flight.landing is not landing:
            return  # it has given that memory up
        flight.sending -= 1
        if flight.chunk_ns < 0:
            flight.chunk_ns = self._fabric.loop.now_ns
        if flight.sending == 0 and flight.prepared and flight.sent == flight.target:
            self._land(flight)
        elif self._chunk and flight.sent < flight.target:
            self._ask(flight)

    def _land(self, flight: Flight) -> None:
        """All of it is there: it decodes there from now on."""
        source, home = flight.hold, self._roster.instance(flight.home)
        assert source is not None
        assert flight.landing is not None
        source.release()
        self._routing.leave_prefill(flight)
        if flight.second_ns < 0:
            flight.landed_ns = self._fabric.loop.now_ns
        self._counts.requests.handoffs += 1
        flight.hold, flight.landing = flight.landing, None
        flight.order = flight.landing_order
        self._roster.instance(flight.decoder).store_prompt(flight, computed=False)
        self._decode(flight).nudge()
        home.nudge()

    def _decode(self, flight: Flight) -> Instance:
        """Let a flight decode where it was decided to. Returns the instance."""
        instance = self._roster.instance(flight.decoder)
        self._fabric.say("decode", flight, instance.number)
        instance.join(flight)
        return instance
