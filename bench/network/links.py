# SPDX-License-Identifier: Apache-2.0
"""Hosts joined by an emulated Ethernet, out of reach of any other network.

Each host is a network namespace. The switch between them is the namespace of this
process, which `alone()` made. Nobody else can see them, nothing in them can reach other
networks, and they vanish with the last process inside.
"""

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
BRIDGE, NETWORK, FIRST_ADDRESS = "bridge0", "10.78.0", 10
LARGEST_PIECE = 32_768  # bytes
GOODPUT = 0.956  # payload's share of a packet of 1500 bytes, without headers and gaps


def alone(command):
    """Returns the command in separate namespaces. It ends with its starter, together
    with all processes that it has started.
    """
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"),
        "--mount-proc",
        *command,
    ]


def run(command):
    done = subprocess.run(
        command.split(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"{command}: {done.stdout.strip()}")


class Links:
    """The hosts. Create them in a process that alone() started. Raises OSError saying
    what failed."""

    def __init__(self, hosts):
        run("mkdir -p /run/netns")
        # Names of namespaces stay inside this mount.
        run("mount -t tmpfs tmpfs /run/netns")
        run("ip link set lo up")
        run(f"ip link add {BRIDGE} type bridge forward_delay 0")
        run(f"ip addr add {NETWORK}.254/24 dev {BRIDGE}")
        run(f"ip link set {BRIDGE} up")
        for host in range(hosts):
            run(f"ip netns add host{host}")
            run(f"ip link add port{host} type veth peer name eth0 netns host{host}")
            run(f"ip link set port{host} master {BRIDGE} up")
            address = f"{NETWORK}.{FIRST_ADDRESS + host}"
            run(f"ip -n host{host} addr add {address}/24 dev eth0")
            # Sockets use this size when they connect. The processor would cut a piece
            # larger than the token bucket into packets.
            run(f"ip -n host{host} link set eth0 gso_max_size {LARGEST_PIECE} up")
            run(f"ip -n host{host} link set lo up")

    def set_rate(self, mbit, hosts):
        """Sets the rate of the sending side of these hosts; None means the machine's
        own speed."""
        for host in hosts:
            if mbit is None:
                run(f"tc -n host{host} qdisc replace dev eth0 root pfifo_fast")
                continue
            # Bytes that may be sent at once before the rate applies: 2.7 ms' worth at
            # 100 Mbit/s, 0.4 ms above. Senders wait, and nothing is dropped.
            burst = max(LARGEST_PIECE + 1000, mbit * 50)
            run(
                f"tc -n host{host} qdisc replace dev eth0 root tbf rate {mbit}mbit "
                f"burst {burst} latency 200ms"
            )

    def sent_bytes(self, host):
        """Returns the bytes that have left this host, including headers."""
        with open("/proc/net/dev") as devices:
            for line in devices:
                name, _, counts = line.partition(":")
                if name.strip() == f"port{host}":
                    return int(counts.split()[0])
        raise OSError(f"no port{host}")


class Place:
    """Ranks on some of the hosts, as many on each."""

    def __init__(self, links, hosts, ranks_per_host=1):
        self.links = links
        self.hosts = hosts
        self.ranks_per_host = ranks_per_host
        self.ranks = len(hosts) * ranks_per_host

    def set_rate(self, mbit):
        self.links.set_rate(mbit, self.hosts)

    def launcher(self):
        """A daemon on each host starts its ranks; none is bound to a core."""
        slots = [f"host{host}:{self.ranks_per_host}" for host in self.hosts]
        return [
            *("mpirun", "--bind-to", "none", "--host", ",".join(slots)),
            *("--mca", "plm_rsh_agent", str(HERE / "on_host")),
            *("--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"),
            *("--mca", "btl_tcp_if_include", f"{NETWORK}.0/24"),
        ]

    def variables(self):
        address = f"{NETWORK}.{FIRST_ADDRESS + self.hosts[0]}"
        return {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": address}
