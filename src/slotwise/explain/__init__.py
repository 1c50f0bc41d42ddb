"""Why a slot ran or did not, in sentences. Imports the store and below; only reads."""
