"""What operators request, each with its audit row: pause, trigger, retry, backfill, delete, recover.

Imports ``store.slots`` and the rooms below.
"""
