"""The real driver: a run with threads, files, memory and clocks."""
