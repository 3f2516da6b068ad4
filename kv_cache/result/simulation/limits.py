"""What the simulation of a cluster leaves out, in sentences for its readers."""

NOT_MODELLED = (
    (
        "Nothing was measured: every time comes from the peaks, rates, bandwidths and latencies "
        "of the scenario, or from the profile of a device that it names."
    ),
    (
        "An instance computes by its roofline, its rates or a table of its steps: but for the "
        "table no kernel is faster or slower for a shape, there are no draft tokens, and how its "
        "GPUs share a layer is in its peaks, and with a profile in the ring that adds up their "
        "outputs."
    ),
    (
        "Tokenising, HTTP, the router's own time and the engine's CPU time are 0, but for "
        "step_overhead_us."
    ),
    (
        "A link carries transfers, not packets: no congestion control, no loss, no multipath; "
        "who shares it shares it by FIFO or in equal parts."
    ),
    (
        "A device below HBM is bandwidth, latency and a queue: no garbage collection, no file "
        "system, no wear, no throttling."
    ),
    "Nothing fails: no instance, node or link goes away, and none is added.",
    ("Answers have the length that was drawn or recorded; no user gives up waiting or asks again."),
    (
        "hbm_gib is for KV state alone: weights and activations are outside of it, and divided "
        "from it only where a profile describes the GPUs."
    ),
)
