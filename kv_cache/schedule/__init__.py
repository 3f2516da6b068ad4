"""In what order and how many at once: pure decisions about waiting."""
