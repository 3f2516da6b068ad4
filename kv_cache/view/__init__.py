"""What each kind of result shows, said once: facts, tables and figures, which each form renders."""
