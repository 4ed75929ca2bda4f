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
# Ray's line with all processes of the machine, when memory is short.
LONG = "<class 'ray.exceptions.OutOfMemoryError'>:<'1 worker(s) were killed" + 999 * "x"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (RAY, RAY.splitlines()[-1].removesuffix("'>")),
        ("Traceback\n  File x\nKeyError: 'a'\n\n", "KeyError: 'a"),
        ("first\nlast", "last"),
        (" \n ", "no reason given"),
        (LONG, LONG[:298] + " …"),
    ],
)
def test_the_last_line_that_names_an_error(reason: str, expected: str) -> None:
    assert summarize_error(reason) == expected
