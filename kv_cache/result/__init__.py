"""Results as typed values: what was counted, and the one place that derives numbers from it."""
