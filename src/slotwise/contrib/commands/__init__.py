"""Jobs that run a command. Imports the hall only.

>>> from slotwise import Cron
>>> from slotwise.contrib.commands import CommandJob
>>> CommandJob(name="dump", schedule=Cron("0 2 * * *", tz="UTC"), command="pg_dump shop").name
'dump'
"""

from slotwise.contrib.commands.command_job import CommandJob

__all__ = ["CommandJob"]
