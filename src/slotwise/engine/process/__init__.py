"""The processes of a worker: supervisor, signals, isolated attempts, and one slot in the
foreground.

Imports the rest of the engine and below.
"""
