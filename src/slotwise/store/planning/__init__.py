"""Code meets rows: planner, revisions, deploy preview, instances, calendars. Imports
``store.operations`` and below.
"""
