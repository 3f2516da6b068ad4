"""A cluster of inference engines in virtual time: `kv-cache.py sim SCENARIO.yaml`."""
