"""Frozen values, events, the clock, identity and durations: what every other package speaks of.

Imports only errors.
"""
