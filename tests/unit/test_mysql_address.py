"""Addresses of MariaDB and MySQL, as people write them."""

from __future__ import annotations

import pytest

from slotwise import InvalidSetting
from slotwise.spi import database_url


@pytest.mark.parametrize(
    "text",
    [
        "mysql://u:p%40ss@h:3307/d",
        "mariadb://u:p%40ss@h:3307/d",
        "mysql+pymysql://u:p%40ss@h:3307/d",
        "mariadb+mysqldb://u:p%40ss@h:3307/d",
        "jdbc:mariadb://h:3307/d?user=u&password=p%40ss",
    ],
)
def test_each_spelling_is_one_address(text: str) -> None:
    url = database_url(text)
    assert url.drivername == "mysql+pymysql"
    found = (url.username, url.password, url.host, url.port, url.database)
    assert found == ("u", "p@ss", "h", 3307, "d")
    assert not url.query


def test_a_socket_and_a_certificate_reach_the_driver() -> None:
    url = database_url("mysql://u@/d?unix_socket=/run/s&ssl_ca=/etc/ca.pem")
    assert dict(url.query) == {"unix_socket": "/run/s", "ssl_ca": "/etc/ca.pem"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mysql://u:sesame@h", "names no database"),
        ("mysql:u:sesame@h/d", "followed by //"),
        ("mysql://u:sesame@h:x/d", "a port is a number"),
        ("mysql://u:sesame@a,b/d", "one host"),
        ("mysql://u:sesame@h/d?charset=latin1", "sessions speak utf8mb4"),
        ("mysql://u:sesame@h/d?sesame=1", "option 1 .* remove it"),
        ("jdbc:mysql://h/d?user=u&password=sesame&useSSL=true", "ssl_ca"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(text: str, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why) as refused:
        database_url(text)
    assert "sesame" not in str(refused.value)
