"""A recording of a step's calls as one file that opens from the disk, and those that lie in a served folder."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path

from limpid.files import write_atomically
from limpid.operations.document import RecordingDocument
from limpid.tracing.schema import to_json
from limpid.view import bundle
from limpid.view.file import POLICY, compressed


def write(recording: RecordingDocument, file: Path) -> None:
    """Write the file."""
    write_atomically(file, page(recording).encode())


def recording_text(folder: Path) -> bytes:
    """The document of a recording that lies in a folder, as JSON, packed.

    Raises  CheckpointError for one that is cut short, or of another version
    """
    from limpid.operations.kept import read

    return gzip.compress(json.dumps(to_json(read(folder).document), ensure_ascii=False).encode(), mtime=0)


def page(recording: RecordingDocument) -> str:
    """The file's text.

    Raises  ConfigError where the page was not built
    """
    script = bundle.script("recording")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = POLICY.format(digest=digest)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{bundle.style("recording")}</style>'
    part = compressed(json.dumps(to_json(recording), ensure_ascii=False, separators=(",", ":")).encode())
    held = f'<script type="application/octet-stream" id="recording">{part}</script>'
    return bundle.document(head, f"{held}<script>{script}</script>", title=recording.title)
