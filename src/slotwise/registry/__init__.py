"""The facade that users build, its validation, and how it runs inside an event loop.

Imports everything below it: engine, client, store.
"""
