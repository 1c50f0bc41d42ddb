"""The benchmark behind ``slotwise bench``: real workers, a private database, and the raw limit in the same run.

A *cell* is one thing that is measured; a *contender* is somebody who does it: slotwise, bare psycopg (the raw
limit), or a peer that is installed. Contenders of a cell take turns, round by round, so that a noisy machine is
noisy for all of them; what counts are ratios within a round, and CPU per execution.
"""
