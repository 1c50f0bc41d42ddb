"""Business calendars and the days arranged around them. Imports the rest of schedules, model and errors."""
