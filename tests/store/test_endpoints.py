"""Where the bucket's name stands in a request: before the host, or in the path."""

import pytest

from penstock.store.connect import is_address


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://127.0.0.1:9000", True),
        ("http://10.244.0.1:8333", True),
        ("https://[fd00::1]:443", True),
        ("http://localhost", True),
        ("https://oss-cn-hangzhou.aliyuncs.com", False),
        ("http://minio.storage.svc:9000", False),
    ],
)
def test_no_name_can_stand_before_an_address(endpoint: str, expected: bool) -> None:
    assert is_address(endpoint) is expected
