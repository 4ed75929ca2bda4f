from __future__ import annotations

from flfa_app.results.records import RoundRecord
from flfa_app.server.client_history import ClientHistory

RECORDS = [
    RoundRecord(1, participants=(0, 1, 2)),
    RoundRecord(2, participants=(0, 1, 2), failed=(0,), spare=(2,)),
    RoundRecord(3, participants=(1, 2), failed=(1,)),
]


def state_rounds(history: ClientHistory) -> list[int]:
    return [history.message_config(p)["state-round"] for p in range(4)]


def test_failed_and_spare_replies_do_not_count() -> None:
    history = ClientHistory()
    assert state_rounds(history) == [0, 0, 0, 0]
    for record in RECORDS:
        history.add_round(record)
    assert state_rounds(history) == [1, 2, 3, 0]
    assert state_rounds(ClientHistory(RECORDS)) == [1, 2, 3, 0]


def test_without_a_run_name_nothing_is_on_disk() -> None:
    assert ClientHistory(RECORDS).message_config(0) == {"state-round": 1}


def test_states_are_kept_since_the_oldest_checkpoint() -> None:
    """Without a checkpoint only the last state is needed."""
    history = ClientHistory(RECORDS, "run")
    assert history.message_config(2) == {
        "state-round": 3,
        "state-keep": 3,
        "run-name": "run",
    }
    history.oldest_checkpoint = 2
    kept = [history.message_config(p)["state-keep"] for p in range(4)]
    assert kept == [1, 2, 1, 0]
