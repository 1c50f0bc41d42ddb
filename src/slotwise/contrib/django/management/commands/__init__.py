"""``manage.py slotwise``: the command line with the settings of the project. Imports ``contrib``
and settings.
"""
