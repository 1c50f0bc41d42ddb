"""PostgreSQL's functions and operators by exact names and types, whatever the search_path.

A function's name alone is searched in the session's search_path. Where arguments must be converted
for pg_catalog's function or operator, one that another role has created for exactly these types is
the better match, and runs with the rights of the session.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import Function


def qualified(compiler: type[SQLCompiler]) -> type[SQLCompiler]:
    """Return the compiler that writes functions with their schema, and strings as text, as our
    columns are.
    """

    class Qualified(compiler):  # type: ignore[misc, valid-type]
        def visit_function(
            self, func: Function[Any], *rest: Any, **options: Any
        ) -> str:
            text: str = super().visit_function(func, *rest, **options)
            if func.packagenames or _is_syntax(func):
                return text
            return f"pg_catalog.{text}"

        def render_bind_cast(self, *arguments: Any) -> str:
            text: str = super().render_bind_cast(*arguments)
            return text.replace("::VARCHAR", "::TEXT")

    return Qualified


def _is_syntax(func: Function[Any]) -> bool:
    """Whether PostgreSQL's parser resolves this call itself: it has no schema."""
    return func.name in ("array", "coalesce") or (
        func.name == "unnest" and len(func.clauses) > 1
    )
