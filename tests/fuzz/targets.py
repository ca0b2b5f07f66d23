"""Every target, by its name."""

from tests.fuzz import (
    answers,
    databases,
    kernel,
    listings,
    manifests,
    member_stats,
    members,
    processes,
)

TARGETS = {
    target.name: target
    for target in (
        kernel.REQUEST_TARGET,
        kernel.JOURNAL_TARGET,
        kernel.LEDGER_TARGET,
        listings.S3_TARGET,
        listings.WEB_INDEX_TARGET,
        listings.MANIFEST_TARGET,
        answers.ANSWER_TARGET,
        answers.WEBDAV_TARGET,
        answers.UPLOAD_TARGET,
        answers.REDIRECT_TARGET,
        members.ANSWER_TARGET,
        manifests.YAML_TARGET,
        manifests.BENCH_PLAN_TARGET,
        member_stats.MEMBER_STATS_TARGET,
        databases.CATALOG_TARGET,
        databases.INDEX_TARGET,
        databases.CACHED_FILE_TARGET,
        processes.CONTROL_TARGET,
        processes.CONTROL_ANSWER_TARGET,
        processes.LINK_TARGET,
        processes.PLAN_TARGET,
    )
}
