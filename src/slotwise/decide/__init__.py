"""Every decision, as a pure function: no I/O, no clock, no SQL. "Now" is always the database's,
and given.

The life of a plan row: it waits for ``slot``, due at ``execution_time``; ``next_slot`` is the one
after. While ``next_slot`` lies in the future the slot is on time; else slots were missed and
``at_claim`` says which one runs. ``at_finish`` says what a held row becomes, also where its holder
fell silent. Slots only move forward, by schedule arithmetic. Imports ``jobs``, ``schedules`` and
``model``.
"""
