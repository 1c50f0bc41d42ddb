"""The loops of a worker, each a ``run_once`` that says how long to sleep.

Imports ``engine.run``, the store and below.
"""
