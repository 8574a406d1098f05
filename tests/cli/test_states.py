"""What commands say of tables that are not exact, and how names are shown; without Spark."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tidegate.cli.app import commands
from tidegate.cli.lakes import check_instant
from tidegate.cli.mirror import line, summarise, tell
from tidegate.lake.apply.plan.tables import Status, Table
from tidegate.lake.formats.base import LakePlace
from tidegate.lake.job.run import Progress
from tidegate.lake.record import MirrorState, doubts_of
from tidegate.model import LakeError, TableSchema
from tidegate.sql.tables import Name

TS = 470492979978043394
MISSING = "Rows from before the feed are missing."
STATES = {
    "mirrored": {},
    "diverged": {"diverged": ("The column w is left out.",)},
    "incomplete": {"missing": MISSING},
    "stopped": {"status": Status.STOPPED, "reason": "RECOVER TABLE cannot be mirrored."},
}


def table(name, **facts):
    return Table(Name("d", name), TableSchema(database="d", table=name), **facts)


class Nothing:
    """A quarantine without messages."""

    def __init__(self, lake):
        pass

    def count(self):
        return 0

    def count_since(self, since):
        return 0


@pytest.fixture
def lake_of(monkeypatch):
    """Lets commands read a lake of these tables."""

    def made(*tables):
        state = MirrorState(tables={each.name.folded: each for each in tables})
        snapshots = [SimpleNamespace(name=each.name, resolved_ts=TS) for each in tables]
        lake = SimpleNamespace(
            snapshots=SimpleNamespace(
                state=lambda: state,
                at=lambda ts=None: snapshots,
                doubts=lambda ts=None: doubts_of(tables, tables, ts),
                instants=lambda: [(TS, datetime.now(UTC))],
            ),
            changelog=SimpleNamespace(waiting=lambda *_: {}),
            place=LakePlace("lake"),
            format_name="iceberg",
            texts=lambda *_, **__: SimpleNamespace(columns=[]),
        )

        @contextmanager
        def reading(settings):
            yield lake

        for command in ("status", "read", "verify"):
            monkeypatch.setattr(f"tidegate.cli.{command}.reading", reading)
        monkeypatch.setattr("tidegate.cli.read.write", lambda rows, output: None)
        monkeypatch.setattr("tidegate.lake.quarantine.Quarantine", Nothing)
        return lake

    return made


def run(*arguments):
    return commands.main([*map(str, arguments), "--lake", "lake"], standalone_mode=False)


@pytest.mark.parametrize(
    ("state", "code"), [("mirrored", 0), ("diverged", 0), ("incomplete", 1), ("stopped", 1)]
)
def test_status_shows_the_state_and_its_reasons_and_its_code_says_whether_all_is_exact(
    lake_of, capsys, state, code
):
    made = table("t", **STATES[state])
    lake_of(made, table("u"))
    assert run("status", "--output", "json") == code
    entry, other = json.loads(capsys.readouterr().out)["tables"]
    assert (entry["state"], entry["reasons"]) == (state, list(made.reasons))
    assert (other["state"], other["reasons"]) == ("mirrored", [])
    assert run("status") == code
    shown = next(text for text in capsys.readouterr().out.splitlines() if "d.t" in text)
    assert state in shown
    assert " ".join(made.reasons) in shown


def test_the_summary_of_a_run_names_tables_by_state(lake_of, capsys):
    lake = lake_of(*(table(name, **facts) for name, facts in STATES.items()))
    summary = summarise(lake, Progress(), 1.0)
    for state in ("stopped", "incomplete", "diverged"):
        (entry,) = summary[state]
        assert (entry["table"], entry["state"]) == (state, state)
    assert (summary["tables"], summary["fine"]) == (3, False)
    tell(summary)
    assert f"incomplete: d.incomplete: {MISSING}" in capsys.readouterr().out
    lake = lake_of(table("t", **STATES["diverged"]))
    assert summarise(lake, Progress(), 1.0)["fine"]


def test_topics_of_other_applications_are_named_with_their_messages(lake_of, capsys):
    lake = lake_of(table("t"))
    lake.snapshots.state().gate.unreadable = {"logs": 12, "odd\x1b": 1}
    several = "topic logs: none of its 12 messages can be read; it is left out\n"
    one = "topic odd\\x1b: its only message cannot be read; it is left out\n"
    summary = summarise(lake, Progress(), 1.0)
    assert summary["foreignTopics"] == {"logs": 12, "odd\x1b": 1}
    tell(summary)
    assert several + one in capsys.readouterr().out
    run("status", "--output", "json")
    assert json.loads(capsys.readouterr().out)["foreignTopics"] == {"logs": 12, "odd\x1b": 1}
    run("status")
    assert several + one in capsys.readouterr().out


def test_a_guessed_value_is_not_exact(lake_of):
    guessed = table("t")
    guessed.diverge("A value was guessed.", guessed=True)
    lake_of(guessed)
    assert run("status", "--output", "json") == 1


def test_reading_a_table_that_is_not_exact_warns_and_gives_the_rows(lake_of, capsys):
    lake_of(table("t", **STATES["incomplete"]), table("u"))
    assert run("read", "D.T", "--output", "json") == 0
    assert capsys.readouterr() == ("", f"d.t is incomplete: {MISSING}\n")
    assert run("read", "d.u", "--output", "json") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("state", "code"), [("incomplete", 1), ("stopped", 1), ("diverged", 0)])
def test_a_table_that_is_not_exact_is_not_verified_as_equal(lake_of, capsys, tmp_path, state, code):
    (tmp_path / "empty.jsonl").touch()
    made = table("t", **STATES[state])
    lake_of(made)
    assert run("verify", "--capture", tmp_path / "empty.jsonl") == code
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"not compared  d.t: {state}: {made.reasons[0]}"
    assert ("cannot be compared" in last) == bool(code)
    assert run("verify", "--capture", tmp_path / "empty.jsonl", "--output", "json") == code
    compared, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert (compared["equal"], compared["exact"], done["inexact"]) == (None, not code, code)


# --- names ----------------------------------------------------------------------------------------


def test_no_name_is_obeyed_by_a_terminal(lake_of, capsys):
    evil = table("\x1b[2J\x9b31mt", **STATES["stopped"])
    evil.reason = "The column \x1b]0;title\x07 is odd."
    lake = lake_of(evil)
    run("status")
    run("status", "--output", "json")
    run("read")
    tell(summarise(lake, Progress(), 1.0))
    with pytest.raises(LakeError):
        run("read", "d.other")
    said = capsys.readouterr()
    assert said.out.count(r"\x1b[2J\x9b31mt") == 3
    assert not {"\x1b", "\x9b", "\x07"} & set(said.out + said.err)


# --- instants -------------------------------------------------------------------------------------


def test_an_instant_before_the_first_is_answered_with_the_first(lake_of):
    lake_of(table("t"))
    for command in (["read", "d.t"], ["read"], ["verify", "--workload", "bank"]):
        with pytest.raises(LakeError) as raised:
            run(*command, "--at", TS - 1)
        assert "The first instant that can be read is 2026-11-16" in str(raised.value)
        assert f"(--at {TS})" in str(raised.value)


def test_a_lake_without_snapshots_says_what_to_run():
    lake = SimpleNamespace(snapshots=SimpleNamespace(instants=list))
    with pytest.raises(LakeError, match=r"no snapshot yet\. Run `tidegate mirror` first"):
        check_instant(lake, None)


# --- counters -------------------------------------------------------------------------------------


def test_rows_of_messages_that_an_earlier_run_has_read_are_called_so(lake_of, capsys):
    lake = lake_of(table("t"))
    progress = Progress(rows=2052, steps=1, apply_seconds=4.0)
    tell(summarise(lake, progress, 316.0))
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(
        "0 messages read, 2,052 rows applied (of messages that an earlier run had read) in 316.0 s"
    )
    assert line(progress) == ": ".join(
        ["starting", "0 messages read, 2,052 rows applied in 1 snapshot"]
    )


def test_the_rate_is_never_over_more_time_than_the_run_took(lake_of):
    lake = lake_of(table("t"))
    progress = Progress(messages=10, rows=100, ingest_seconds=9.0, apply_seconds=9.0)
    assert summarise(lake, progress, 10.0)["rowsPerSecond"] == 10
