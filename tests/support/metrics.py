"""What a mount says of itself to a monitoring system."""

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Scraped = Mapping[str, float]


def fetch(port: int, path: str = "/metrics", host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as answer:
        return answer.read().decode()


def parse(text: str) -> Scraped:
    """Values by name and by the values of labels but the mount, in the order of their names:
    `penstock_store_requests_total ok get`. No two have one name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = [value for name, value in sorted(one.labels.items()) if name != "mount"]
            key = " ".join([one.name.removeprefix("penstock_"), *labels])
            assert key not in found
            found[key] = one.value
    return found


def scrape(port: int) -> Scraped:
    return parse(fetch(port))
