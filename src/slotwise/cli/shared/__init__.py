"""What several commands share: options, output, the application, errors and exit statuses. Imports
no command.
"""
