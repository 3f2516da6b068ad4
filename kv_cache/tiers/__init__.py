"""The only code that moves bytes: stores behind one protocol, the payload, and the buffer pool."""
