"""A task's data as bytes, and back. Imports model and errors."""
