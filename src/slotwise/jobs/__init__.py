"""What users declare, and how it is read once, at registration.

Imports schedules, payload, settings, model and errors.
"""
