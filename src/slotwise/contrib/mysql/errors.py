"""What the numbers of MariaDB's and MySQL's errors mean."""

from __future__ import annotations

#: What MariaDB and MySQL call by numbers, as PostgreSQL's codes. After 1205 only the statement is
#: rolled back, after 1213 and 1020 the whole transaction.
_CODES = {
    1020: "40001",  # the record has changed since it was read
    1021: "53100",
    1037: "53200",
    1038: "53200",
    1040: "53300",
    1041: "53200",
    1044: "28000",  # no right to this database
    1045: "28P01",
    1047: "57P03",  # a node of a cluster that is not ready
    1049: "3D000",
    1053: "57P01",  # shutdown
    1062: "23505",
    1114: "53100",  # the table is full
    1133: "42704",
    1142: "42501",
    1143: "42501",
    1146: "42P01",
    1158: "08006",  # packets of the network
    1159: "08006",
    1160: "08006",
    1161: "08006",
    1203: "53300",
    1205: "55P03",
    1213: "40P01",
    1226: "53300",
    1227: "42501",
    1290: "25006",  # the server is read-only
    1410: "42704",
    1292: "22007",  # no instant
    1317: "57014",  # interrupted by an operator
    1792: "25006",
    1836: "25006",
    1927: "57P01",  # the connection was killed
    1969: "57014",  # longer than max_statement_time
    2002: "08001",
    2003: "08001",
    2005: "08001",
    2006: "08006",
    2013: "08006",
    2014: "08006",
    2055: "08006",
    3024: "57014",
    3140: "22032",  # no JSON
    3572: "55P03",  # NOWAIT
    3819: "23514",  # a check
    4025: "23514",
    4031: "25P03",  # idle for longer than allowed
}
_GONE = (
    "the database has rolled back your whole transaction: do all of its work again, "
    "in another one"
)
#: What an error leaves of a caller's transaction.
_LEFT = {
    1020: _GONE,
    1205: (
        "your transaction is still open, without this statement: roll it back, or go on; with "
        "innodb_rollback_on_timeout it is gone"
    ),
    1213: _GONE,
}


def code_of(number: int) -> str | None:
    """Return PostgreSQL's code of an error; None for one that is of no interest."""
    return _CODES.get(number)


def left_by(number: int) -> str | None:
    """Return what an error leaves of a caller's transaction; None if that is not special."""
    return _LEFT.get(number)
