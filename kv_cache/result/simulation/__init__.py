"""The document of `sim`: variants of a simulated cluster, their numbers over seeds, the verdict."""
