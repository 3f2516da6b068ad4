"""Object storage as a tier: objects of a bucket below a prefix that the caller owns and removes."""

from kv_cache.tiers.objects.client import Client
from kv_cache.tiers.objects.place import ObjectPlace, below, is_object_url, parse_url
from kv_cache.tiers.objects.store import ENGINE, ObjectStore

__all__ = ["ENGINE", "Client", "ObjectPlace", "ObjectStore", "below", "is_object_url", "parse_url"]
