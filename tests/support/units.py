"""Amounts in millionths and times in microseconds, converted for calls and replies."""

UNIT = 1_000_000


def decimal(millionths: int) -> str:
    """Formats an amount as an argument."""
    return f"{'-' * (millionths < 0)}{abs(millionths) // UNIT}.{abs(millionths) % UNIT:06}"


def millis(us: int) -> int:
    """Converts to milliseconds, rounded up."""
    return -(-us // 1000)
