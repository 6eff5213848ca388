"""What properties are fed with, where hypothesis has nothing of the kind."""

from hypothesis import strategies as st


def sequences(steps: st.SearchStrategy, most: int) -> st.SearchStrategy[list]:
    """Of every length alike, where lists of hypothesis are mostly short."""
    return st.integers(1, most).flatmap(lambda n: st.lists(steps, min_size=n, max_size=n))
