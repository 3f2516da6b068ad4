"""What `kv-cache.py sim` found, told: the document, the verdict, text, tables, and the event log.

It knows simulations only as plain values, as a document has them. The page is
`report/html/cluster.py`, the picture `report/pictures/cluster.py`.
"""
