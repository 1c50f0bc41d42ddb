"""What applications call: schedule and change tasks, operate jobs. Imports the store and below,
never the engine.
"""
