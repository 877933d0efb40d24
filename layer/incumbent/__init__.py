"""One owner per key on AWS Lambda: acquire or route."""

__version__ = "0.1.0"
