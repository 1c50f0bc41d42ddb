"""What users declare, and how it is read once. Imports schedules, payload, settings, model and
errors.
"""
