"""SQLite: addresses, connections, and a dialect on the base ``OneWriter``.

The core finds it by entry points when an address begins with ``sqlite:``.
"""
