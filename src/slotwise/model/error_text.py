"""Error messages for display and for the tables: without secrets, bounded, and in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

# All patterns are linear: their quantifiers are possessive, or cannot meet the same character
# twice.
_URL = re.compile(r"(?<=[\w+.-])://[^:/?\s]*+:")
_KEYWORD = re.compile(
    r"""((?:passw(?:or)?d|passphrase|pwd)["']?+\s*+[=:]\s*+)"""
    r"""(?:'(?:[^'\\]|\\.)*+'?|"[^"]*+"?|(?:\\.|[^\s&\\])++)""",
    re.IGNORECASE | re.DOTALL,
)


def hide_password(text: str) -> str:
    """Replace every password by ``***``: in URLs, libpq strings, query options and reprs. Takes
    linear time.
    """
    # Up to the last @: a password may hold @, / and ? itself, and hiding too much is the safe
    # mistake.
    if (url := _URL.search(text)) and (end := text.rfind("@")) >= url.end():
        text = f"{text[: url.end()]}***{text[end:]}"
    return _KEYWORD.sub(r"\1***", text)


#: A word without blanks and quotes, in which an address may be; and where such an address may have
#: a login.
_WORD = re.compile(r"""[^\s"'<>`]++""")
_LOGIN = re.compile(r"(?<=[\w+.-])://([^:/?@]*+)([:@])")
#: Credentials in headers, up to the end of the string literal or line.
_HEADER = re.compile(
    r"""\b((?:proxy-)?authorization|(?:set-)?cookie)(["']?+[ \t]*+[=:,][ \t]*+)"""
    r"""(?:"[^"\n]*+"?|'[^'\n]*+'?|[^\n"'}]++)""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)([ \t]++)[\w.~+/=-]{8,}+", re.IGNORECASE)
#: What is a token by its form: a JWT, those of GitHub, GitLab, Slack, Stripe, npm, OpenAI,
#: Hugging Face and DigitalOcean, of SendGrid, and of Google.
_TOKEN = re.compile(
    r"\b(?:eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?"
    r"|(?:gh[opsur]_|github_pat_|glpat-|xox[a-z]-|[rs]k_live_)[\w-]{10,}+"
    r"|(?:npm_|sk-|hf_|dop_v1_|ya29\.|AIza)[\w-]{20,}+"
    r"|SG\.[\w-]{16,}+\.[\w-]{16,}+)"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]++"
)
#: An element of XML, up to its end.
_ELEMENT = re.compile(r"(<([\w:.-]++)>)[^<]++(?=</)")
#: A private key, up to its end or that of the text.
_PEM = re.compile(
    r"-----BEGIN (?:[A-Z]++ ){0,4}?PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----END).)*+(?:-----END[A-Z ]{0,50}+-----)?",
    re.DOTALL,
)
#: A name, or an option of a command line, with what separates it from its value.
_NAME = re.compile(
    r"""(?<![\w-])(?:([\w-]++)["']?+[ \t]*+(?::=|[=:]>?+|%3[Dd])[ \t]*+"""
    r"""|(--[\w-]++)["']?+,?+[ \t]++)"""
)
#: A part of a name that makes its value a secret; not in a plural, nor in the name of an
#: exception or of a file.
_SECRET = re.compile(
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|credential|session_?id"
    r"|(?:api|access|account|private)[_-]?key)"
    r"(?!s(?![a-z])|s?Error|s?Exception|[_-](?:file|path|name|type)(?![a-z]))"
    r"|(?:^|[_-])(?:pass(?:code)?|sig|auth|otp|pin|credentials)$|[_-]signature$",
    re.IGNORECASE,
)
#: A value: a string literal, or all up to a blank.
_VALUE = re.compile(
    r"""[bru]{0,2}(?:'(?:[^'\\\n]|\\.)*+'?|"(?:[^"\\\n]|\\.)*+"?)|(?:\\.|[^\s&])++""",
    re.IGNORECASE,
)
#: Values that give nothing away.
_NOTHING = {"None", "null", "''", '""'}
#: What follows a name and a colon in a message and is no value: two words without another name,
#: or punctuation in quotes.
_PROSE = re.compile(r"""[^\W\d_]++[ \t]++[^\W\d_]++(?![\w=:-])|(["'])[^\w"']++\1""")
_own_patterns: dict[str, re.Pattern[str]] = {}


def redact_also(patterns: Iterable[str]) -> None:
    """Let ``redact`` replace what these regular expressions match, too, for the rest of this
    process.
    """
    _own_patterns.update((one, re.compile(one)) for one in patterns)


def redact(text: str) -> str:
    """Replace secrets by ``***``: logins in URLs, credentials in headers, values of names such as
    ``api_key``.

    Takes linear time, besides what patterns of ``redact_also`` take. It rather hides too much than
    too little.
    """
    if "://" in text:
        text = _WORD.sub(_without_login, text)
    text = _TOKEN.sub("***", _PEM.sub("***", text))
    if "</" in text:
        text = _ELEMENT.sub(_without_content, text)
    text = _without_values(_BEARER.sub(r"\1\2***", _HEADER.sub(r"\1\2***", text)))
    for pattern in _own_patterns.values():
        text = pattern.sub("***", text)
    return text


def _without_login(word: re.Match[str]) -> str:
    """The word without the first login in it, up to the last @: a password may hold @, / and ?
    itself.
    """
    text = word[0]
    end = word[0].rfind("@")
    for login in _LOGIN.finditer(text):
        if login.end() <= end + 1:
            user = f"{login[1]}:" if login[2] == ":" else ""
            return f"{text[: login.start()]}://{user}***{text[end:]}"
    return text


def _without_content(element: re.Match[str]) -> str:
    return f"{element[1]}***" if _SECRET.search(element[2]) else element[0]


def _without_values(text: str) -> str:
    parts = list[str]()
    done = 0
    place = 0
    while (name := _NAME.search(text, place)) is not None:
        place = name.end()
        if _SECRET.search(name[1] or name[2]) is None or _is_reason(text, name):
            continue
        value = _VALUE.match(text, place)
        if value is not None and value[0] not in _NOTHING:
            parts += (text[done:place], "***")
            done = place = value.end()
    return "".join((*parts, text[done:]))


def _is_reason(text: str, name: re.Match[str]) -> bool:
    """Whether what follows a secret's name is no value: another option, a message, a directory."""
    end = name.end()
    if name[2]:
        return text.startswith("-", end)
    if ":" in name[0] and ":=" not in name[0]:
        is_path = text[name.start() - 1 : name.start()] == "/"
        return is_path or _PROSE.match(text, end) is not None
    return name[1].lower().endswith("pwd") and text.startswith("/", end)


_TRACEBACK = "Traceback (most recent call last):"
#: The characters that an exception group draws before its lines.
_DRAWN = " +|"
LIMIT = 500


def error_summary(error: str | None) -> str:
    """Return the last line of a traceback that names an exception, else the first line; at most
    500 characters.
    """
    lines = (error or "").strip().splitlines()
    if not lines:
        return ""
    lines = _last_traceback(lines) or lines
    said = [line for line in lines if line.strip() and not line.startswith("  ")]
    line = (said or lines)[0].strip()
    return line if len(line) <= LIMIT else f"{line[: LIMIT - 1]}…"


def _last_traceback(lines: list[str]) -> list[str]:
    """Return what follows the head of the last traceback; without one, all lines."""
    if _TRACEBACK in lines:
        return lines[len(lines) - lines[::-1].index(_TRACEBACK) :]
    if lines[0].lstrip(_DRAWN).endswith(_TRACEBACK):  # of an exception group
        return [line.removeprefix("  | ") for line in lines[1:]]
    return lines


#: The longest error in the tables, in bytes of UTF-8.
ERROR_LIMIT = 16_384


def escaped(text: str) -> str:
    """Escape all characters that could move a terminal's cursor or begin a forged line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def storable(said: object) -> str:
    """Return text that a database can store: without secrets and NUL, lone surrogates escaped,
    bounded.
    """
    text = (
        str(said)
        .replace("\x00", "\\x00")
        .strip()
        .encode("utf-8", "backslashreplace")
        .decode("utf-8")
    )
    return bounded(
        redact(bounded(text, 8 * ERROR_LIMIT))
    )  # bounded before, as a message may have many megabytes


def bounded(text: str, limit: int = ERROR_LIMIT) -> str:
    """Return the text; of a longer one its summary and its newest lines, together at most
    ``limit`` bytes of UTF-8.
    """
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    head = (
        f"{error_summary(text)}\n… {len(encoded) - limit} bytes and more left out …\n"
    )
    tail = encoded[len(head.encode()) - limit :].decode("utf-8", "ignore")
    return head + (tail.partition("\n")[2] or tail)
