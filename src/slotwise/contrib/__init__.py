"""What connects slotwise with other things. Each module imports the core, never the other way
round.
"""
