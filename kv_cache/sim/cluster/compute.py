"""How long a step of an engine takes: one forward pass over prompt chunks and one token of each
sequence that decodes.

Roofline (Williams et al., CACM 52(4), 2009) with what a transformer needs (Chowdhery et al., PaLM,
arXiv 2204.02311, appendix B): 2 FLOPs a weight and token, and for attention 4 x layers x heads x
head_dim FLOPs for each pair of a token and one it attends to; weights are read once a step, KV
state once for each sequence (a prompt chunk reads what lies before it). The longer of FLOPs and
bytes counts. Of a mixture of experts a step reads those that any of its tokens passes through: of n
experts, of which each token has k, n (1 - (1 - k/n) ^ tokens), if all are drawn evenly.

GPUs that share each layer (tensor parallelism; Shoeybi et al., Megatron-LM, arXiv 1909.08053,
section 3) add up their outputs twice a layer, and nothing is computed meanwhile: a ring sends
2 (N - 1)/N of hidden_dim x 2 bytes a token over the link of each GPU, in 2 (N - 1) steps
(Patarasuk and Yuan, JPDC 69(2), 2009).

Rate: measured rates of a whole instance, which its sequences share: prompt tokens over the prefill
rate plus decoded tokens over the decode rate. Table: `table_compute.py`. None: no time at all.

It must never depend on more than batch and context, and is exact for a run of many decode steps.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from kv_cache.config.scenario import InstanceSection, ModelSection
from kv_cache.config.scenario_hardware import GpuGroup
from kv_cache.config.scenario_rules import kv_bytes_per_token, model_shape, parameters
from kv_cache.config.step_table import StepTable
from kv_cache.core.model import ModelShape
from kv_cache.core.units import NS_PER_S, NS_PER_US
from kv_cache.sim.cluster.table_compute import TableCompute

NEVER = 1 << 62


class ComputeModel(Protocol):
    def step_ns(self, chunks: int, pairs: int, read: int, sequences: int, context: int) -> int:
        """Return the time of one step: `chunks` prompt tokens with `pairs` of (token, token before
        it) and `read` tokens of state before the chunks, beside `sequences` that decode over
        `context` tokens together."""

    def run_ns(self, sequences: int, context: int, steps: int) -> int:
        """Return the time of `steps` decode steps in a row, the context growing by `sequences` with
        each."""

    def require_run(self, sequences: int, context: int, steps: int) -> None:
        """Refuse steps that were run where nothing is known of one of them. Raises
        OutsideProfileError."""

    def steps_in(self, sequences: int, context: int, ns: int) -> int:
        """Return the fewest decode steps that take `ns` at least; `NEVER` if no number does."""

    def prefill_ns(self, tokens: int, before: int) -> int:
        """Estimate the time of a prompt of `tokens` behind `before` others, alone."""

    def least_ns(self, prompts: int, tokens: int) -> float:
        """Return the time that so many tokens of prompts and of answers take at the least."""

    @property
    def token_ns(self) -> float:
        """Time that one token of an answer adds to a full instance: for estimates of load."""


@dataclass(frozen=True, slots=True)
class Rates:
    """ns per token of prompts and of answers, and of each step; where all are 0, nothing takes
    time. At most `sharing` of `max_num_seqs` sequences share the decode rate: beside more each is
    as fast as beside so many."""

    prompt_ns: float
    token_ns: float
    step_overhead_ns: float
    sharing: int = NEVER
    max_num_seqs: int = 1

    def step_ns(self, chunks: int, pairs: int, read: int, sequences: int, context: int) -> int:
        shared = min(sequences, self.sharing)
        return ceil(self.step_overhead_ns + chunks * self.prompt_ns + shared * self.token_ns)

    def run_ns(self, sequences: int, context: int, steps: int) -> int:
        shared = min(sequences, self.sharing)
        return ceil(steps * (self.step_overhead_ns + shared * self.token_ns))

    def require_run(self, sequences: int, context: int, steps: int) -> None:
        """Know every step."""

    def steps_in(self, sequences: int, context: int, ns: int) -> int:
        step_ns = self.step_overhead_ns + min(sequences, self.sharing) * self.token_ns
        if ns <= 0 or not step_ns:
            return 0 if ns <= 0 else NEVER
        steps = max(0, int((ns - 1) / step_ns))  # not more than it takes, but for rounding
        while ceil(steps * step_ns) < ns:
            steps += 1
        while steps and ceil((steps - 1) * step_ns) >= ns:
            steps -= 1
        return steps

    def prefill_ns(self, tokens: int, before: int) -> int:
        return ceil(self.step_overhead_ns + tokens * self.prompt_ns)

    def least_ns(self, prompts: int, tokens: int) -> float:
        share = min(1.0, self.sharing / self.max_num_seqs)
        return prompts * self.prompt_ns + tokens * self.token_ns * share


@dataclass(frozen=True, slots=True)
class Roofline:
    """ns per unit of work: `flop_token` for a token's way through the weights, `flop_pair` for one
    pair of attention, `byte_weights` for reading the weights that each token passes through,
    `byte_experts` for those of all experts, of which one token leaves a share of `spared` alone,
    `byte_token` for a token's state, `shared_token` for adding up what several GPUs computed of
    it."""

    flop_token: float
    flop_pair: float
    byte_weights: float
    byte_token: float
    shared_token: float
    overhead: float
    token_ns: float
    byte_experts: float = 0.0
    spared: float = 0.0

    def weights_ns(self, tokens: int) -> float:
        """Return the time of reading what so many tokens pass through together."""
        return self.byte_weights + self.byte_experts * (1 - self.spared**tokens)

    def step_ns(self, chunks: int, pairs: int, read: int, sequences: int, context: int) -> int:
        flops = (chunks + sequences) * self.flop_token + (pairs + context) * self.flop_pair
        nbytes = self.weights_ns(chunks + sequences) + (read + context) * self.byte_token
        shared = (chunks + sequences) * self.shared_token
        return ceil(self.overhead + shared + max(flops, nbytes))

    def run_ns(self, sequences: int, context: int, steps: int) -> int:
        """FLOPs and bytes both grow in a straight line, so they cross at most once."""
        flops = sequences * self.flop_token + context * self.flop_pair
        nbytes = self.weights_ns(sequences) + context * self.byte_token
        ahead = flops - nbytes
        change = sequences * (self.flop_pair - self.byte_token)
        turn = steps  # the first step at which the other one is longer
        if ahead and change and (ahead > 0) != (change > 0):
            crossing = -ahead / change  # infinite where hardly anything changes
            turn = ceil(crossing) if crossing < steps else steps
        more_flops, more_bytes = sequences * self.flop_pair, sequences * self.byte_token
        if ahead > 0 or (not ahead and change > 0):
            first = _series(flops, more_flops, 0, turn)
            rest = _series(nbytes, more_bytes, turn, steps)
        else:
            first = _series(nbytes, more_bytes, 0, turn)
            rest = _series(flops, more_flops, turn, steps)
        fixed = self.overhead + sequences * self.shared_token
        return ceil(steps * fixed + first + rest)

    def require_run(self, sequences: int, context: int, steps: int) -> None:
        """Know every step."""

    def steps_in(self, sequences: int, context: int, ns: int) -> int:
        """Search the number of steps: they become longer, so the first one bounds it."""
        if ns <= 0:
            return 0
        low, high = 1, ns // max(1, self.run_ns(sequences, context, 1)) + 2
        while low < high:
            middle = (low + high) // 2
            if self.run_ns(sequences, context, middle) >= ns:
                high = middle
            else:
                low = middle + 1
        return low

    def prefill_ns(self, tokens: int, before: int) -> int:
        return self.step_ns(tokens, pairs_of(before, tokens), before, 0, 0)

    def least_ns(self, prompts: int, tokens: int) -> float:
        return (prompts + tokens) * self.flop_token


def _series(base: float, growth: float, low: int, high: int) -> float:
    """Return the sum of base + growth x i for i from `low` to `high` - 1."""
    steps = high - low
    return steps * (base + growth * (low + high - 1) / 2) if steps > 0 else 0.0


def pairs_of(before: int, tokens: int) -> int:
    """Return pairs of a token and one that it attends to (itself included), of `tokens` behind
    `before`."""
    return tokens * before + tokens * (tokens + 1) // 2


def make_compute(
    section: InstanceSection,
    model: ModelSection,
    max_num_seqs: int,
    gpus: GpuGroup | None = None,
    table: StepTable | None = None,
) -> ComputeModel:
    """Return the model of one group of instances; `gpus` and `table`: theirs, if files have
    them."""
    overhead = section.step_overhead_us * NS_PER_US
    if section.compute == "none":
        return Rates(0.0, 0.0, 0.0)
    if section.compute == "rate":
        return Rates(
            _each_ns(section.prefill_tokens_per_s),
            _each_ns(section.decode_tokens_per_s),
            overhead,
            section.decode_sharing_cap or NEVER,
            max_num_seqs,
        )
    if table is not None:
        return TableCompute(table, overhead, max_num_seqs)

    def read_ns(billion: float) -> float:
        return billion * 1e9 * model.weight_bits / 8 * bytes_ns

    shape = model_shape(model)
    flops_ns = _each_ns(section.tflops * 1e12 * section.flops_share)
    bytes_ns = _each_ns(section.hbm_gbytes_per_s * 1e9 * section.bytes_share)
    weights = parameters(model)
    flop_token = 2 * weights.active_billion * 1e9 * flops_ns
    shared_token, shared_step = _sharing_ns(shape, gpus) if gpus else (0.0, 0.0)
    overhead += shared_step
    roofline = Roofline(
        flop_token=flop_token,
        flop_pair=4 * shape.num_layers * shape.num_heads * shape.head_dim * flops_ns,
        byte_weights=read_ns(weights.total_billion - weights.experts_billion),
        byte_token=kv_bytes_per_token(model) * (gpus.kv_copies if gpus else 1) * bytes_ns,
        shared_token=shared_token,
        overhead=overhead,
        token_ns=0.0,
        byte_experts=read_ns(weights.experts_billion),
        spared=1 - weights.chosen,
    )
    full_ns = (roofline.weights_ns(max_num_seqs) + overhead) / max_num_seqs
    return replace(roofline, token_ns=max(flop_token, full_ns) + shared_token)


_SUMS_OF_A_LAYER = 2
_ACTIVATION_BYTES = 2


def _sharing_ns(shape: ModelShape, gpus: GpuGroup) -> tuple[float, float]:
    """Return what adding up takes for each token, and for each step whatever its tokens."""
    if gpus.gpus == 1:
        return 0.0, 0.0
    sums, others = _SUMS_OF_A_LAYER * shape.num_layers, gpus.gpus - 1
    sent = 2 * others / gpus.gpus * shape.hidden_dim * _ACTIVATION_BYTES
    return sums * sent * _each_ns(gpus.link_bytes_per_s), sums * 2 * others * gpus.link_latency_ns


def _each_ns(per_s: float) -> float:
    """Return the time of one token, FLOP or byte. Raises OverflowError if it would never end: sums
    of such times are not numbers any more."""
    if per_s * NEVER < NS_PER_S:
        raise OverflowError(f"{per_s} a second")
    return NS_PER_S / per_s
