# SPDX-License-Identifier: Apache-2.0
"""The installed package: versions, what the module links, what an import costs, doctor, types."""

import importlib.metadata
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import ranks
import thinwire
from ranks import program as run
from thinwire import _core, _devices

ROOT = Path(__file__).resolve().parents[2]
MODULE = Path(_core.__file__)
SYSTEM = {
    "libc",
    "libm",
    "libgcc_s",
    "libstdc++",
    "ld-linux-x86-64",
    "ld-linux-aarch64",
}


def said_by(*arguments: str, code: int = 0, **variables: str) -> str:
    """Returns what Python prints, and of a program that fails its errors."""
    done = run(sys.executable, *arguments, **variables)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


@pytest.mark.quick
def test_versions_agree() -> None:
    declared = re.search(r"VERSION ([\d.]+)\n", (ROOT / "CMakeLists.txt").read_text())
    assert declared
    assert thinwire.__version__ == declared[1]
    assert importlib.metadata.version("thinwire") == declared[1]


@pytest.mark.quick
def test_the_module_needs_libc_libstdcxx_and_highway_only() -> None:
    listed = run("objdump", "-p", str(MODULE))
    assert listed.returncode == 0, listed.stderr
    needed = {
        re.split(r"[.]so|-[0-9a-f]{8}[.]", name)[0]
        for name in re.findall(r"NEEDED\s+(\S+)", listed.stdout)
    }
    assert "libc" in needed
    assert needed <= SYSTEM | {"libhwy"}


@pytest.mark.quick
def test_the_module_exports_its_entry_only() -> None:
    listed = run("nm", "-D", "--defined-only", str(MODULE))
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["PyInit__core"]


@pytest.mark.quick
def test_the_wheel_runs_with_glibc_2_34() -> None:
    tags = importlib.metadata.distribution("thinwire").read_text("WHEEL")
    assert tags
    versions = re.findall(r"^Tag: .*manylinux_2_(\d+)_x86_64$", tags, re.MULTILINE)
    if os.uname().machine == "x86_64":
        assert versions and int(versions[0]) <= 34


@pytest.mark.quick
def test_the_wheel_is_at_most_5_mb() -> None:
    files = importlib.metadata.files("thinwire")
    assert files
    # Unpacked: a wheel, being compressed, is smaller.
    installed = sum(file.size or 0 for file in files if file.suffix == ".so")
    assert 0 < installed <= 15 * 2**20
    wheels = list((ROOT / "dist").glob(f"thinwire-{thinwire.__version__}-*.whl"))
    assert wheels, "scripts/build_wheel makes one"
    assert max(wheel.stat().st_size for wheel in wheels) <= 5 * 10**6


@pytest.mark.quick
def test_the_wheel_holds_the_notice_of_every_library_inside() -> None:
    files = {file.name: file for file in importlib.metadata.files("thinwire") or []}
    assert {"LICENSE", "THIRD_PARTY_NOTICES"} <= set(files)
    text = Path(files["THIRD_PARTY_NOTICES"].locate()).read_text()
    rule = "=" * 78
    parts = re.split(rf"^{rule}\n(.+)\n{rule}\n", text, flags=re.MULTILINE)
    notices = dict(zip(parts[1::2], parts[2::2], strict=True))
    # Libraries without a shared object, and those whose texts are in the module.
    inside = {"fmt", "xxHash", "robin_map"}
    if (
        any(name.startswith("libhwy") for name in files)
        or b"HWY_" in MODULE.read_bytes()
    ):
        inside.add("Highway")
    for text_inside, name in (
        (b"nanobind", "nanobind"),
        (b"[json.", "nlohmann-json"),
        (b"N3CLI10ParseErrorE", "CLI11"),
    ):
        assert text_inside in MODULE.read_bytes(), name
        inside.add(name)
    assert set(notices) == inside
    for name, notice in notices.items():
        assert re.search(r"(?i)copyright", notice), name
        assert re.search(r"(?i)permission|redistribution|licen[sc]e", notice), name


TRAINERS = {"mpi4py", "transformers", "accelerate", "lightning"}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("used", "brings", "not_brings"),
    [
        ("thinwire", "thinwire", {"torch", "numpy", "safetensors", *TRAINERS}),
        ("thinwire.OnebitAdam, thinwire.initialize", "torch", TRAINERS),
    ],
)
def test_an_import_brings_nothing_else(
    used: str, brings: str, not_brings: set[str]
) -> None:
    code = f"import json, sys, thinwire; {used}; print(json.dumps([*sys.modules]))"
    packages = {name.partition(".")[0] for name in json.loads(said_by("-c", code))}
    assert brings in packages and not packages & not_brings


def test_every_name_is_there() -> None:
    assert set(thinwire.__all__) <= set(dir(thinwire))
    for name in thinwire.__all__:
        assert getattr(thinwire, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'OneBitAdam'"):
        getattr(thinwire, "OneBitAdam")  # noqa: B009


def test_doctor_says_what_there_is() -> None:
    import torch

    said = said_by("-m", "thinwire", "doctor", THINWIRE_NUM_THREADS="3").splitlines()
    lines = dict(line.split(maxsplit=1) for line in said)
    assert lines["version"] == thinwire.__version__
    assert lines["kernels"].startswith(_core.cpu_target())
    assert lines["threads"] == "3 per rank (THINWIRE_NUM_THREADS)"
    assert lines["torch"] == f"yes: {torch.__version__}"
    assert "gloo" in lines["groups"].split()
    assert lines["devices"].startswith(("none beside the CPU", "1 of kind", "2 of "))
    assert lines["tested"] == f"tensors on devices: {_devices.label_of_all()}"
    assert lines["timeout"].startswith("1800 s per collective, or as the process group")
    # Not "ready: everything" where the kernel gives no huge pages, or a package lacks.
    lacking = [name for name, text in lines.items() if text.startswith("no: ")]
    assert re.match(
        "ready: works" if lacking else "ready: (everything|works)", said[-1]
    )


@pytest.mark.quick
def test_doctor_names_optional_packages_that_are_missing() -> None:
    lines = [("mpi4py", "no: pip install mpi4py")]
    code, out, _ = _core.run_command("x", [b"doctor"], None, lines, "", lambda: 0.0)
    assert code == 0 and b"everything" not in out
    assert out.endswith(b"; optional, and not installed: mpi4py\n")


def test_doctor_fails_where_torch_is_missing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none here')\n")
    done = run(sys.executable, "-m", "thinwire", "doctor", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "ready: no: torch cannot be imported (none here)" in done.stdout
    assert "torch cannot be imported (none here)" in done.stderr


def test_doctor_names_a_variable_that_no_run_would_accept() -> None:
    told = said_by("-m", "thinwire", "doctor", code=1, THINWIRE_COMM="tcp")
    assert re.search("THINWIRE_COMM must be .*, got [\"']tcp[\"']", told)


def test_a_torch_that_is_too_old_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.7.1+cpu'\n")
    script = "import thinwire; thinwire.OnebitAdam"
    told = said_by("-c", script, code=1, PYTHONPATH=str(tmp_path))
    assert "ImportError: thinwire needs torch 2.8 or newer; found 2.7.1+cpu" in told


def doctor_of_a_rank_with_threads() -> list[str]:
    threads = str(1 + int(os.environ["RANK"]) % 2)
    said = said_by("-m", "thinwire", "doctor", THINWIRE_NUM_THREADS=threads)
    return said.splitlines()


def test_doctor_speaks_once_and_has_a_line_for_each_difference() -> None:
    first, *others = ranks.results(3, __file__, "doctor_of_a_rank_with_threads")
    assert others == [[], []]
    (line,) = (line for line in first if line.startswith("differs"))
    assert line.startswith(f"differs: rank 1 on {socket.gethostname()}: threads ")
    assert line.endswith("2 per rank (THINWIRE_NUM_THREADS)")
    (of_ranks,) = (line for line in first if line.startswith("ranks"))
    assert "3, on 1 host" in of_ranks


@pytest.mark.quick
@pytest.mark.parametrize("start", ["module", "script"])
def test_exit_codes_of_the_program(start: str) -> None:
    script = Path(sysconfig.get_path("scripts"), "thinwire")
    program = (
        (sys.executable, "-m", "thinwire") if start == "module" else (str(script),)
    )
    name = " ".join(("python", *program[1:])) if start == "module" else "thinwire"
    assert f"usage: {name} " in run(*program, "--help").stdout
    shown = run(*program, "--version")
    assert (shown.returncode, shown.stdout) == (0, f"thinwire {thinwire.__version__}\n")
    for wrong in ((), ("nurse",), ("doctor", "--all"), ("config",)):
        done = run(*program, *wrong)
        assert (done.returncode, done.stdout) == (2, ""), wrong
        assert f"{name}: " in done.stderr
    gone = run(*program, "device-report")
    assert gone.returncode == 2
    instead = "there is no device-report; run python/tests/device_report.py of a clone"
    assert gone.stderr == f"{name}: {instead}\n"


def test_mypy_strict_finds_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", "build/mypy-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_checkers_know_the_keywords_of_each_optimizer(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text("""
import thinwire, torch
p = [torch.zeros(1)]
thinwire.OnebitAdam(p, 1e-3, (0.9, 0.999), weight_decay=0.1, freeze_step="auto")
thinwire.OnebitAdam(p, None, lr=torch.tensor(0.1), warmup_bits=8)
thinwire.AdamW(p, lr="0.1")
thinwire.AdamW(p, freeze_step=3)
""")
    options = ("--config-file", "", "--cache-dir", "build/mypy-cache")
    done = run(sys.executable, "-m", "mypy", *options, tmp_path / "use.py")
    found = re.findall(r"use.py:(\d+): error: (.*)", done.stdout)
    assert [line for line, _ in found] == ["6", "7"], done.stdout
    assert '"lr"' in found[0][1] and '"freeze_step"' in found[1][1]


DESCRIBED = ("--ranks", "2", "--link-gbps", "0.1")


def output(*arguments: str, code: int = 0) -> str:
    return said_by("-m", "thinwire", *arguments, code=code)


def plan(*flags: str, code: int = 0) -> str:
    return output("plan", "--params", "300001", *flags, code=code)


@pytest.mark.quick
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_results_that_cannot_be_written_are_an_error() -> None:
    command = [sys.executable, "-m", "thinwire", "plan", "--params", "3001", *DESCRIBED]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "python -m thinwire: the results could not be written to stdout: No space left"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.quick
def test_a_model_on_a_device_is_planned_with_its_way_through_the_host() -> None:
    (line,) = [
        line
        for line in plan(*DESCRIBED, "--dtype", "bf16", "--threads", "0").splitlines()
        if line.startswith("a model on a device: ")
    ]
    found = re.search(r"costs ([0-9.e+-]+) ms per step .* at ([0-9.]+) GB/s", line)
    assert found and line.endswith("copies to a device were not measured")
    wanted = 300001 * 28.5 / float(found[2]) * 1e-6
    assert float(found[1]) == pytest.approx(wanted, rel=0.02)
    assert "a model on a device" not in plan(*DESCRIBED)


def plan_of_a_rank() -> tuple[str, str]:
    return plan(), plan(*DESCRIBED, code=2)


def test_ranks_of_a_process_group_measure_their_network() -> None:
    (printed, refused), second = ranks.results(2, __file__, "plan_of_a_rank")
    assert printed.startswith("without --forward-ms")
    assert "measured: 2 ranks; link of each" in printed
    assert printed.splitlines()[-1].startswith("fastest: ")
    assert second[0] == ""
    assert "under a launcher the network is measured" in refused


@pytest.mark.quick
def test_a_configuration_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"steps_per_print": 10}')
    assert "supported  steps_per_print = 10\n" in output("config", "check", str(file))
    file.write_text('{"steps_per_print": 0}')
    assert "1 rejected" in output("config", "check", str(file), code=1)
    named = os.fsencode(tmp_path) + b"/\xff.json"
    with open(named, "wb") as bytes_of:
        bytes_of.write(b'{"\xff": 1}')
    command = [sys.executable, "-m", "thinwire", "config", "check", named]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    line = re.escape(b"python -m thinwire: " + named) + b": not JSON: .*\xff.*\n"
    assert re.fullmatch(line, done.stderr)
