"""Several models in one run: every conversation belongs to one of them.

Two models share no block, whatever they are asked: each has its own keys and sizes.
Which model a conversation belongs to is drawn by weight from its name. Where requests share blocks
by content alone (hash ids), it is drawn from a block instead, so that what a trace shares stays
shared: those that have that block in common ask the same model. It is not the first, which may be
a system prompt that all requests of a trace begin with, but the one behind `opening_tokens`. What
is shared within these each model has for itself. A trace that names its models may say which of
the mix they are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from kv_cache.core.block import Block, content_key, salted_key
from kv_cache.core.kinds import Lookup
from kv_cache.core.request import Request
from kv_cache.core.seed import Seed
from kv_cache.workload.popularity import weighted_place
from kv_cache.workload.sizing import Geometry
from kv_cache.workload.source import Source
from kv_cache.workload.source_wrappers import Mapped

_POINTS = 1 << 64


class Share(Struct, frozen=True, kw_only=True):
    """One model of a mix; its weight counts against the others'."""

    name: str
    weight: float
    geometry: Geometry


class Mix:
    """Chooses a model for a request, and changes blocks into those of that model."""

    def __init__(self, shares: Sequence[Share], seed: Seed, opening_tokens: int = 0) -> None:
        self._opening_tokens = opening_tokens
        self.shares = {share.name: share for share in shares}
        self._names = tuple(self.shares)
        self._seed = seed
        self._ends = tuple(accumulate(share.weight for share in shares))
        self._salts = {name: content_key("model", name) for name in self._names}

    def drawn(self, name: str) -> str:
        """Return the model of this name: the same one each time."""
        point = int.from_bytes(self._seed.child(name).bits(8), "little") / _POINTS
        return self._names[weighted_place(self._ends, point)]

    def by_content(self, blocks: Sequence[Block]) -> str:
        """Return the model of the first block that ends behind the opening, or else of the last."""
        left = self._opening_tokens
        for block in blocks:
            left -= block.tokens
            if left < 0:
                break
        return self.drawn(block.key.hex())

    def blocks(self, blocks: Iterable[Block], model: str) -> tuple[Block, ...]:
        """Return the same tokens as `model` keeps them."""
        salt, geometry = self._salts[model], self.shares[model].geometry
        return tuple(geometry.block(salted_key(b.key, salt), b.tokens) for b in blocks)

    def geometry(self, name: str) -> dict[str, Any]:
        model = self.shares[name].geometry.model
        return {**asdict(model), "bytes_per_token": model.bytes_per_token}

    def weights(self) -> dict[str, float]:
        """Return the share of each model: its weight in all weights."""
        return {name: share.weight / self._ends[-1] for name, share in self.shares.items()}


class Mixed(Mapped):
    """`source`, its requests spread over the models of a mix.

    `trace_models`: the source's own names of models -> names in the mix. `prepopulated`: all
    blocks are known by their content alone.
    """

    def __init__(
        self,
        source: Source,
        mix: Mix,
        trace_models: Mapping[str, str] | None = None,
        *,
        prepopulated: bool = False,
    ) -> None:
        super().__init__(source)
        self._mix = mix
        self._trace_models = trace_models or {}
        self._prepopulated = prepopulated
        self._requests: Counter[str] = Counter()  # by model
        self._named = 0

    def pop(self, now_ns: int) -> Request:
        original = self._source.pop(now_ns)
        request = self._change(original)
        self._requests[request.model] += 1
        self._named += not self._prepopulated and original.model in self._trace_models
        return request

    def describe(self) -> Mapping[str, Any]:
        shares = self._mix.weights()
        return {
            **super().describe(),
            "models": [
                {
                    "model": name,
                    "share": share,
                    "requests": self._requests[name],
                    **self._mix.geometry(name),
                }
                for name, share in shares.items()
            ],
            "requests_of_models_named_by_the_trace": self._named,
        }

    def _change(self, request: Request) -> Request:
        model = self._model(request)
        return replace(request, model=model, blocks=self._mix.blocks(request.blocks, model))

    def _model(self, request: Request) -> str:
        if self._prepopulated:
            return self._mix.by_content(request.blocks)
        if request.model in self._trace_models:
            return self._trace_models[request.model]
        if request.blocks and request.lookup is Lookup.CONTENT and not request.retrieved:
            return self._mix.by_content(request.blocks)
        return self._mix.drawn(request.conversation)
