"""Renders the chart in deploy/chart with Helm.

Without options, it writes the manifests for clusters without Helm: ratelimit.yaml and
monitoring.yaml in deploy/. With the name of a release, it prints the manifests of the release.
"""

import argparse
from pathlib import Path

import helm_python as helm

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
HEADER = "# Written by scripts/manifests.py from the chart in deploy/chart: do not edit.\n"


def render(name: str, values: dict) -> dict[str, str]:
    """Returns the manifests that are not empty, by the name of their template."""
    with helm.Chart.load(DEPLOY / "chart") as chart:
        rendered = chart.render(values, name=name)
    files = {Path(path).stem: text.strip("\n") for path, text in sorted(rendered.items())}
    return {file: f"{text}\n" for file, text in files.items() if text}


def write(folder: Path) -> None:
    """Writes the manifests of a release `ratelimit` whose password is in an existing Secret."""
    values = {"valkey": {"existingSecret": "ratelimit-valkey"}, "monitoring": {"enabled": True}}
    parts = render("ratelimit", values)
    (folder / "monitoring.yaml").write_text(HEADER + parts.pop("monitoring"))
    (folder / "ratelimit.yaml").write_text(HEADER + "---\n".join(parts.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEPLOY, help="folder to write to")
    parser.add_argument("--name", help="name of a release to print")
    parser.add_argument("--values", type=Path, action="append", default=[], help="file of values")
    options = parser.parse_args()
    if not options.name:
        write(options.folder)
        return
    values: dict = {}
    for file in options.values:
        values |= helm.values_from_yaml(file.read_text())
    print("---\n".join(render(options.name, values).values()), end="")


if __name__ == "__main__":
    main()
