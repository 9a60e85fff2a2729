# SPDX-License-Identifier: Apache-2.0
"""How tests run programs, and start MPI processes where the build has MPI."""

import os
import subprocess

MPIEXEC = ""  # from the command line of a test; empty: the build has no MPI


def launcher(ranks):
    """What a command begins with to be run as so many processes; 0: as itself."""
    return [MPIEXEC, "-np", str(ranks)] if ranks else []


def run(*command, **how):
    """Runs a program to its end, whatever its exit code."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


def needs_mpi(test):
    def run(self):
        if MPIEXEC:
            return test(self)
        if "mpi" in os.environ.get("THINWIRE_REQUIRE", ""):
            self.fail("this build has no MPI, but THINWIRE_REQUIRE asks for it")
        return self.skipTest("this build has no MPI")

    run.__doc__ = test.__doc__
    return run
