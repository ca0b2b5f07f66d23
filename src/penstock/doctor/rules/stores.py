"""What is wrong between this machine and a store."""

from penstock.doctor.facts.stores import PROBE_S, Endpoint, Refusal, StoreSeen
from penstock.doctor.findings import Finding, ok
from penstock.units import MIB, format_duration, format_size

# Beyond this S3 refuses a request, whatever its keys are.
_MOST_SKEW_S, _NOTED_SKEW_S = 300.0, 30.0
_SLOW_MS, _SLOW_BYTES_PER_S = 100.0, 10 * MIB
_CLOCK = "timedatectl set-ntp true, or chronyc makestep"


def judge_store(
    seen: StoreSeen,
    subject: str,
    *,
    threads: int = 32,
    reading_bytes_per_s: float | None = None,
) -> list[Finding]:
    """`reading_bytes_per_s`: how fast readers have been fetching from it just now."""
    if seen.too_slow:
        return [
            Finding(
                "bad",
                subject,
                f"{seen.source}: the store takes very long to answer",
                f"not done within {PROBE_S:g} s",
                "look at the network and at the store",
                unreachable=True,
            )
        ]
    findings: list[Finding] = []
    if seen.endpoint is not None:
        findings += _way(seen, seen.endpoint, subject)
        findings += _clock(seen, seen.endpoint, subject)
    if seen.refusal is not None:
        return findings + _refused(seen, seen.refusal, subject)
    if seen.objects is not None:
        findings += _contents(seen, subject)
        findings += _speed(seen, subject, threads, reading_bytes_per_s)
    return findings


def _way(seen: StoreSeen, endpoint: Endpoint, subject: str) -> list[Finding]:
    where = f"{seen.source}: {endpoint.address}"
    if endpoint.error is None:
        took = f"{endpoint.connect_ms:.1f} ms to connect, HTTP {endpoint.status}"
        return [ok(subject, f"{where} answers", took)]
    if endpoint.other_scheme is not None:
        right = endpoint.address.replace("https://", "http://")
        if endpoint.other_scheme == "https":
            right = endpoint.address.replace("http://", "https://")
        return [
            Finding(
                "bad",
                subject,
                f"{where} speaks {endpoint.other_scheme}, not what was written",
                endpoint.error,
                f"write the endpoint as {right}",
            )
        ]
    what, remedy = {
        "name": ("its name cannot be resolved", "check the endpoint, and /etc/resolv.conf"),
        "connection": ("it does not take connections", "check host and port, and firewalls"),
        "tls": ("its certificate is not trusted", "name its authority in SSL_CERT_FILE"),
        "answer": ("it does not answer as a web server does", "check host and port"),
    }[endpoint.step]
    return [Finding("bad", subject, f"{where}: {what}", endpoint.error, remedy, unreachable=True)]


def _clock(seen: StoreSeen, endpoint: Endpoint, subject: str) -> list[Finding]:
    skew_s = endpoint.skew_s
    if skew_s is None:
        return []
    way = "ahead of" if skew_s > 0 else "behind"
    what = f"this machine's clock is {format_duration(abs(skew_s))} {way} the store's"
    why = f"by the Date of {endpoint.address}"
    if abs(skew_s) > _MOST_SKEW_S:
        return [
            Finding(
                "bad",
                subject,
                f"{what}: signed requests are refused",
                f"{why}; S3 allows {format_duration(_MOST_SKEW_S)}",
                f"set the clock: {_CLOCK}",
            )
        ]
    if abs(skew_s) > _NOTED_SKEW_S:
        return [Finding("note", subject, what, why, f"set the clock: {_CLOCK}")]
    return [ok(subject, "the clocks agree", f"{abs(skew_s):.0f} s apart")]


def _refused(seen: StoreSeen, refusal: Refusal, subject: str) -> list[Finding]:
    said = f"the store says {refusal.code}" if refusal.code else refusal.text
    if not seen.has_keys:
        return [
            Finding(
                "bad",
                subject,
                f"{seen.source}: there are no keys for it",
                refusal.text,
                refusal.hint or "",
            )
        ]
    if refusal.code == "RequestTimeTooSkewed":
        if seen.endpoint is not None and abs(seen.endpoint.skew_s or 0) > _MOST_SKEW_S:
            return []  # said already, with the number
        what = "the store refuses this machine's clock"
        return [Finding("bad", subject, f"{seen.source}: {what}", said, f"set the clock: {_CLOCK}")]
    if refusal.kind == "denied":
        what, remedy = _KEYS.get(refusal.code or "", _KEYS["AccessDenied"])
        return [Finding("bad", subject, f"{seen.source}: {what}", said, remedy)]
    if refusal.kind == "missing":
        is_folder = seen.source.startswith("file://")
        what = "the folder is not there" if is_folder else "the bucket is not there"
        remedy = "check its name" if is_folder else "check its name, the endpoint and the region"
        return [Finding("bad", subject, f"{seen.source}: {what}", said, remedy)]
    unreachable = refusal.kind == "unreachable"
    if unreachable and seen.endpoint is not None and seen.endpoint.error is not None:
        return []
    what = "the store fails" if unreachable else "the store refuses the request"
    return [
        Finding(
            "bad",
            subject,
            f"{seen.source}: {what}",
            refusal.text,
            refusal.hint or "",
            unreachable=unreachable,
        )
    ]


_KEYS = {
    "AccessDenied": (
        "its keys may not list or read there",
        "let them s3:ListBucket and s3:GetObject there, or use others; public data needs none",
    ),
    "SignatureDoesNotMatch": (
        "its secret key is not the one of its key id",
        "apply the right secret; look for a blank or a line's end that came along with it",
    ),
    "InvalidAccessKeyId": ("the store does not know its key id", "apply keys of this store"),
    "ExpiredToken": ("its keys have expired", "apply fresh ones, with their session token"),
}


def _contents(seen: StoreSeen, subject: str) -> list[Finding]:
    if seen.objects:
        more = "or more" if seen.objects >= 1000 else "found"
        return [ok(subject, f"{seen.source} has objects", f"{seen.objects:,} {more}")]
    return [
        Finding(
            "note",
            subject,
            f"{seen.source}: nothing is there",
            "the listing is empty",
            "check the prefix: it ends where a folder does, and letters' case counts",
        )
    ]


def _speed(
    seen: StoreSeen, subject: str, threads: int, reading_bytes_per_s: float | None
) -> list[Finding]:
    findings: list[Finding] = []
    if (median_ms := seen.median_ms) is not None:
        why = (
            f"half of {len(seen.get_ms)} small reads took {median_ms:.0f} ms or more; with "
            f"{threads} threads that is {1000 * threads / max(median_ms, 0.01):,.0f} small files "
            "a second"
        )
        if median_ms >= _SLOW_MS:
            findings.append(
                Finding(
                    "slow",
                    subject,
                    f"{seen.source} is far away",
                    why,
                    "bring the data near before a job reads it (penstock load, penstock warm); "
                    "more --threads for small files",
                )
            )
        else:
            findings.append(ok(subject, f"{seen.source} answers quickly", why))
    if (rate := seen.bytes_per_s) is not None:
        why = f"{format_size(rate)} a second for {format_size(seen.large_bytes)} in one request"
        if reading_bytes_per_s:
            why += f"; readers fetch {format_size(reading_bytes_per_s)} a second now"
        if rate < _SLOW_BYTES_PER_S:
            findings.append(
                Finding(
                    "slow",
                    subject,
                    f"{seen.source} gives its bytes slowly",
                    why,
                    "look at the network between; what is cached is not fetched again",
                )
            )
        else:
            findings.append(ok(subject, f"{seen.source} gives its bytes fast", why))
    return findings
