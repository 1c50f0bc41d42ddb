"""The processes of a worker: supervisor, signals, lifeline, and one slot in the foreground.

Imports the rest of the engine and below.
"""
