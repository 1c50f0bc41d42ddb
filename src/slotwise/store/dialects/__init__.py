"""What each database does in its own words, behind one port (``port.py``).

Imports ``store.connect``, ``store.schema`` and what lies below the store.
"""
