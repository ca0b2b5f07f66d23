import importlib.machinery
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_page_of_options_is_what_the_tables_say() -> None:
    path = str(ROOT / "tools" / "write-reference")
    loader = importlib.machinery.SourceFileLoader("write_reference", path)
    spec = importlib.util.spec_from_loader("write_reference", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    written = (ROOT / "docs" / "reference" / "runtime-options.md").read_text()
    assert written == module.runtime_options(), "run tools/write-reference"
