"""A node plugin for tests: `python -m tests.support.node_plugin FOLDER`.

The real services and the real keeper; only the API server is replaced by a folder of markers.
"""

import sys
from pathlib import Path

from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.node.folders import NodeFolders
from penstock.kubernetes.node.keeper import Keeper
from penstock.kubernetes.node.main import NodeOptions, serve
from penstock.store.redaction import set_up_logging


def main() -> None:
    folder = Path(sys.argv[1])
    set_up_logging(level="INFO")

    def exists(key: ServedKey) -> bool:
        return (folder / "volumes" / names.volume_name(*key)).exists()

    kubelet_dir = folder / "kubelet"
    folders = NodeFolders(Path(names.NODE_STATE), Path("/"))
    keeper = Keeper(folders, kubelet_dir, exists)
    serve(NodeOptions("node-1", kubelet_dir=kubelet_dir), keeper)


if __name__ == "__main__":
    main()
