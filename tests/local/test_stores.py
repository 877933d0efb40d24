"""The store that a local run brings along."""

from collections.abc import Mapping
from pathlib import Path

import boto3
import redis

from incumbent.local import FunctionSpec
from incumbent.local.stores import Prepared, prepared
from tests.local.conftest import PARAMETERS, TEMPLATE

OWN_TEMPLATE = Path(__file__).parents[2] / "template.yaml"


def test_redis_is_an_embedded_server_that_the_functions_find() -> None:
    """By variable and by the template's parameters; it is gone afterwards."""
    with prepared(OWN_TEMPLATE, "redis") as ready:
        url = ready.env["INCUMBENT_REDIS_URL"]
        client = redis.Redis.from_url(url)
        assert client.ping()
        client.close()
        thread = thread_of(ready)
    assert ready.env["INCUMBENT_PROVIDER"] == "redis"
    assert thread.environment["INCUMBENT_REDIS_URL"] == url
    assert "INCUMBENT_TABLE_NAME" not in thread.environment


def test_a_redis_of_the_callers_own_is_used_as_it_is() -> None:
    """Nothing is started; its parameters may still be set by hand."""
    with prepared(OWN_TEMPLATE, "redis", redis_url="redis://there:1", parameters={"ModelId": "m"}) as ready:
        thread = thread_of(ready)
    assert ready.env["INCUMBENT_REDIS_URL"] == "redis://there:1"
    assert thread.environment["MODEL_ID"] == "m"


def test_dynamodb_has_the_templates_tables_under_their_names() -> None:
    """Where the functions look for them: their endpoint and Region are among the variables."""
    with prepared(OWN_TEMPLATE, "dynamodb") as ready:
        tables = tables_of(ready.env)
        thread = thread_of(ready)
    assert ready.env["INCUMBENT_PROVIDER"] == "dynamodb"
    assert thread.environment["INCUMBENT_TABLE_NAME"] in tables
    assert thread.environment["TRANSCRIPT_TABLE_NAME"] in tables
    assert "INCUMBENT_TABLE_NAME" not in ready.env


def test_dynamodb_has_the_providers_table_where_the_template_names_none() -> None:
    """Beside the tables that the template has for other things."""
    with prepared(TEMPLATE, "dynamodb", parameters=PARAMETERS) as ready:
        assert sorted(tables_of(ready.env)) == ["incumbent", "test-table"]
    assert ready.env["INCUMBENT_TABLE_NAME"] == "incumbent"


def test_memory_and_none_need_no_server() -> None:
    """Only their name, as variable and as parameter."""
    for provider in ("memory", "none"):
        with prepared(OWN_TEMPLATE, provider) as ready:
            thread = thread_of(ready)
        assert ready.env == {"INCUMBENT_PROVIDER": provider}
        assert "TRANSCRIPT_TABLE_NAME" not in thread.environment


def thread_of(ready: Prepared) -> FunctionSpec:
    """The chat function."""
    return next(spec for spec in ready.functions if spec.logical_id == "ThreadFunction")


def tables_of(env: Mapping[str, str]) -> list[str]:
    """The names of the tables that a function with these variables would find."""
    client = boto3.client(
        "dynamodb",
        endpoint_url=env["AWS_ENDPOINT_URL_DYNAMODB"],
        region_name=env["AWS_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )
    return client.list_tables()["TableNames"]
