"""MariaDB and MySQL: addresses, connections, tables, and a dialect on the base ``Locking``.

The core finds it by entry points when an address begins with ``mysql://`` or ``mariadb://``.
"""
