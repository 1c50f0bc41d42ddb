"""The loops of a worker, what runs the handlers, and the worker that composes them."""
