"""Attempts in child processes, for jobs with ``isolation="process"``.

The core finds the parent's part as the entry point ``process`` of ``slotwise.isolation``.
"""
