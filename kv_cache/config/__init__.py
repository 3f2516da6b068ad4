"""The configuration of a run: one frozen tree of sections, read strictly and printed back.

`schema` is the layer under it, `sections` and `root` hold the options, `load` reads files.
"""
