"""Compares callers that wait in a queue with callers that poll, and writes docs/waiting.md."""

import argparse
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import record, waiting, waiting_page
from bench.charts import Charts
from support import binaries
from support.binaries import Binary
from support.server import REPOSITORY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short version, in half a minute")
    parser.add_argument("--server", help="the server to measure on (default: as for `make test`)")
    options = parser.parse_args()
    binary = Binary.at(options.server) if options.server else binaries.chosen()
    size = waiting.QUICK if options.quick else waiting.FULL
    folder = REPOSITORY / "target" / "bench"
    server = f"{binary.name} on {os.cpu_count()} CPUs"
    print(f"measuring {server}", flush=True)
    load_average, *_ = os.getloadavg()

    results = waiting.measure(binary, size)
    Charts(folder / "charts", server).draw_waiting(results)
    page, chart = folder / "waiting.md", folder / "charts/waiting.svg"
    page.write_text(waiting_page.write(server, size, results, load_average))
    print(f"written: {page.relative_to(REPOSITORY)}")
    if not options.quick:
        record.write(record.WaitingRun(server, load_average, size, results), record.FOLDER)
        shutil.copy(page, REPOSITORY / "docs")
        shutil.copy(chart, REPOSITORY / "docs/charts")
        print("and copied to docs/")


if __name__ == "__main__":
    main()
