"""The demo: three workers, real jobs, a real PostgreSQL, and three disasters, judged from the
ledger at the end.

It is an application: it imports ``slotwise`` itself, ``embedded``, ``migrate``, and of the store
what reads the ledger.
"""
