"""slotwise: recurring jobs on a cluster, coordinated by the database alone."""
