"""The DynamoDB provider: leases and mailboxes in one table, a conditional UpdateItem a call."""

from incumbent.providers.dynamodb.provider import DynamoDBProvider

__all__ = ["DynamoDBProvider"]
