"""Who is where and what must move: pure decisions about copies in tiers."""
