"""Stand-ins for what a benchmark run starts, which obey the same contracts and take no time.

    python -m tests.support.bench_standin dataset SETTINGS.json
    python -m tests.support.bench_standin experiment CONFIG.json

An experiment behaves as its arm's option `act` says. It leaves a process that forked away and, as
root, a mount; one of JuiceFS leaves an object: the runner must get rid of them. Imports nothing of
ours: a run starts many.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def make_dataset(settings: Path) -> int:
    options = json.loads(settings.read_text())
    for number in range(options["plan"]["files"]):
        (Path(options["folder"]) / f"{number}.bin").write_bytes(bytes(100))
    Path(options["manifest"]).write_text(json.dumps({"form": "small", "sha256": "0"}))
    return 0


def experiment(path: Path) -> int:
    config = json.loads(path.read_text())
    arm = config["experiment"]["arm"]
    act = arm["options"].get("act", "measure")
    place = Path(config["medium"]) / "mounted"
    place.mkdir()
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "bench", place], check=True)
    subprocess.Popen(["setsid", "sleep", "1000"])
    if arm["system"] == "juicefs":
        write_scratch(config["store"])
    print("something that is no JSON", flush=True)
    print(json.dumps({"phase": "measuring", "done": 0.5}), flush=True)
    if act == "hang":
        print("about to hang", file=sys.stderr, flush=True)
        time.sleep(1000)
    if act == "crash":
        print("no luck", file=sys.stderr)
        return 1
    failure = {"what": "the store is gone", "hint": "wait"} if act == "unreachable" else None
    proofs = [{"name": "cold", "ok": act != "cheat", "detail": "as it should be"}]
    result = {"schema": 2, "valid": act != "cheat", "failure": failure, "proofs": proofs}
    (Path(config["output"]) / "result.json").write_text(json.dumps(result))
    return 3 if failure else 0


def write_scratch(store: dict[str, str]) -> None:
    from obstore.store import S3Store

    keys = json.loads(Path(store["keys_file"]).read_text())
    bucket = S3Store(
        store["scratch_bucket"],
        endpoint=store["endpoint"],
        region=store["region"],
        access_key_id=keys["access_key"],
        secret_access_key=keys["secret_key"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    bucket.put(f"{store['scratch_name']}/chunks/0", b"a chunk")


if __name__ == "__main__":
    work = {"dataset": make_dataset, "experiment": experiment}[sys.argv[1]]
    sys.exit(work(Path(sys.argv[2])))
