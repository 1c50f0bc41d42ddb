"""Cron expressions: parsed, validated and put into words. Imports the rest of schedules, model and errors."""
