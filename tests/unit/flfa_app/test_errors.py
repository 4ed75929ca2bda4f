import pytest

from flfa_app.errors import summarize_error

RAY = """ClientApp raised an exception: <class 'ValueError'>:<'ray::ClientAppActor.run()
  File "/app/client_app.py", line 33, in query
    labels = client_images(config, place, data).labels
ValueError: min-partition-size is 2000: lower it

The above exception was the direct cause of the following exception:

flwr.clientapp.client_app.ClientAppException:
Exception ClientAppException occurred. Message: min-partition-size is 2000: lower it'>
"""


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("ValueError: the data is gone", "ValueError: the data is gone"),
        ("Traceback\n  File x\nKeyError: 'a'\n\n", "KeyError: 'a"),
        ("no such node", "no such node"),
        ("first\nlast", "last"),
        ("", "no reason given"),
        (" \n ", "no reason given"),
    ],
)
def test_one_line(reason: str, expected: str) -> None:
    assert summarize_error(reason) == expected


def test_a_traceback_of_ray_is_its_last_error() -> None:
    assert "\n" not in summarize_error(RAY)
    assert "min-partition-size is 2000: lower it" in summarize_error(RAY)


def test_a_line_without_end_is_cut() -> None:
    """Of Ray, when memory is short: with all processes of the machine."""
    line = (
        "<class 'ray.exceptions.OutOfMemoryError'>:<'1 worker(s) were killed"
        + 999 * "x"
    )
    assert summarize_error(line).startswith("<class 'ray.exceptions.OutOfMemoryError'>")
    assert len(summarize_error(line)) == 300
    assert summarize_error(line).endswith(" …")
