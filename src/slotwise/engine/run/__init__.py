"""Where handlers run: threads, the event loop, and the claims that are active.

Imports the store and below.
"""
