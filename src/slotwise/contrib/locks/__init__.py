"""Locks with a lease, in a database or in Redis, in the formats of Java's ShedLock. It imports the
core only.
"""
