"""Trees of results of the MLPerf Storage KV-cache sequence: options x trials x ranks.

`layout` names what lies where, `rankfile` reads one rank's result, `launcher` what MLPerf's own
launcher recorded, `tree` all of them with what is wrong, `aggregate` makes one number of many,
`rules` and `directories` hold a tree against the published rules. A tree may come from anywhere:
whatever is in it becomes a value or a sentence, and never a traceback. Nothing here changes a tree
but `manifest` and `systems`, which write one file each.
"""
