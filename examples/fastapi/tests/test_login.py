"""Guessing passwords."""

import httpx
from serving import Serve
from traffic import PLAIN

RIGHT = "correct horse battery staple"


def log_in(url: str, password: str, account: str = "alice") -> httpx.Response:
    return httpx.post(f"{url}/login", json={"account": account, "password": password}, **PLAIN)


def test_the_right_password_is_let_in(serve: Serve) -> None:
    assert log_in(serve(), RIGHT).json() == {"api_key": "alice-key"}


def test_who_goes_on_guessing_is_banned_and_nobody_else(serve: Serve) -> None:
    url = serve()
    assert [log_in(url, f"guess {number}").status_code for number in range(5)] == [401] * 5
    for _ in range(2):
        response = log_in(url, RIGHT)
        assert response.status_code == 429
        assert response.json()["violated-policies"] == ["login"]
        # Until so few lie in the last minute, of two that are told apart.
        assert 1 <= int(response.headers["Retry-After"]) <= 120
    for _ in range(2):
        response = log_in(url, RIGHT)
        assert response.status_code == 429
        assert 3590 <= int(response.headers["Retry-After"]) <= 3600
    assert log_in(url, "a guess", account="bob").status_code == 401
