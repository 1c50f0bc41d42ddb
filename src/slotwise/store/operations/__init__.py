"""What operators request, each with its audit row. Imports ``store.slots`` and the rooms below."""
