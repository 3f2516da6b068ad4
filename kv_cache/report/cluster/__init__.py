"""What `kv-cache.py sim` writes beside its document: tables as CSV, and the event log."""
