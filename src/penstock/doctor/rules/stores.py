"""Findings about the store of a data set: the way to it, its keys, its content, its speed."""

from collections.abc import Iterator

from penstock.doctor.facts.stores import PROBE_S, EndpointFacts, Refusal, StoreFacts
from penstock.doctor.findings import Finding, bad, note, ok, slow
from penstock.units import MIB, format_duration, format_size

# Beyond this S3 refuses a request, whatever its keys are.
_MOST_SKEW_S, _NOTED_SKEW_S = 300.0, 30.0
_SLOW_MS, _SLOW_BYTES_PER_S = 100.0, 10 * MIB
_SET_CLOCK = "set the clock: timedatectl set-ntp true, or chronyc makestep"
_DENIED = {
    "AccessDenied": (
        "its keys may not list or read there",
        "allow s3:ListBucket and s3:GetObject, or use other keys; public data needs none",
    ),
    "SignatureDoesNotMatch": (
        "its secret key does not belong to its key id",
        "{renew}; check the secret for a space or a line break",
    ),
    "InvalidAccessKeyId": (
        "the store does not know its key id",
        "{renew}: keys of this store",
    ),
    "ExpiredToken": ("its keys have expired", "{renew}, with new ones and their session token"),
}
_FAILED_STEP = {
    "name": ("its name cannot be resolved", "check the endpoint and /etc/resolv.conf"),
    "connection": ("it does not accept connections", "check host, port and firewalls"),
    "tls": ("its certificate is not trusted", "name its authority in SSL_CERT_FILE"),
    "answer": ("it does not answer like a web server", "check host and port"),
}


def judge_store(
    seen: StoreFacts,
    subject: str,
    *,
    threads: int = 32,
    reading_bytes_per_s: float | None = None,
    renew: str = "apply its Secret again",
) -> list[Finding]:
    """`reading_bytes_per_s` is how fast the mount fetched from it while the doctor looked, `renew`
    how the mount gets other keys."""
    if seen.too_slow:
        what = f"{seen.source}: the store takes very long to answer"
        why = f"no answer within {PROBE_S:g} s"
        return [bad(subject, what, why, "check the network and the store", unreachable=True)]
    findings: list[Finding] = []
    if seen.endpoint is not None:
        findings.append(_endpoint(seen, seen.endpoint, subject))
        findings += _clock(seen.endpoint, subject)
    if seen.refusal is not None:
        findings += _refusal(seen, seen.refusal, subject, renew)
    elif seen.objects is not None:
        findings.append(_content(seen, subject))
        findings += _speed(seen, subject, threads, reading_bytes_per_s)
    return findings


def _endpoint(seen: StoreFacts, endpoint: EndpointFacts, subject: str) -> Finding:
    where = f"{seen.source}: {endpoint.address}"
    if endpoint.error is None:
        took = f"{endpoint.connect_ms:.1f} ms to connect, HTTP {endpoint.status}"
        return ok(subject, f"{where} answers", took)
    if endpoint.other_scheme is not None:
        _, _, host = endpoint.address.partition("://")
        what = f"{where} speaks {endpoint.other_scheme}"
        remedy = f"write the endpoint as {endpoint.other_scheme}://{host}"
        return bad(subject, what, endpoint.error, remedy)
    what, remedy = _FAILED_STEP[endpoint.step]
    return bad(subject, f"{where}: {what}", endpoint.error, remedy, unreachable=True)


def _clock(endpoint: EndpointFacts, subject: str) -> Iterator[Finding]:
    skew_s = endpoint.skew_s
    if skew_s is None:
        return
    direction = "ahead of" if skew_s > 0 else "behind"
    what = f"this machine's clock is {format_duration(abs(skew_s))} {direction} the store's"
    why = f"by the Date of {endpoint.address}"
    if abs(skew_s) > _MOST_SKEW_S:
        why += f"; S3 allows {format_duration(_MOST_SKEW_S)}"
        yield bad(subject, f"{what}: signed requests are refused", why, _SET_CLOCK)
    elif abs(skew_s) > _NOTED_SKEW_S:
        yield note(subject, what, why, _SET_CLOCK)
    else:
        yield ok(subject, "the clocks agree", f"{abs(skew_s):.0f} s apart")


def _refusal(seen: StoreFacts, refusal: Refusal, subject: str, renew: str) -> Iterator[Finding]:
    source, hint = seen.source, refusal.hint or ""
    why = f"the store answers {refusal.code}" if refusal.code else refusal.text
    unreachable = refusal.kind == "unreachable"
    if not seen.has_keys:
        yield bad(subject, f"{source}: there are no keys for it", refusal.text, hint)
    elif refusal.code == "RequestTimeTooSkewed":
        if seen.endpoint is None or abs(seen.endpoint.skew_s or 0) <= _MOST_SKEW_S:
            what = "the store refuses this machine's clock"
            yield bad(subject, f"{source}: {what}", why, _SET_CLOCK)
        # else _clock has found it, with the number
    elif refusal.kind == "denied":
        what, remedy = _DENIED.get(refusal.code or "", _DENIED["AccessDenied"])
        yield bad(subject, f"{source}: {what}", why, remedy.format(renew=renew))
    elif refusal.kind == "missing" and source.startswith("file://"):
        yield bad(subject, f"{source}: the folder does not exist", why, "check its name")
    elif refusal.kind == "missing":
        remedy = "check its name, the endpoint and the region"
        yield bad(subject, f"{source}: the bucket does not exist", why, remedy)
    elif not unreachable:
        yield bad(subject, f"{source}: the store refuses the request", refusal.text, hint)
    elif seen.endpoint is None or seen.endpoint.error is None:
        what = f"{source}: the store fails"
        yield bad(subject, what, refusal.text, hint, unreachable=True)


def _content(seen: StoreFacts, subject: str) -> Finding:
    if seen.objects:
        more = "or more" if seen.objects >= 1000 else "found"
        return ok(subject, f"{seen.source} has objects", f"{seen.objects:,} {more}")
    remedy = "check the prefix: it must end where a folder ends, and upper and lower case differ"
    return note(subject, f"{seen.source}: it is empty", "the listing is empty", remedy)


def _speed(
    seen: StoreFacts, subject: str, threads: int, reading_bytes_per_s: float | None
) -> Iterator[Finding]:
    if (median_ms := seen.median_ms) is not None:
        why = (
            f"half of {len(seen.get_ms)} small reads took {median_ms:.0f} ms or more; with "
            f"{threads} threads that is {1000 * threads / max(median_ms, 0.01):,.0f} small files "
            "a second"
        )
        if median_ms >= _SLOW_MS:
            remedy = (
                "load the data before a job reads it (penstock load, penstock warm); "
                "use more --threads for small files"
            )
            yield slow(subject, f"{seen.source} answers slowly", why, remedy)
        else:
            yield ok(subject, f"{seen.source} answers quickly", why)
    if (rate := seen.bytes_per_s) is not None:
        why = f"{format_size(rate)} a second for {format_size(seen.large_bytes)} in one request"
        if reading_bytes_per_s:
            why += f"; readers fetch {format_size(reading_bytes_per_s)} a second now"
        if rate < _SLOW_BYTES_PER_S:
            remedy = "check the network in between; cached data is not fetched again"
            yield slow(subject, f"{seen.source} transfers data slowly", why, remedy)
        else:
            yield ok(subject, f"{seen.source} transfers data fast", why)
