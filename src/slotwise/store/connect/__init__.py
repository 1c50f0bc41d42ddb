"""Connections: pools, addresses, deadlines, notifications, prepared statements, and what an error means.

Imports ``store.schema`` and what lies below the store.
"""
