"""Limits of password guesses."""

import httpx
from serving import Serve
from traffic import PLAIN

RIGHT = "correct horse battery staple"


def log_in(url: str, password: str, account: str = "alice") -> httpx.Response:
    return httpx.post(f"{url}/login", json={"account": account, "password": password}, **PLAIN)


def test_right_password_is_accepted(serve: Serve) -> None:
    assert log_in(serve(), RIGHT).json() == {"api_key": "alice-key"}


def test_repeated_guesses_ban_only_that_account_and_address(serve: Serve) -> None:
    url = serve()
    assert [log_in(url, f"guess {number}").status_code for number in range(5)] == [401] * 5
    for _ in range(2):
        response = log_in(url, RIGHT)
        assert response.status_code == 429
        assert response.json()["violated-policies"] == ["login"]
        # The wait is at most two windows.
        assert 1 <= int(response.headers["Retry-After"]) <= 120
    for _ in range(2):
        response = log_in(url, RIGHT)
        assert response.status_code == 429
        assert 3590 <= int(response.headers["Retry-After"]) <= 3600
    assert log_in(url, "a guess", account="bob").status_code == 401
