"""A calendar changes, and the rows that go by it follow: by the planner's rules, on both
databases.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.store.bench import NOON, Bench, a_job
from tests.store.waiting import wait_until_blocked

from slotwise import Calendar, Daily, InvalidSchedule, Schedule
from slotwise.operations import CalendarChange, Calendars
from slotwise.spi import Database
from slotwise.store.planning import calendars

#: NOON is that of Thursday, 1 January 2026.
FRIDAY, MONDAY, TUESDAY = date(2026, 1, 2), date(2026, 1, 5), date(2026, 1, 6)
NINE = Daily("09:00")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def nine(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 9, tzinfo=UTC)


class Desk:
    """A bench whose job goes by a calendar, and whoever edits that."""

    def __init__(self, database: Database, schedule: Schedule, *names: str) -> None:
        self.bench = Bench(
            database, [a_job(name, schedule) for name in names or ("open",)]
        )
        self.changes = Calendars(self.bench.store, "tester@host")

    def close(self, *days: date, dry: bool = False) -> CalendarChange:
        """Let nobody work on these days, and no others."""

        def edit(before: Calendar | None) -> Calendar:
            return replace(before or Calendar(name="CO"), days=frozenset(days))

        return self.changes.change("CO", edit, "calendar add", dry_run=dry)

    def slot(self, name: str = "open") -> datetime | None:
        return self.bench.row(name).slot


@pytest.fixture
def desk(database: Database) -> Desk:
    """`open` waits for Friday, nine o'clock, and would roll."""
    made = Desk(database, NINE.excluding("CO", roll="following"))
    made.close()
    made.bench.plan()
    assert made.slot() == nine(FRIDAY)
    return made


def test_a_waiting_row_moves(desk: Desk) -> None:
    """A day that closes takes its slot with it; opened again, the slot is back. The row's text
    says which revision.
    """
    change = desk.close(FRIDAY)
    assert [(one.job, one.next_slot, one.refused) for one in change.followed] == [
        ("open", nine(MONDAY), None)
    ]
    assert desk.slot() == nine(MONDAY)
    assert "CO@2[SAT,SUN 2026:0102]" in str(desk.bench.row("open").schedule)
    desk.close()
    assert desk.slot() == nine(FRIDAY)


def test_counters_and_watermark_stay(desk: Desk) -> None:
    """What has run has run: no slot that started comes back."""
    desk.bench.clock.set(nine(FRIDAY))
    desk.bench.settle(desk.bench.claim_one("open"))
    assert desk.slot() == nine(MONDAY)
    desk.close(MONDAY)
    row = desk.bench.row("open")
    assert (row.slot, row.watermark, row.last_success) == (
        nine(TUESDAY),
        nine(FRIDAY),
        nine(FRIDAY),
    )


def test_a_held_row_gets_the_text_and_moves_at_its_settlement(desk: Desk) -> None:
    """Its slot, version and holder stay; the next slot comes from the new days."""
    desk.bench.clock.set(nine(FRIDAY))
    claim = desk.bench.claim_one("open")
    desk.close(MONDAY)
    row = desk.bench.row("open")
    assert (row.slot, row.version, row.picked_by) == (
        nine(FRIDAY),
        claim.row.version,
        claim.holder,
    )
    desk.bench.settle(claim)
    assert desk.slot() == nine(TUESDAY)
    assert desk.bench.slot("open")["outcome"] == "succeeded"


def test_a_due_slot_stays_with_the_days_it_was_planned_by(desk: Desk) -> None:
    """Friday's slot is due already when Friday is closed: it runs, and Monday comes after it."""
    desk.bench.clock.set(nine(FRIDAY))
    desk.close(FRIDAY)
    assert desk.slot() == nine(FRIDAY)
    desk.bench.settle(desk.bench.claim_one("open"))
    assert desk.slot() == nine(MONDAY)


def test_skipped_slots_are_flagged_by_the_new_days(database: Database) -> None:
    """With `skip` the slot stays and does not run; the ledger says that the calendar did it."""
    desk = Desk(database, NINE.excluding("CO"))
    desk.close()
    desk.bench.plan()
    desk.close(FRIDAY)
    assert desk.slot() == nine(FRIDAY)
    desk.bench.clock.set(nine(MONDAY))
    (claim,) = desk.bench.claim("open")
    assert claim.slot == nine(MONDAY)
    gaps = desk.bench.gaps("open")
    assert [(count, why) for _, _, count, why in gaps] == [
        (3, "calendar")
    ]  # Friday, Saturday, Sunday


def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    """It says what would come, of calendar and rows; both stay, and no audit says otherwise."""
    before = desk.bench.backup()
    change = desk.close(FRIDAY, dry=True)
    assert (change.after.revision, change.after.days) == (2, frozenset({FRIDAY}))
    assert [(one.job, one.next_slot) for one in change.followed] == [
        ("open", nine(MONDAY))
    ]
    assert desk.bench.backup() == before
    assert desk.changes.find("CO").calendar == Calendar(name="CO", revision=1)
    with desk.bench.store.transaction() as connection:
        assert (
            connection.scalar(
                sa.select(sa.func.count()).select_from(desk.bench.tables.controls)
            )
            == 1
        )


def test_the_same_days_change_nothing(desk: Desk) -> None:
    """No new revision, no row touched."""
    desk.close(FRIDAY)
    before = desk.bench.backup()
    change = desk.close(FRIDAY)
    assert (change.before, change.followed) == (change.after, [])
    assert desk.bench.backup() == before


def test_an_interrupted_change_is_finished_by_the_next(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calendar changed, the rows had not followed yet: an equal change lets them."""
    with monkeypatch.context() as patched:
        patched.setattr(Calendars, "_follow", lambda self, after, *, dry_run: [])
        desk.close(FRIDAY)
    assert desk.slot() == nine(FRIDAY)
    assert [one.next_slot for one in desk.close(FRIDAY).followed] == [nine(MONDAY)]


@pytest.mark.parametrize("size", [1, 2, 3], ids=lambda size: f"pages-of-{size}")
def test_rows_follow_page_by_page(
    database: Database, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """All of them, once, whatever the size of a page; rows of calendars with longer names stay."""
    monkeypatch.setattr(calendars, "PAGE", size)
    desk = Desk(database, NINE.excluding("CO", roll="following"), "a", "b", "c")
    desk.close()
    desk.changes.change("XCO", lambda before: Calendar(name="XCO"), "calendar add")
    desk.bench.plan()
    others = Bench(database, [a_job("other", NINE.excluding("XCO", roll="following"))])
    others.plan()
    assert [one.job for one in desk.close(FRIDAY).followed] == ["a", "b", "c"]
    assert [desk.slot(name) for name in "abc"] == [nine(MONDAY)] * 3
    assert others.row("other").slot == nine(FRIDAY)


def test_a_row_that_cannot_follow_keeps_its_days(database: Database) -> None:
    """Nothing would be left of it: it says so, and the others follow."""
    desk = Desk(database, NINE.excluding("CO", roll="following"))
    desk.close()
    desk.bench.plan()
    sundays = Bench(database, [a_job("sundays", NINE.nth_business_day(23, "CO"))])
    sundays.plan()
    change = desk.changes.change(
        "CO",
        lambda before: Calendar(name="CO", weekend=frozenset({0, 1, 2, 3, 4, 6})),
        "calendar import",
    )
    refused = {one.job: one.refused for one in change.followed}
    assert refused["open"] is None
    assert "never fires" in str(refused["sundays"])
    assert "CO@1[" in str(sundays.row("sundays").schedule)


def test_a_second_change_while_a_job_is_late_skips_its_oldest_slots(
    desk: Desk,
) -> None:
    """A row remembers one earlier schedule; edits between which no slot falls count as one."""
    desk.bench.clock.set(nine(MONDAY) + HOUR)
    assert [one.superseded for one in desk.close(TUESDAY).followed] == [0]
    assert [one.superseded for one in desk.close(FRIDAY + 14 * DAY).followed] == [0]
    desk.bench.clock.set(nine(MONDAY + 2 * DAY) + HOUR)
    (followed,) = desk.close(FRIDAY + 21 * DAY).followed
    assert followed.superseded > 0
    assert (
        sum(gap[2] for gap in desk.bench.gaps("open") if gap[3] == "superseded")
        == followed.superseded
    )
    assert desk.slot() == nine(TUESDAY)


def test_a_job_planned_later_goes_by_the_new_days(desk: Desk) -> None:
    """And a worker that starts again finds its row as it should be."""
    desk.close(FRIDAY)
    assert desk.bench.plan()["open"].change == "kept"
    assert desk.slot() == nine(MONDAY)


def test_a_calendar_in_use_is_not_removed(desk: Desk) -> None:
    """The message names the jobs; unused, it goes."""
    with pytest.raises(
        InvalidSchedule,
        match="calendar CO is used by open; change their schedules first",
    ):
        desk.changes.remove("CO", "calendar remove")
    desk.bench.delete("open")
    assert desk.changes.remove("CO", "calendar remove").name == "CO"
    assert desk.changes.all() == []
    with pytest.raises(InvalidSchedule, match="there is no calendar CO"):
        desk.changes.remove("CO", "calendar remove")


def test_changes_are_audited(desk: Desk) -> None:
    """Who, when, which command, and the calendar as it is now."""
    desk.close(FRIDAY)
    controls = desk.bench.tables.controls
    with desk.bench.store.transaction() as connection:
        found = (
            connection.execute(sa.select(controls).order_by(controls.c.id.desc()))
            .mappings()
            .first()
        )
    assert found is not None
    assert (found["author"], found["command"], found["at"]) == (
        "tester@host",
        "calendar add",
        NOON,
    )
    assert "CO@2[SAT,SUN 2026:0102]" in found["arguments"]


def test_explain_says_who_added_the_day(database: Database) -> None:
    """The day by its name, who has added it, when and why; not who has added a later one. A
    weekend says that it is one.
    """
    desk = Desk(database, NINE.excluding("CO"))
    desk.close()
    desk.bench.plan()

    def add(day: date, author: str, **told: str | None) -> None:
        def edit(before: Calendar | None) -> Calendar:
            assert before is not None
            return replace(before, days=before.days | {day})

        changes = Calendars(desk.bench.store, author)
        named = {day: "Bank holiday"}
        changes.change("CO", edit, "calendar_add", names=named, **told)
        desk.bench.tick(1)

    add(FRIDAY, "ann", note="the branch is closed")
    add(TUESDAY, "bob")
    inspect = desk.bench.inspect
    told = " ".join(inspect.explain("open", nine(FRIDAY)).sentences)
    assert (
        "Friday, 2026-01-02, is a day of the calendar CO (Bank holiday), which ann added at "
        "2026-01-01T12:00:00Z: the branch is closed." in told
    )
    desk.bench.clock.set(nine(MONDAY))
    desk.bench.claim("open")
    told = " ".join(inspect.explain("open", nine(FRIDAY)).sentences)
    assert "which ann added" in told
    saturday = nine(FRIDAY + DAY)
    told = " ".join(inspect.explain("open", saturday).sentences)
    assert "Saturday belongs to the weekend of the calendar CO." in told
    told = " ".join(inspect.explain("open", nine(TUESDAY)).sentences)
    assert "(Bank holiday), which bob added at 2026-01-01T12:01:00Z." in told


def test_a_day_of_an_unreadable_audit_is_named_alone(desk: Desk) -> None:
    """Another program may have written the entries, or they are pruned."""
    desk.changes.change("CO", lambda before: Calendar(name="CO"), "calendar_add")
    controls = desk.bench.tables.controls
    broken = controls.update().values(arguments='{"calendar": "CO@nonsense"}')
    desk.close(FRIDAY)
    with desk.bench.store.transaction() as connection:
        connection.execute(broken)
    told = " ".join(desk.bench.inspect.explain("open", nine(FRIDAY)).sentences)
    assert "Friday, 2026-01-02, is a day of the calendar CO." in told


def test_lines_say_who_goes_by_it(desk: Desk) -> None:
    """Each calendar with its jobs, one without any, too."""
    desk.changes.change("empty", lambda before: Calendar(name="empty"), "calendar add")
    assert [(line.name, list(line.jobs)) for line in desk.changes.all()] == [
        ("CO", ["open"]),
        ("empty", []),
    ]
    with pytest.raises(InvalidSchedule, match=r"did you mean empty\?"):
        desk.changes.find("emty")


def test_a_paused_row_follows_and_sleeps_on(desk: Desk) -> None:
    """Its days are the new ones when it goes on."""
    desk.bench.client.operations.pause("open")
    desk.close(FRIDAY)
    desk.bench.clock.set(nine(FRIDAY))
    assert desk.bench.claim("open") == []
    desk.bench.client.operations.resume("open")
    assert desk.slot() == nine(MONDAY)


def test_a_change_waits_for_whoever_plans_by_the_calendar(
    pg_database: Database,
) -> None:
    """A row that is being planned by the old days is seen, and follows: planning holds the
    calendar meanwhile.
    """
    desk = Desk(pg_database, NINE.excluding("CO", roll="following"))
    desk.close()
    desk.bench.plan()
    changing = threading.Thread(target=lambda: desk.close(FRIDAY))
    with desk.bench.store.transaction() as connection:
        desk.bench.client.schedule_recurring(
            "open",
            "late",
            NINE.excluding("CO", roll="following"),
            connection=connection,
        )
        changing.start()
        wait_until_blocked(desk.bench)
    changing.join(30)
    assert desk.bench.row("open", "late").slot == nine(MONDAY)
    assert desk.slot() == nine(MONDAY)
