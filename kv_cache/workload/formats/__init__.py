"""Trace readers: one file a format, all giving the same row."""
