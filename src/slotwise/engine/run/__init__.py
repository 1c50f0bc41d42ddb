"""Where handlers run: threads, the event loop, child processes, and the claims that are active.

Imports the store and below.
"""
