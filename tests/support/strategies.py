"""Additional strategies for hypothesis."""

from hypothesis import strategies as st


def sequences(steps: st.SearchStrategy, max_length: int) -> st.SearchStrategy[list]:
    """Returns lists of uniformly distributed lengths, as lists of hypothesis are mostly short."""
    return st.integers(1, max_length).flatmap(lambda n: st.lists(steps, min_size=n, max_size=n))
