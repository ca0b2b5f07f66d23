"""What GETs cost. Pure. Only requests: bytes that leave a cloud, and storage, cost besides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """Of 1,000 GETs, and where the figure is from."""

    dollars: float
    source: str

    def of(self, gets: float) -> float:
        return gets / 1000 * self.dollars


# A list price, not an offer: it is an option because clouds, classes and years differ.
DEFAULT_PRICE = Price(0.0004, "list price of Amazon S3 Standard in us-east-1, 2025")


def stated_price(dollars: float | None) -> Price:
    return DEFAULT_PRICE if dollars is None else Price(dollars, "as given")
