"""A task that schedules many, and one that runs after all of them; each follows its predecessor's
success.

    python examples/fan_out_fan_in.py

prints, with a line for each page in between,

    splitting 3 pages
    10 words in all
"""

from __future__ import annotations

import threading

from _database import database_url, make_tables

from slotwise import JobRegistry, TaskContext, task

PAGES = ["every slot is accounted for, always", "no silent drop", "end"]
finished = threading.Event()


@task(name="example-split")
def split(ctx: TaskContext[list[str]]) -> None:
    print(f"splitting {len(ctx.data)} pages")
    ctx.then(add_up, len(ctx.data), id="book", countdown=len(ctx.data))
    for number, text in enumerate(ctx.data, start=1):
        ctx.then(count_words, {"page": str(number), "text": text}, id=f"page-{number}")


@task(name="example-count-words", result_retention="1h")
def count_words(ctx: TaskContext[dict[str, str]]) -> int:
    words = len(ctx.data["text"].split())
    print(f"page {ctx.data['page']} has {words} words")
    ctx.count_down(add_up, "book")
    return words


@task(name="example-add-up")
def add_up(ctx: TaskContext[int]) -> None:
    pages = [
        ctx.client.result(count_words, f"page-{number}")
        for number in range(1, ctx.data + 1)
    ]
    print(f"{sum(page.result for page in pages)} words in all")
    finished.set()


def main() -> None:
    registry = JobRegistry(
        tasks=[split, count_words, add_up],
        database_url=database_url(),
        poll_interval="500ms",
    )
    make_tables(registry)
    registry.client.schedule(split, PAGES)
    with registry:
        assert finished.wait(timeout=30), "the last task has not run"


if __name__ == "__main__":
    main()
