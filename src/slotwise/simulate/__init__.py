"""What would run: days in seconds, on the test kit's worker. Imports the test kit, the registry
and below.
"""
