"""The middle of the spine: claims, settlements, the fence and the gates.

Imports ``store.queue``, ``store.dialects`` and the rooms below.
"""
