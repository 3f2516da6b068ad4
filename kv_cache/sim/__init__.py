"""The virtual-time driver: the same lives, charged to models on a clock that jumps."""
