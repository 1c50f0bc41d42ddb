"""Processes whose purpose is a worker, or one slot: in the foreground, under a supervisor, as
process 1.
"""
