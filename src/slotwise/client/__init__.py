"""What applications call: schedule tasks, one or many, change them, and operate jobs.

Imports the store and below, never the engine.
"""
