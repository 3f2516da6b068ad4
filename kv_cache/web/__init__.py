"""The page and the API of `kv-cache.py serve`: the commands over HTTP.

A thin shell: whatever is started here is a child process with the arguments that are shown, and
leaves the files that the command line leaves. Nothing is measured in this process.
"""
