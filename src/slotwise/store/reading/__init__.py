"""Every read for people and dashboards. Imports the other rooms of the store; nothing of the store
imports it.
"""
