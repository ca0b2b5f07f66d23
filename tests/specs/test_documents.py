"""What is wrong with a manifest is said all at once, with file, line and hint."""

import json
import re

import pytest

from penstock.errors import ManifestError
from penstock.specs.dataset import Dataset
from penstock.specs.documents import decode, read, read_all
from tests.specs.manifests import FLUID, dataset, level, manifest, problem, problems, read_one

GOOD = dataset("mountPoint: s3://bucket\nname: train")


def test_a_value_knows_its_line() -> None:
    document = read_one(GOOD)
    assert document.where("spec.mounts.0.mountPoint") == "f.yaml:7"
    assert document.where("spec.mounts.0.name") == "f.yaml:8"
    assert document.where("spec.mounts.0.options.a.b") == "f.yaml:7"  # the nearest that there is
    assert document.where() == "f.yaml:1"


def test_several_documents_are_several_resources_and_empty_ones_are_none() -> None:
    text = f"---\n---\n{GOOD}---\n# nothing\n---\n{GOOD.replace('imagenet', 'coco')}---\n"
    found = read(text, "f.yaml")
    assert [str(one.resource.key) for one in found] == [
        "dataset/default/imagenet",
        "dataset/default/coco",
    ]
    assert found[0].where("kind") == "f.yaml:4"
    assert found[1].where("spec.mounts.0.name") == "f.yaml:21"


def test_a_list_is_what_it_holds() -> None:
    items = "- " + GOOD.replace("\n", "\n  ").strip() + "\n"
    (found,) = read(f"apiVersion: v1\nkind: List\nitems:\n{items}", "f.yaml")
    assert found.resource.key.name == "imagenet"
    assert found.where("spec.mounts.0.mountPoint") == "f.yaml:10"
    wrong = f"apiVersion: v1\nkind: List\nitems:\n{items.replace('s3:', 'nfs:')}"
    assert problem(wrong)[0].startswith("f.yaml:10: spec.mounts.0.mountPoint: scheme 'nfs'")


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("", "f.yaml: holds no resource", "apiVersion and kind"),
        ("# a comment\n", "f.yaml: holds no resource", "apiVersion and kind"),
        ("---\n---\n", "f.yaml: holds no resource", "apiVersion and kind"),
        ("- a\n- b\n", "f.yaml:1: a list, and not a resource", "kind: List"),
        ("hello", "f.yaml:1: neither a map nor a resource", "apiVersion and kind"),
        ("a:\n\tb: 1\n", "f.yaml:2: a tab where YAML wants spaces", "indent with spaces"),
        ("a: b: c", "f.yaml:1: broken YAML: mapping values", "quotes"),
        ("a: [1", "f.yaml:2: broken YAML", "brackets"),
        ("\x00\x01", "f.yaml: is not text", "UTF-8"),
        ("a: \ud800", "f.yaml: is not text", "UTF-8"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: 'a' stands twice in one map; first in line 1", "---"),
        ("a: !!python/object:os.system x", "f.yaml:1: tag", "leave it out"),
        ("? [a]\n: b\n", "f.yaml:1: a key must be text", ""),
        ("a: &a [*a]", "f.yaml:1: is nested too deeply", "anchors"),
        ("a: " + "[" * 1_000_000, "f.yaml:1: is nested too deeply", "brackets"),
        ("a: 1", "f.yaml:1: kind: is missing", "one of Dataset,"),
        ("kind: Dataset", "f.yaml:1: apiVersion: is missing", FLUID),
        ("apiVersion: apps/v1\nkind: Deployment", "f.yaml:2: Deployment of apps/v1 is not ours",
         "kubectl apply it"),
        ("apiVersion: v1\nkind: Pod", "f.yaml:2: Pod of v1 is not ours", "kubectl apply it"),
        (f"apiVersion: {FLUID}\nkind: DataSet", "f.yaml:2: 'DataSet' is not a kind",
         "did you mean Dataset?"),
        (f"apiVersion: {FLUID}\nkind: Zebra", "f.yaml:2: 'Zebra' is not a kind", "kinds: Dataset"),
        (f"apiVersion: {FLUID}\nkind: VineyardRuntime", "f.yaml:2: VineyardRuntime is not run here",
         "PenstockRuntime"),
        (f"apiVersion: {FLUID}\nkind: PenstockRuntime",
         f"f.yaml:1: PenstockRuntime is not known as '{FLUID}'", "penstock.dev/v1alpha1"),
        ("apiVersion: data.fluid.io/v1\nkind: Dataset",
         "f.yaml:1: Dataset is not known as 'data.fluid.io/v1'", FLUID),
        (f"apiVersion: {FLUID}\nkind: Dataset\nmetadata: {{name: x}}", "f.yaml:1: spec: is missing",
         "penstock explain dataset.spec"),
    ],
)  # fmt: skip
def test_what_is_no_resource_is_refused(text: str, what: str, hint: str) -> None:
    found, said = problem(text)
    assert found.startswith(what)
    assert hint in said


def test_aliases_that_multiply_are_refused_before_they_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for depth in range(1, 12):
        lines.append(f"a{depth}: &a{depth} [{', '.join([f'*a{depth - 1}'] * 9)}]")
    assert "holds too much" in problem("\n".join(lines))[0]
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]"
    assert "holds too much" in problem(text)[0]


def test_anchors_and_merges_are_read() -> None:
    text = manifest(
        "Dataset",
        """
        sharedOptions: &common
          region: here
        mounts:
        - mountPoint: s3://bucket
          options:
            <<: *common
            endpoint: there
        """,
    )
    resource = read_one(text).resource
    assert isinstance(resource, Dataset)
    assert resource.spec.mounts[0].options == {"region": "here", "endpoint": "there"}


def test_two_resources_of_one_name_are_refused_with_both_places() -> None:
    what, _ = problem(f"{GOOD}---\n{GOOD}")
    assert what == "f.yaml:10: dataset/default/imagenet stands twice; first in f.yaml:1"
    with pytest.raises(ManifestError, match=re.escape("b.yaml:1: dataset/default/imagenet")):
        read_all([(GOOD, "a.yaml"), (GOOD, "b.yaml")])
    other = GOOD.replace(FLUID, "penstock.dev/v1alpha1")  # another spelling of the same kind
    assert "stands twice" in problem(f"{GOOD}---\n{other}")[0]


def test_all_mistakes_are_said_at_once_in_the_order_of_their_lines() -> None:
    text = manifest(
        "AlluxioRuntime",
        """
        replicas: many
        tieredstore:
          levels:
          - mediumtype: ssd
            quota: 10GB
            lo: "0.5"
        """,
    )
    found = problems(text)
    assert [one.where for one in found] == ["f.yaml:6", "f.yaml:9", "f.yaml:10", "f.yaml:11"]
    assert [one.hint for one in found][1:] == [
        "did you mean SSD?",
        "did you mean 10Gi (powers of 1024) or 10G (of 1000)?",
        "did you mean low?",
    ]
    with pytest.raises(ManifestError, match=r"^4 mistakes\n") as caught:
        read(text, "f.yaml")
    assert str(caught.value).count("  hint: ") == 3


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ("name: a", "name: a", "is seen at /a, and so is spec.mounts.0 in line 7"),
        ("name: a", "path: /a/", "is seen at /a, and so is spec.mounts.0 in line 7"),
        ("readOnly: true", "path: /", "is seen at the root, and so is spec.mounts.0 in line 7"),
        ("path: /a", "path: /a/b", "/a/b lies inside /a; spec.mounts.0 is in line 7"),
        ("path: /a/b", "name: a", "/a/b lies inside /a; spec.mounts.0 is in line 7"),
    ],
)
def test_mounts_at_one_path_are_refused_with_both_lines(first: str, second: str, what: str) -> None:
    text = dataset(f"mountPoint: s3://one\n{first}", f"mountPoint: s3://two\n{second}")
    assert problem(text)[0] == f"f.yaml:9: spec.mounts.1: {what}"


def test_a_mount_at_the_root_goes_with_mounts_below_it() -> None:
    resource = read_one(dataset("mountPoint: s3://one\npath: /", "mountPoint: s3://two\nname: x"))
    assert isinstance(resource.resource, Dataset)
    assert [mount.place for mount in resource.resource.spec.mounts] == ["/", "/x"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("name: a/b", "spec.mounts.0.name: 'a/b' is not a name"),
        ("name: ..", "spec.mounts.0.name: '..' is not a name"),
        ("path: a/b", "spec.mounts.0.path: 'a/b' is not an absolute path"),
        ("path: /a/../b", "spec.mounts.0.path: '/a/../b' is not a path below the data set"),
        ("path: /a//b", "spec.mounts.0.path: '/a//b' is not a path below the data set"),
        ("options: [a]", "spec.mounts.0.options: must be a map, and is a list"),
        ("options: {a: {b: c}}", "spec.mounts.0.options.a: must be text, and is a map"),
        ("options: {a: 010}", "spec.mounts.0.options.a: is read as a number"),
        ("options: {a.b: yes}", "spec.mounts.0.options.a.b: is read as a number, or as true"),
        ("readOnly: perhaps", "spec.mounts.0.readOnly: must be true or false, and is text"),
        ("name: [a]", "spec.mounts.0.name: must be text, and is a list"),
        ("encryptOptions: {}", "spec.mounts.0.encryptOptions: must be a list, and is a map"),
        ("encryptOptions: [{name: a}]", "spec.mounts.0.encryptOptions.0.valueFrom: is missing"),
    ],
)
def test_what_a_mount_cannot_be_is_refused(line: str, what: str) -> None:
    assert problem(dataset(f"mountPoint: s3://b\n{line}"))[0].startswith(f"f.yaml:8: {what}")


def test_options_may_be_numbers_and_booleans_that_print_as_they_are_written() -> None:
    resource = read_one(
        dataset("mountPoint: s3://b\noptions: {a: 5, b: true, c: 1.5, d: , e: 2020-01-01, f: 1:30}")
    ).resource
    assert isinstance(resource, Dataset)
    assert resource.spec.mounts[0].options == {
        "a": "5", "b": "true", "c": "1.5", "d": "", "e": "2020-01-01", "f": "1:30",
    }  # fmt: skip


def test_encrypt_options_among_the_options_are_told_where_they_belong() -> None:
    text = dataset("mountPoint: s3://b\noptions:\n  a: b\n  encryptOptions:\n  - name: x")
    assert problem(text)[1] == "encryptOptions is a field beside options: indent it less"


@pytest.mark.parametrize(
    ("metadata", "what", "hint"),
    [
        ("name: My_Data", "metadata.name: 'My_Data' is not a name", "did you mean my-data?"),
        ("name: " + "a" * 254, "metadata.name: '", "it is of"),
        ("name: ../x", "metadata.name: '../x' is not a name", "did you mean x?"),
        ("generateName: x-", "metadata.generateName: a name is not made up here", "metadata.name"),
        ("name: x\n  namespace: a.b", "metadata.namespace: 'a.b'", "did you mean a-b?"),
        ("name: x\n  lables: {}", "metadata.lables: unknown field", "did you mean labels?"),
        ("namespace: x", "metadata.name: is missing", "name: "),
    ],
)
def test_metadata_is_checked(metadata: str, what: str, hint: str) -> None:
    found, said = problem(GOOD.replace("name: imagenet", metadata, 1))
    assert what in found
    assert hint in said


def test_a_namespace_can_be_given_from_outside() -> None:
    (document,) = read(GOOD, "f.yaml", namespace="team")
    assert document.resource.key.namespace == "team"
    (document,) = read(GOOD.replace("  name:", "  namespace: own\n  name:", 1), "f.yaml",
                       namespace="team")  # fmt: skip
    assert document.resource.key.namespace == "own"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mediumtype: SSD\npath: a", "spec.tieredstore.levels.0.path: 'a' is not an absolute path"),
        ("mediumtype: SSD\npath: /a,/b\nquotaList: 1Gi", "quotaList: 1 quotas for 2 paths"),
        ("mediumtype: SSD\nquotaList: 1Gi,x", "quotaList: 'x' is not a quantity"),
        ("mediumtype: SSD\nhigh: 0.5\nlow: 0.9", "low: low (0.9) is above high (0.5)"),
        ("mediumtype: SSD\nhigh: 95", "high: '95' is not a share of the quota"),
        ("mediumtype: SSD\nquota: 500m", "quota: '500m' is a fraction of a byte"),
        ("path: /a", "mediumtype: is missing"),
    ],
)
def test_a_level_that_cannot_be_is_refused(text: str, what: str) -> None:
    assert what in problem(level(text))[0]


@pytest.mark.parametrize(
    ("kind", "spec", "what"),
    [
        ("DataLoad", "dataset: {name: x}\npolicy: cron", "spec.policy: must be one of Once, Cron,"),
        ("DataLoad", "dataset: {name: x}\npolicy: Cron", "spec.schedule: is missing"),
        ("DataLoad", "dataset: {name: x}\nschedule: 0 2 * * *", "needs policy Cron"),
        ("DataLoad", "dataset: {name: x}\npolicy: Cron\nschedule: daily", "not a schedule"),
        ("DataLoad", "dataset: {name: x}\ntarget: [{path: /../x}]", "leads out of the data set"),
        ("DataLoad", "dataset: {name: x}\nttlSecondsAfterFinished: -1", "must be 0 or more"),
        ("DataLoad", "dataset: {name: x}\nrunAfter: {kind: Pod, name: x}", "must be one of"),
        ("DataMigrate", "from: {}\nto: {dataset: {name: x}}", "spec.from: names nothing"),
        ("DataMigrate", "from: {externalStorage: {uri: pvc://x}}\nto: {dataset: {name: x}}",
         "scheme 'pvc' is not read here"),
        ("DataProcess", "dataset: {name: x, mountPath: /d}\nprocessor: {}", "nothing to run"),
        ("DataProcess", "dataset: {name: x, mountPath: d}\nprocessor: {script: {source: x}}",
         "spec.dataset.mountPath: 'd' is not an absolute path"),
        ("DataBackup", "dataset: x\nbackupPath: pvc://x/y", "scheme 'pvc' is not read here"),
    ],
)  # fmt: skip
def test_an_operation_that_cannot_be_is_refused(kind: str, spec: str, what: str) -> None:
    assert what in problem(manifest(kind, spec))[0]


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    assert decode(b"\xef\xbb\xbfa: 1", "f.yaml") == "a: 1"
    with pytest.raises(ManifestError, match=re.escape("f.yaml:2: is not text")):
        decode(b"a: 1\n\xff\xfe", "f.yaml")


def test_json_is_read_with_its_lines_and_however_it_is_indented() -> None:
    text = json.dumps(read_one(GOOD).raw, indent="\t")
    assert read_one(text).where("spec.mounts.0.mountPoint") == "f.yaml:10"
