"""One-time tasks as rows: insert, change, cancel and read them.

Imports ``store.connect``, ``store.schema`` and what lies below the store.
"""
