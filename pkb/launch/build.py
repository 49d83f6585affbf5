"""(lead's temporary stand-in until the real builder lands: overwrite this file)"""
from pathlib import Path
import tempfile
def install_public_helpers() -> None: ...
def extensions_dir(sha: str) -> Path:
    return Path(tempfile.gettempdir())/"ext"
