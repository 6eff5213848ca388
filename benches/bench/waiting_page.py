"""Text of docs/waiting.md, with tables of the measurements."""

from bench import pages
from bench.waiting import APART_MS, FETCH_MS, JOB_MS, PLACES, WORKERS, Size, Waiting


def write(server: str, size: Size, results: Waiting, load: float) -> str:
    """Returns the page."""
    ideal = PLACES / JOB_MS * 1000
    ways = {name: run.way for name, run in results.runs.items()}
    pool_rows = [
        [
            name,
            f"{way.in_use:.0%}",
            f"{way.jobs_per_second:,.0f}",
            f"{PLACES * way.in_use / way.jobs_per_second * 1000:.1f}",
            f"{way.server_us_per_job:.0f}",
        ]
        for name, way in ways.items()
    ]
    turn_rows = [
        [
            name,
            *map(pages.number, (way.median_ms, way.p99_ms, way.longest_ms)),
            f"{way.overtaken:.1%}",
            f"{way.fewest:,.0f}",
            f"{way.most:,.0f}",
            f"{way.jain:.3f}",
        ]
        for name, way in ways.items()
    ]
    releases = [[f"{count:,}", f"{us:.0f}"] for count, us in results.release_us.items()]
    return pages.text(
        "waiting",
        server=server,
        busy=pages.busy_note(load),
        workers=WORKERS,
        places=PLACES,
        job=JOB_MS,
        fetch=FETCH_MS,
        ideal=f"{ideal:,.0f}",
        rounds=size.rounds,
        seconds=f"{size.seconds:g}",
        apart=APART_MS,
        full=pages.table(
            "how a worker waits| pool in use:| jobs a second:| a job took, ms:"
            "| server CPU, microseconds a job:",
            pool_rows,
        ),
        turns=pages.table(
            "how a worker waits| median, ms:| 99th percentile, ms:| longest, ms:| overtaken:"
            "| fewest jobs of a worker:| most:| Jain's index:",
            turn_rows,
        ),
        releases=pages.table("waiting callers:| server CPU, microseconds:", releases),
    )
