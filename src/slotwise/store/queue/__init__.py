"""One-time tasks: the commands of each database on them, and their reader. Imports ``store.dialects`` and below."""
