"""A handler that cannot be imported."""

raise ValueError("no luck today")
