import pytest

# Else a failing assert of the suite, which is no test file, would not show what it compared.
pytest.register_assert_rewrite("incumbent.testing.conformance")
