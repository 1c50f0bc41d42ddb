"""Frozen values, events, the clock, identity, durations and the vocabulary. Imports only
errors.
"""
