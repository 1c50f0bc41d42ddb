"""The loops of a worker: each has a ``run_once`` that returns how long to sleep.

Imports ``engine.run``, the store and below.
"""
