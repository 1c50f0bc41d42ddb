"""One-time tasks: the commands on them, and what reads them. Imports ``store.dialects`` and
below.
"""
