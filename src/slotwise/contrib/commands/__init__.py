"""Jobs that run a command. Imports the hall only."""
