"""A trial of a deployment: of its store, with everything that the package promises of one, or of a deployed stack.

``incumbent verify`` prints it at a terminal. Needs pytest, and boto3 for DynamoDB:
``pip install '/path/to/the/checkout[verify]'``.
"""
