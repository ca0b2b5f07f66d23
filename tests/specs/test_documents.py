"""What is wrong with a manifest is said all at once, with file, line and hint."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ManifestError
from penstock.specs.documents import decode, read, read_all
from tests.support.manifests import FLUID, dataset, level, manifest, problem, problems, read_one


def mounts_of(text: str) -> Any:
    resource: Any = read_one(text).resource
    return resource.spec.mounts


GOOD = dataset("mountPoint: s3://bucket\nname: train")


def test_a_value_knows_its_line() -> None:
    document = read_one(GOOD)
    assert document.where("spec.mounts.0.name") == "f.yaml:8"
    assert document.where("spec.mounts.0.options.a.b") == "f.yaml:7"  # the nearest that there is
    assert document.where() == "f.yaml:1"
    text = json.dumps(document.raw, indent="\t")
    assert read_one(text).where("spec.mounts.0.mountPoint") == "f.yaml:10"


def test_documents_and_list_items_are_resources_and_empty_documents_are_skipped() -> None:
    text = f"---\n---\n{GOOD}---\n# nothing\n---\n{GOOD.replace('imagenet', 'coco')}---\n"
    first, second = read(text, "f.yaml")
    assert (first.resource.key.name, second.resource.key.name) == ("imagenet", "coco")
    assert second.where("spec.mounts.0.name") == "f.yaml:21"
    items = "- " + GOOD.replace("\n", "\n  ").strip() + "\n"
    (found,) = read(f"apiVersion: v1\nkind: List\nitems:\n{items}", "f.yaml")
    assert found.resource == first.resource
    wrong = f"apiVersion: v1\nkind: List\nitems:\n{items.replace('s3:', 'nfs:')}"
    assert problem(wrong)[0].startswith("f.yaml:10: spec.mounts.0.mountPoint: scheme 'nfs'")


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [("---\n# a comment\n---\n", "f.yaml: has no resource", "apiVersion and kind"),
     ("- a\n- b\n", "f.yaml:1: a list, not a resource", "kind: List"),
     ("hello", "f.yaml:1: not a resource", "apiVersion and kind"),
     ("a:\n\tb: 1\n", "f.yaml:2: a tab where YAML needs spaces", "indent with spaces"),
     ("a: b: c", "f.yaml:1: invalid YAML: mapping values", "quotes"),
     ("a: [1", "f.yaml:2: invalid YAML", "brackets"),
     ("a: \ud800", "f.yaml: is not text", "UTF-8"),
     ("a: 1\nb: 2\na: 3\n", "f.yaml:3: 'a' is twice in one map; first in line 1", "---"),
     ("a: !!python/object:os.system x", "f.yaml:1: tag", "leave it out"),
     ("? [a]\n: b\n", "f.yaml:1: a key must be text", ""),
     ("a: &a [*a]", "f.yaml:1: is nested too deeply", "anchors"),
     ("a: " + "[" * 1_000_000, "f.yaml:1: is nested too deeply", "brackets"),
     ("a: 1", "f.yaml:1: kind: is missing", "one of Dataset,"),
     ("kind: Dataset", "f.yaml:1: apiVersion: is missing", FLUID),
     ("apiVersion: v1\nkind: Pod", "f.yaml:2: Pod of v1 is not Penstock's", "with kubectl"),
     (f"apiVersion: {FLUID}\nkind: VineyardRuntime", "f.yaml:2: VineyardRuntime is not supported",
      "PenstockRuntime"),
     (f"apiVersion: {FLUID}\nkind: PenstockRuntime",
      f"f.yaml:1: PenstockRuntime has no apiVersion '{FLUID}'", "penstock.dev/v1alpha1"),
     (f"apiVersion: {FLUID}\nkind: Dataset\nmetadata: {{name: x}}", "f.yaml:1: spec: is missing",
      "penstock explain dataset.spec")],
)  # fmt: skip
def test_a_document_that_is_not_a_resource_is_rejected(text: str, what: str, hint: str) -> None:
    found, output = problem(text)
    assert found.startswith(what)
    assert hint in output


def test_multiplying_aliases_are_rejected_before_they_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for depth in range(1, 12):
        lines.append(f"a{depth}: &a{depth} [{', '.join([f'*a{depth - 1}'] * 9)}]")
    assert "is too large" in problem("\n".join(lines))[0]
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]"
    assert "is too large" in problem(text)[0]


def test_text_with_or_without_a_byte_order_mark_is_read_and_other_bytes_are_rejected() -> None:
    assert decode(b"\xef\xbb\xbfa: 1", "f.yaml") == "a: 1"
    with pytest.raises(ManifestError, match=re.escape("f.yaml:2: is not text")):
        decode(b"a: 1\n\xff\xfe", "f.yaml")


def test_anchors_and_merges_are_read() -> None:
    spec = """
    sharedOptions: &common {region: here}
    mounts:
    - {mountPoint: s3://one, path: /, options: {<<: *common, endpoint: there}}
    - {mountPoint: s3://two, name: x}
    """
    first, second = mounts_of(manifest("Dataset", spec))
    assert first.options == {"region": "here", "endpoint": "there"}
    assert (first.place, second.place) == ("/", "/x")  # a mount may lie below the root


def test_two_resources_of_one_name_are_rejected_with_both_lines() -> None:
    what, _ = problem(f"{GOOD}---\n{GOOD}")
    assert what == "f.yaml:10: dataset/default/imagenet is there twice; first in f.yaml:1"
    with pytest.raises(ManifestError, match=re.escape("b.yaml:1: dataset/default/imagenet")):
        read_all([(GOOD, "a.yaml"), (GOOD, "b.yaml")])
    other = GOOD.replace(FLUID, "penstock.dev/v1alpha1")  # another spelling of the same kind
    assert "is there twice" in problem(f"{GOOD}---\n{other}")[0]


def test_all_mistakes_are_reported_at_once_in_line_order() -> None:
    text = level('mediumtype: ssd\nquota: 10GB\nlo: "0.5"') + "  replicas: many\n"
    with pytest.raises(ManifestError, match=r"^4 mistakes\n") as caught:
        read(text, "f.yaml")
    assert str(caught.value).count("  hint: ") == 3
    found = [(one.where, one.hint) for one in caught.value.problems]
    assert found[:3] == [
        ("f.yaml:8", "did you mean SSD?"),
        ("f.yaml:9", "did you mean 10Gi (powers of 1024) or 10G (of 1000)?"),
        ("f.yaml:10", "did you mean low?"),
    ]
    assert found[3][0] == "f.yaml:11"


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [("name: a", "path: /a/", "appears at /a, like spec.mounts.0 in line 7"),
     ("readOnly: true", "path: /", "appears at the root, like spec.mounts.0 in line 7"),
     ("path: /a", "path: /a/b", "/a/b is inside /a; spec.mounts.0 is in line 7"),
     ("path: /a/b", "name: a", "/a/b is inside /a; spec.mounts.0 is in line 7")],
)  # fmt: skip
def test_mounts_at_one_path_are_rejected_with_both_lines(
    first: str, second: str, what: str
) -> None:
    text = dataset(f"mountPoint: s3://one\n{first}", f"mountPoint: s3://two\n{second}")
    assert problem(text)[0] == f"f.yaml:9: spec.mounts.1: {what}"


@pytest.mark.parametrize(
    ("line", "what"),
    [("name: a/b", "name: 'a/b' is not a name"),
     ("path: a/b", "path: 'a/b' is not an absolute path"),
     ("path: /a/../b", "path: '/a/../b' is not a path below the data set"),
     ("options: [a]", "options: must be a map, but is a list"),
     ("options: {a: 010}", "options.a: is text, but"),
     ("options: {a.b: yes}", "options.a.b: is text, but"),
     ("readOnly: perhaps", "readOnly: must be true or false, but is text"),
     ("encryptOptions: {}", "encryptOptions: must be a list, but is a map"),
     ("encryptOptions: [{name: a}]", "encryptOptions.0.valueFrom: is missing")],
)  # fmt: skip
def test_an_impossible_mount_is_rejected(line: str, what: str) -> None:
    found, _ = problem(dataset(f"mountPoint: s3://b\n{line}"))
    assert found.startswith(f"f.yaml:8: spec.mounts.0.{what}")


def test_numeric_and_boolean_options_print_as_they_are_written() -> None:
    written = "options: {a: 5, b: true, c: 1.5, d: , e: 2020-01-01, f: 1:30}"
    (found,) = mounts_of(dataset(f"mountPoint: s3://b\n{written}"))
    assert list(found.options.values()) == ["5", "true", "1.5", "", "2020-01-01", "1:30"]
    text = dataset("mountPoint: s3://b\noptions:\n  a: b\n  encryptOptions:\n  - name: x")
    assert problem(text)[1] == "encryptOptions is a field beside options: indent it less"


@pytest.mark.parametrize(
    ("metadata", "what", "hint"),
    [("name: My_Data", "metadata.name: 'My_Data' is not a name", "did you mean my-data?"),
     ("name: " + "a" * 254, "metadata.name: '", "use a-z"),
     ("generateName: x-", "metadata.generateName: names are not generated here", "metadata.name"),
     ("name: x\n  namespace: a.b", "metadata.namespace: 'a.b'", "did you mean a-b?"),
     ("namespace: x", "metadata.name: is missing", "name: ")],
)  # fmt: skip
def test_metadata_is_validated(metadata: str, what: str, hint: str) -> None:
    found, output = problem(GOOD.replace("name: imagenet", metadata, 1))
    assert what in found
    assert hint in output


PIECES = (
    "- ",
    "a",
    ": ",
    "\n",
    "  ",
    "&a ",
    "*a",
    "<<",
    "{",
    "}",
    "[",
    "]",
    "kind",
    "---\n",
    "1",
    "'",
    "|\n",
    "!!x ",
    ",",
    "? ",
)


@settings(deadline=None)
@given(st.text(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    found = problems(text)  # none of it has an apiVersion
    assert found
    assert all(one.what for one in found)


BASES = [
    dataset("mountPoint: s3://b\nreadOnly: true\npath: /a\noptions: {a: b}"),
    level("mediumtype: SSD\npath: /a\nquota: 1Gi\nhigh: 0.9\nlow: 0.5"),
    manifest("DataLoad", "dataset: {name: x}\ntarget: [{path: /}]\npolicy: Once"),
]
ANYTHING = (None, True, -1, 1e300, "", "\0", [], [None], ["a"], {}, {"": []}, {"a": {"b": 1}})


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each map or list in it, with each of its keys."""
    if isinstance(node, dict | list):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield node, key
            yield from places(node[key])


@pytest.mark.parametrize("text", BASES)
def test_any_value_in_any_place_is_parsed_or_rejected(text: str) -> None:
    assert problems(text) == ()
    whole = yaml.safe_load(text)
    for holder, key in list(places(whole)):
        kept = holder[key]
        for value in ANYTHING:
            holder[key] = value
            assert all(one.what for one in problems(yaml.safe_dump(whole)))
        holder[key] = kept


def test_volume_claims_are_refused_where_there_is_no_cluster() -> None:
    what, hint = problem(dataset("mountPoint: pvc://images/train"))
    assert what == "f.yaml:7: spec.mounts.0.mountPoint: scheme 'pvc' is not supported"
    assert hint == "one machine has no volume claims; name the folder: local:///FOLDER"


def test_the_name_of_a_volume_claim_is_checked() -> None:
    what, hint = problem(dataset("mountPoint: pvc:///train"))
    assert "names no volume claim" in what
    assert hint == "write it like pvc://NAME/FOLDER"
