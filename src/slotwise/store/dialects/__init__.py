"""The statements of each database, behind one port (``port.py``).

Imports ``store.connect``, ``store.schema`` and what lies below the store.
"""
