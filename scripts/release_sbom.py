# SPDX-License-Identifier: Apache-2.0
"""Writes the SBOM of a release: its files, and the libraries whose code is in them.

usage: release_sbom.py FOLDER NOTICES

The list of libraries is that of THIRD_PARTY_NOTICES, in each wheel and, for the Debian
packages, in the file NOTICES. Versions are those on this machine.
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

# Licence, and who knows the version: a Debian package, or one of Python.
LIBRARIES = {
    "Highway": ("Apache-2.0 OR BSD-3-Clause", "libhwy-dev"),
    "fmt": ("MIT", "libfmt-dev"),
    "nlohmann-json": ("MIT", "nlohmann-json3-dev"),
    "xxHash": ("BSD-2-Clause", "libxxhash-dev"),
    "CLI11": ("BSD-3-Clause", "libcli11-dev"),
    "nanobind": ("BSD-3-Clause", None),
    "robin_map": ("MIT", None),
}
SUPPLIER = "Organization: The Thinwire authors"
HEADING = re.compile(r"^={70,}\n(\S+)\n={70,}$", re.MULTILINE)


def version_of(name):
    package = LIBRARIES[name][1]
    if package is None:  # robin_map is a part of nanobind
        return version("nanobind") if name == "nanobind" else "NOASSERTION"
    query = ["dpkg-query", "-W", "-f", "${Version}", package]
    return subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout


def libraries_in(file, notices):
    """The names of the libraries whose code is in a file of the release."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            found = next(n for n in names if n.endswith("/THIRD_PARTY_NOTICES"))
            return HEADING.findall(archive.read(found).decode())
    return HEADING.findall(notices) if file.suffix == ".deb" else []


def identifier(text):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)


def package(name, found_version, licence, **more):
    return {
        "SPDXID": identifier(name),
        "name": name,
        "versionInfo": found_version,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
    } | more


def homepage():
    text = (Path(__file__).resolve().parents[1] / "CMakeLists.txt").read_text()
    return re.search(r'HOMEPAGE_URL "(\S+)"', text)[1]


def document(folder, notices):
    released = re.search(r"thinwire-([0-9.]+)\.tar\.gz", " ".join(os.listdir(folder)))[
        1
    ]
    packages, relations, used = [], [], set()
    for file in sorted(folder.iterdir()):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        sums = [{"algorithm": "SHA256", "checksumValue": digest}]
        packages.append(
            package(
                file.name,
                released,
                "Apache-2.0",
                packageFileName=file.name,
                supplier=SUPPLIER,
                homepage=homepage(),
                checksums=sums,
            )
        )
        relations.append(("SPDXRef-DOCUMENT", "DESCRIBES", identifier(file.name)))
        for name in libraries_in(file, notices):
            used.add(name)
            relations.append((identifier(file.name), "CONTAINS", identifier(name)))
    packages += [package(n, version_of(n), LIBRARIES[n][0]) for n in sorted(used)]
    made = int(os.environ["SOURCE_DATE_EPOCH"])
    when = datetime.datetime.fromtimestamp(made, datetime.UTC)
    whole = hashlib.sha256(json.dumps(packages).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"thinwire-{released}",
        "documentNamespace": f"https://spdx.org/spdxdocs/thinwire-{released}-{whole[:32]}",
        "creationInfo": {
            "created": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [SUPPLIER, "Tool: thinwire-scripts-release"],
        },
        "packages": packages,
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
            for a, kind, b in relations
        ],
    }


def main():
    folder, notices = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
    text = json.dumps(document(folder, notices), indent=1)
    (folder / "thinwire.spdx.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
