"""Amounts in millionths and times in microseconds, as calls say them and replies tell them."""

UNIT = 1_000_000


def decimal(millionths: int) -> str:
    """An amount as an argument."""
    return f"{'-' * (millionths < 0)}{abs(millionths) // UNIT}.{abs(millionths) % UNIT:06}"


def millis(us: int) -> int:
    """Milliseconds, rounded up."""
    return -(-us // 1000)
