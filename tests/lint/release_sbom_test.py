#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The SBOM of a release names each file, and each library whose code is in it."""

import hashlib
import os
import re
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import release_sbom

RULE = "=" * 78


def notices(*names):
    return "Begin\n" + "".join(f"\n{RULE}\n{n}\n{RULE}\n\nText\n" for n in names)


class Sbom(unittest.TestCase):
    def test_knows_every_library_that_has_a_notice(self):
        text = (ROOT / "cmake/notices.cmake").read_text()
        named = set(
            re.findall(r"^ *thinwire_notice\(\S+ (\w[\w-]+)", text, re.MULTILINE)
        )
        self.assertIn("Highway", named)
        # No file of a release links LibTorch.
        self.assertEqual(named - {"LibTorch"}, set(release_sbom.LIBRARIES))

    def test_names_files_and_what_is_in_them(self):
        with (
            tempfile.TemporaryDirectory() as root,
            mock.patch.dict(os.environ, SOURCE_DATE_EPOCH="1700000000"),
            mock.patch.object(release_sbom, "version_of", lambda name: "1.2"),
        ):
            folder = Path(root)
            (folder / "thinwire-3.4.5.tar.gz").write_bytes(b"sources")
            (folder / "libthinwire-dev_3.4.5_amd64.deb").write_bytes(b"")
            with zipfile.ZipFile(folder / "thinwire-3.4.5-a.whl", "w") as wheel:
                wheel.writestr("d/licenses/THIRD_PARTY_NOTICES", notices("nanobind"))
            made = release_sbom.document(folder, notices("fmt", "Highway"))
        packages = {p["name"]: p for p in made["packages"]}
        self.assertEqual(len(packages), 6)
        archive = packages["thinwire-3.4.5.tar.gz"]
        self.assertEqual(archive["supplier"], "Organization: The Thinwire authors")
        self.assertRegex(archive["homepage"], "^https://")
        digest = packages["thinwire-3.4.5.tar.gz"]["checksums"][0]["checksumValue"]
        self.assertEqual(digest, hashlib.sha256(b"sources").hexdigest())
        self.assertEqual(packages["fmt"]["licenseDeclared"], "MIT")
        self.assertEqual(made["creationInfo"]["created"], "2023-11-14T22:13:20Z")
        found = {
            (r["spdxElementId"], r["relatedSpdxElement"])
            for r in made["relationships"]
            if r["relationshipType"] == "CONTAINS"
        }
        deb = "SPDXRef-libthinwire-dev-3.4.5-amd64.deb"
        wanted = {(deb, "SPDXRef-fmt"), (deb, "SPDXRef-Highway")}
        wanted.add(("SPDXRef-thinwire-3.4.5-a.whl", "SPDXRef-nanobind"))
        self.assertEqual(found, wanted)


if __name__ == "__main__":
    unittest.main()
