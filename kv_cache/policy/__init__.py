"""What to keep: policies as pure objects behind numbered laws, one algorithm a file."""
