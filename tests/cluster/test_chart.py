"""The Helm chart: what it renders, which rights it gives, and what it refuses."""

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.helm import CHART, RELEASE
from tests.cluster.kit import ROOT
from tests.cluster.kube import SYSTEM, Kube

pytestmark = pytest.mark.cluster
Json = dict[str, Any]

EVERYTHING_SET = """
image: {repository: registry.example/penstock, tag: "1.2", pullPolicy: Always}
imagePullSecrets: [registry]
operator:
  replicas: 2
  resources: {limits: {cpu: 1, memory: 1Gi}}
  nodeSelector: {kubernetes.io/os: linux}
  tolerations: [{key: control, operator: Exists}]
  affinity: {nodeAffinity: {}}
  podLabels: {team: data}
  podAnnotations: {note: "yes"}
  maxUnavailable: 50%
node:
  kubeletDir: /data/kubelet
  nodeSelector: {gpu: "true"}
  podLabels: {team: data}
  podAnnotations: {note: "yes"}
  maxUnavailable: 3
server: {idle: 30s}
priorityClasses: {operator: "", node: "", server: {name: ""}}
storageClass: {create: false}
csiDriver: {create: false}
networkPolicies: {apiServerPorts: [8443], metricsFrom: [{namespaceSelector: {}}]}
"""


def helm(*words: str | Path, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["helm", *words], input=stdin, capture_output=True, text=True)


def render(values: str = "{}") -> list[Json]:
    done = helm(
        "template",
        RELEASE,
        CHART,
        f"--namespace={SYSTEM}",
        "--values=-",
        "--include-crds",
        stdin=values,
    )
    assert not done.returncode, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def of_kind(objects: list[Json], *kinds: str) -> list[Json]:
    return [found for found in objects if found["kind"] in kinds]


def test_helm_has_nothing_to_complain_about() -> None:
    done = helm("lint", "--strict", CHART)
    assert not done.returncode, done.stdout


@pytest.mark.parametrize("values", ["{}", EVERYTHING_SET], ids=["defaults", "everything set"])
def test_the_api_server_takes_what_it_renders(values: str) -> None:
    Kube(SYSTEM)(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"),
        stdin=yaml.safe_dump_all(render(values)),
    )


def test_values_that_are_set_arrive() -> None:
    objects = render(EVERYTHING_SET)
    (operator,) = of_kind(objects, "Deployment")
    (node,) = of_kind(objects, "DaemonSet")
    pod, plugin = operator["spec"]["template"]["spec"], node["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == [
        "operator",
        "--image=registry.example/penstock:1.2",
        "--image-pull-policy=Always",
        "--image-pull-secret=registry",
        "--idle=30s",
    ]
    assert plugin["containers"][0]["args"] == [
        "node",
        "--kubelet-dir=/data/kubelet",
        "--host-root=/host",
    ]
    assert pod["imagePullSecrets"] == plugin["imagePullSecrets"] == [{"name": "registry"}]
    assert not of_kind(objects, "CSIDriver", "StorageClass", "PriorityClass")


def test_every_default_has_a_schema_and_unknown_values_are_refused() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(value: object, known: Json, path: str) -> None:
        if not isinstance(value, dict) or "properties" not in known:
            return
        assert known["additionalProperties"] is False, path
        for name, inner in value.items():
            assert name in known["properties"], f"{path}.{name}"
            check(inner, known["properties"][name], f"{path}.{name}")

    check(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")
    for wrong in ("operator: {replica: 2}", "node: {kubeletDir: relative}", "server: {idle: soon}"):
        done = helm("template", CHART, "--values=-", stdin=wrong)
        assert done.returncode, wrong
        assert wrong.split(":")[0] in done.stderr


def test_nobody_may_read_secrets_or_run_commands_in_pods() -> None:
    for role in of_kind(render(), "Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], rule
            assert not {"secrets", "pods/exec", "pods/attach", "serviceaccounts/token"} & {
                *rule["resources"]
            }, rule
            assert not {"impersonate", "escalate", "bind"} & {*rule["verbs"]}, rule


@pytest.mark.parametrize("account", ["penstock-operator", "penstock-node"])
def test_the_api_server_denies_what_no_role_needs(account: str) -> None:
    denied = [
        (verb, group, resource)
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
        for group, resource in (
            ("", "secrets"),
            ("", "serviceaccounts/token"),
            ("rbac.authorization.k8s.io", "clusterroles"),
            ("rbac.authorization.k8s.io", "roles"),
        )
    ]
    denied += [("create", "", "pods"), ("create", "", "pods/exec"), ("delete", "", "pods")]
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{SYSTEM}:{account}",
                "resourceAttributes": {
                    "namespace": namespace,
                    "verb": verb,
                    "group": group,
                    "resource": resource.partition("/")[0],
                    "subresource": resource.partition("/")[2],
                },
            },
        }
        for verb, group, resource in denied
        for namespace in ("", SYSTEM, "default")
    ]
    # The one right that both have, to see that a review says yes, too.
    reviews.append(yaml.safe_load(yaml.safe_dump(reviews[0])))
    reviews[-1]["spec"]["resourceAttributes"] |= {"verb": "get", "resource": "persistentvolumes"}
    answers = Kube(SYSTEM)(
        *("create", "-f", "-", "--output=jsonpath={.status.allowed}{'\\n'}"),
        stdin=yaml.safe_dump_all(reviews),
    ).split()
    assert answers == ["false"] * (len(reviews) - 1) + ["true"]


def test_the_node_plugin_may_only_get_volumes() -> None:
    (role,) = (
        found
        for found in of_kind(render(), "ClusterRole")
        if found["metadata"]["name"] == "penstock-node"
    )
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["get"]}
    ]


def test_the_operator_may_work_with_every_kind_that_has_a_definition() -> None:
    objects = render()
    (role,) = (
        found
        for found in of_kind(objects, "ClusterRole")
        if found["metadata"]["name"] == "penstock-operator"
    )
    allowed = {
        (group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"get", "list", "watch"} <= {*rule["verbs"]}
    }
    definitions = of_kind(objects, "CustomResourceDefinition")
    assert definitions
    for definition in definitions:
        spec = definition["spec"]
        assert (spec["group"], spec["names"]["plural"]) in allowed


def test_only_the_node_plugin_is_privileged() -> None:
    objects = render()
    (operator,) = of_kind(objects, "Deployment")
    (node,) = of_kind(objects, "DaemonSet")
    pod = operator["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod.get("volumes")
    plugin = node["spec"]["template"]["spec"]["containers"][0]
    assert plugin["securityContext"]["privileged"] is True
    assert plugin["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_operator_would_be_admitted_where_pods_are_restricted(kube: Kube) -> None:
    kube("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")
    (operator,) = of_kind(render(), "Deployment")
    template = operator["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {"name": "as-the-operator"}
    pod["spec"]["serviceAccountName"] = "default"
    kube("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))


def test_the_chart_has_the_version_of_the_program() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == project["version"]
