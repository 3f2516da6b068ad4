"""Use cases as functions: what each command does, without arguments, printing or exit codes."""
