"""Additional strategies for hypothesis."""

from hypothesis import strategies as st


def sequences(steps: st.SearchStrategy, most: int) -> st.SearchStrategy[list]:
    """Returns lists of uniformly distributed lengths, as lists of hypothesis are mostly short."""
    return st.integers(1, most).flatmap(lambda n: st.lists(steps, min_size=n, max_size=n))
