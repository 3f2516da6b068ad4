"""Policies without time: what caches of any size and any policy find in a sequence of accesses."""
