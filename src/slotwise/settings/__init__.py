"""Settings of a worker, and the sources they are read from. Imports model and errors."""
