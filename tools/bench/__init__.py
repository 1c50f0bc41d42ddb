"""The benchmark (``python3 dev.py bench``): real workers, a private database, and the raw limit in
the same run.

A *cell* is one thing that is measured. A *contender* is a library that does it: slotwise, bare
psycopg (the raw limit), or an installed peer. Contenders of a cell take turns, round by round, so
that a noisy machine is noisy for all of them; ratios within a round and CPU per execution count
more than rates. ``comparison`` lets two versions of slotwise take turns. The
benchmark uses slotwise's public names; ``inside`` lists what it takes besides.
"""
