"""Connections: pools, addresses, deadlines, notifications, errors. Imports ``store.schema`` and
below the store.
"""
