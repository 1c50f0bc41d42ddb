"""What programs of Java's db-scheduler have left: its table, and the words of its settings.

The core finds them by entry points: ``db-scheduler`` of ``slotwise.adoption`` and of
``slotwise.settings_words``, and ``db-scheduler-table``, which tells its table from others.
"""
