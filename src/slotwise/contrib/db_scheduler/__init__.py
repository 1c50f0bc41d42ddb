"""What programs of Java's db-scheduler have left: its table, and the words of its settings.

The core finds both as entry points named ``db-scheduler``: of ``slotwise.adoption`` and of
``slotwise.settings_words``.
"""
