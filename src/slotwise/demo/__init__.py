"""The demo: three workers, real jobs, a real PostgreSQL, and three disasters, judged from the ledger at the end."""
