"""Who asks for what, and when."""
