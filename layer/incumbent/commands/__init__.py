"""The commands that look after a store, and what all commands share."""
