"""Code meets rows: the planner, revisions, the preview of a deploy, instances, calendars.

Imports ``store.operations`` and the rooms below.
"""
