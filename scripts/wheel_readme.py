# SPDX-License-Identifier: Apache-2.0
"""Gives wheels the README with absolute links: an index has no other file."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELATIVE = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")


def dynamic_metadata(field, settings=None):
    """Returns the field `readme`, as scikit-build-core asks its providers."""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    homepage = re.search(r'HOMEPAGE_URL "(\S+)"', cmake)[1]
    text = (ROOT / "README.md").read_text()
    return {
        "content-type": "text/markdown",
        "text": RELATIVE.sub(rf"]({homepage}/blob/main/\1)", text),
    }
