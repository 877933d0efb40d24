"""The DynamoDB provider: leases and mailboxes in one table, one conditional UpdateItem per call."""

from incumbent.providers.dynamodb.provider import DynamoDBProvider

__all__ = ["DynamoDBProvider"]
