"""One-time tasks: the commands of each database on them, and what reads them.

Imports ``store.dialects`` and the rooms below.
"""
