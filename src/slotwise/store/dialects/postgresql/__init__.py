"""PostgreSQL (14 or newer): its statements as text, and the classes that run them.

Imports the other dialects' port, ``store.connect`` and ``store.schema``.
"""
