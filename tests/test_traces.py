"""The server's decisions match clients/traces.json, which the clients' in-process limiters are also
tested with. scripts/make_traces.py writes the file.
"""

from collections.abc import Callable

from support import traces
from support.clock import Clock
from support.server import Server


def test_server_replies_match_the_traces(fresh_server: Callable[..., Server], clock: Clock) -> None:
    # On a shared server, other tests may have created fencing tokens of a later time.
    recorded = traces.recorded(fresh_server().client(), clock)
    stored = traces.read()
    assert recorded.keys() == stored.keys()
    for name, steps in recorded.items():
        assert steps == stored[name], name
