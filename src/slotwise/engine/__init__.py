"""The worker: starts, signs in, runs its loops and its handlers, and shuts down.

Imports the store and below, never the client or the registry.
"""
