"""A handler that cannot be imported."""  # noqa: INP001 - as Lambda finds it

raise ValueError("no luck today")
