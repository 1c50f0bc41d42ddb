"""The tables and every statement on them; its rooms are layered from ``reading`` down to
``schema``.

Imports decide, jobs, schedules, settings, payload, model and errors.
"""
