# SPDX-License-Identifier: Apache-2.0
"""Data of a Debian package, fetched and unpacked but not installed, without root."""

import os
import shutil
import subprocess


class Failure(Exception):
    """Its text is what went wrong, in one line."""


def run(command, folder):
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stdout.strip().splitlines()


def fetch(package, folder):
    """Downloads a package, NAME or NAME=VERSION, and unpacks it into a folder that
    holds nothing else."""
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise Failure(f"{tool} is not here (Debian and Ubuntu have it)")
    # Root's apt would download as its own user, which may not enter a private folder.
    download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", package]
    fetched, output = run(download, folder)
    if not fetched and os.geteuid() == 0:
        run(["apt-get", "update"], folder)
        fetched, output = run(download, folder)
    if not fetched:
        why = output[-1] if output else "no reason given"
        raise Failure(f"apt-get download {package} failed ({why})")
    archive = next(folder.glob(f"{package.partition('=')[0]}_*.deb"))
    unpacked, output = run(["dpkg-deb", "-x", archive.name, "."], folder)
    if not unpacked:
        why = output[-1] if output else "no reason given"
        raise Failure(f"dpkg-deb cannot unpack {archive.name} ({why})")
