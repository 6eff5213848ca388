import pytest
from conftest import Proxy
def test_first(proxy: Proxy) -> None:
    alice = proxy.caller()
    r = alice.ask("answer")
    print(r.status_code, dict(r.headers), r.text)
    print(proxy.admin.keys(), alice.left())
    with alice.stream("answer") as s:
        for l in s.iter_lines(): print(l)
        print(s.status_code, s.headers)
    print(proxy.admin.keys(), alice.left())
    assert 0
