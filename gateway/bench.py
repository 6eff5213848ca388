"""Measures the gateway beside two services of the same protocol, in one run on one machine: a
service that allows every request without a server, and a service on the crate limitador with its
Redis storage, if it is built. Prints a table, and draws a picture.

The services take turns, since the speed of a machine varies. Decisions per core are by the
processor time of the service and of its server together.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

import matplotlib as mpl  # noqa: E402

from support import binaries, poll  # noqa: E402
from support.ports import reserve_port  # noqa: E402
from support.server import Server  # noqa: E402

mpl.use("svg")
from matplotlib import pyplot as plt  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
NAMES = {
    "ok": "answers OK at once",
    "gateway": "ratelimit-gateway",
    "limitador": "on the crate limitador",
}
COLOURS = {"ok": "#999", "gateway": "#2a6fbb", "limitador": "#c77"}
# The lines of the document between these are replaced.
BEGIN, END = "<!-- written by make bench-gateway -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", type=Path, default=REPOSITORY / "target/gateway.svg")
    parser.add_argument("--document", type=Path, help="a page whose figures are replaced")
    parser.add_argument("--target", type=Path, default=REPOSITORY / "target")
    arguments = parser.parse_args()
    programs = {
        "ok": arguments.target / "release/gateway-bench",
        "gateway": arguments.target / "release/ratelimit-gateway",
        "limitador": arguments.target / "limitador/release/limitador-bench",
    }
    if not programs["limitador"].exists():
        print(f"continues without limitador: {programs.pop('limitador')} is missing")
    measured = Measured(programs, arguments.seconds)
    with ExitStack() as running:
        measured.start(running)
        for _ in range(arguments.rounds):
            for name in programs:
                measured.peak(name)
        half = measured.median("gateway", "rate") / 2
        for _ in range(arguments.rounds):
            for name in ("ok", "gateway"):
                measured.at(name, half)
    table = measured.table(half)
    print(table)
    measured.draw(arguments.picture, half)
    print(f"drawn: {arguments.picture}")
    if document := arguments.document:
        picture = os.path.relpath(arguments.picture, document.parent)
        shown = (
            f"{table}\n\n![Answers a second, decisions a core and p99 of each service]({picture})"
        )
        before, _, rest = document.read_text().partition(BEGIN)
        document.write_text(f"{before}{BEGIN}\n{shown}\n{END}{rest.partition(END)[2]}")
        print(f"written: {document}")


class Measured:
    """Running services, and the measurements of each."""

    def __init__(self, programs: dict[str, Path], seconds: float) -> None:
        self._programs = programs
        self._seconds = seconds
        self._ports: dict[str, int] = {}
        self._pids: dict[str, list[int]] = {}
        self.of: dict[str, dict[str, list[float]]] = {name: {} for name in programs}

    def start(self, running: ExitStack) -> None:
        binary = binaries.chosen()
        with_server = [name for name in self._programs if name != "ok"]
        servers = {name: running.enter_context(Server(binary)) for name in with_server}
        limit = ["RL.POLICYSET", "bench|user", "FIXED", 10**9, "1d", "ALIGNED"]
        servers["gateway"].client().execute_command(*limit)
        addresses = {name: f"redis://127.0.0.1:{server.port}" for name, server in servers.items()}
        for name, program in self._programs.items():
            port = reserve_port(running)
            listen = f"127.0.0.1:{port}"
            http = f"127.0.0.1:{reserve_port(running)}"
            words = {
                "ok": ["ok", listen],
                "gateway": [
                    *("serve", "--grpc", listen, "--http", http, "--server", addresses.get(name)),
                    *("--timeout", "1s", "--drain", "0s"),
                ],
                "limitador": [listen, addresses.get(name)],
            }[name]
            process = subprocess.Popen([program, *words], stderr=subprocess.DEVNULL)
            running.callback(process.wait)
            running.callback(process.terminate)
            self._ports[name] = port
            self._pids[name] = [process.pid, *([servers[name].pid] if name in servers else [])]
            poll.until(lambda name=name: self._answers(name), f"{name} answers", timeout=30)

    def _answers(self, name: str) -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            return self._load(name, seconds=0.2)["failed"] == 0
        return False

    def _load(self, name: str, **options: float) -> dict[str, float]:
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        target = f"http://127.0.0.1:{self._ports[name]}"
        load = subprocess.run(
            [self._programs["ok"], "load", target, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(load.stdout)

    def _add(self, name: str, **figures: float) -> None:
        for figure, value in figures.items():
            self.of[name].setdefault(figure, []).append(value)

    def peak(self, name: str) -> None:
        before = seconds_of(self._pids[name])
        load = self._load(name, seconds=self._seconds)
        after = seconds_of(self._pids[name])
        assert load["failed"] == 0, load
        spent = [end - begin for begin, end in zip(before, after, strict=True)]
        own, server = (1e6 * seconds / load["calls"] for seconds in (spent[0], sum(spent[1:])))
        per_core = load["calls"] / sum(spent)
        self._add(name, rate=load["rate"], per_core=per_core, own_us=own, server_us=server)

    def at(self, name: str, rate: float) -> None:
        load = self._load(name, seconds=self._seconds, rate=rate)
        self._add(name, p50=load["p50_us"] / 1000, p99=load["p99_us"] / 1000)

    def median(self, name: str, figure: str) -> float:
        return statistics.median(self.of[name][figure])

    def table(self, half: float) -> str:
        lines = [
            f"| service | answers a second | decisions a core | p50 | p99 at {half:,.0f}/s |",
            "|---|---|---|---|---|",
        ]
        for name, figures in self.of.items():
            rate, per_core = (self.median(name, one) for one in ("rate", "per_core"))
            p50, p99 = [
                f"{self.median(name, one):.2f} ms" if one in figures else ""
                for one in ("p50", "p99")
            ]
            lines.append(f"| {NAMES[name]} | {rate:,.0f} | {per_core:,.0f} | {p50} | {p99} |")
        ratio = self.median("gateway", "rate") / self.median("ok", "rate")
        more = self.median("gateway", "p99") - self.median("ok", "p99")
        summary = [
            f"The gateway answers {ratio:.2f} of what the first service does (goal: 0.5).",
            f"Its p99 at half of its peak is {more:+.2f} ms beside that (goal: at most +2).",
        ]
        if "limitador" in self.of:
            times = self.median("gateway", "per_core") / self.median("limitador", "per_core")
            summary.append(
                f"It makes {times:.2f} times the decisions a core of limitador (goal: 3)."
            )
        own, server = (self.median("gateway", figure) for figure in ("own_us", "server_us"))
        summary.append(
            f"A decision takes {own:.1f} µs of a core in the gateway "
            f"and {server:.1f} µs in its server."
        )
        return "\n".join([*lines, "", " ".join(summary)])

    def draw(self, picture: Path, half: float) -> None:
        figure, axes = plt.subplots(1, 3, figsize=(9, 1.8))
        shown = {
            "rate": "answers a second",
            "per_core": "decisions a core and second",
            "p99": f"p99 at {half:,.0f} a second, ms",
        }
        for axis, (figure_name, title) in zip(axes, shown.items(), strict=True):
            values = {
                name: self.median(name, figure_name)
                for name, figures in self.of.items()
                if figure_name in figures
            }
            bars = axis.barh(
                [NAMES[name] for name in self.of],
                [values.get(name, 0) for name in self.of],
                color=[COLOURS[name] for name in self.of],
            )
            digits = 2 if figure_name == "p99" else 0
            labels = [f"{values[name]:,.{digits}f}" if name in values else "" for name in self.of]
            axis.bar_label(bars, labels, padding=2, fontsize=8)
            axis.set_title(title, fontsize=9)
            axis.set_xlim(0, max(values.values()) * 1.4)
            axis.invert_yaxis()
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=8)
            if axis is not axes[0]:
                axis.set_yticklabels([])
        figure.tight_layout()
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, metadata={"Date": None})


def seconds_of(pids: list[int]) -> list[float]:
    """Returns the processor time of each process in seconds."""

    def of(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    return [of(pid) for pid in pids]


if __name__ == "__main__":
    main()
