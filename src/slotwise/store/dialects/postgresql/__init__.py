"""PostgreSQL (15 or newer): its statements as text, and the classes that run them.

Imports ``store.dialects``, ``store.connect`` and ``store.schema``.
"""
