"""Installs groups of pyproject.toml into a virtual environment: packages.py VENV GROUP...

The versions are those of requirements.txt. pip installs uv, which installs them. uv does not read
pip's configuration, so pip's index and certificates are passed in uv's environment variables,
unless these are set. An environment that is broken or has another Python is created again.
"""

import ast
import fcntl
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
UV = "0.13.9"

# Options of pip and variables of uv with the same meaning.
VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}

# Fails without pip, which is missing in an environment whose creation was interrupted.
PRINT_PYTHON = "import pip, sys; print(sys.base_prefix, sys.version_info[:3])"


def output(*words: str | Path) -> str:
    """Returns the output of a program, or an empty string if it fails."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def uv_variables(pip_config: str) -> dict[str, str]:
    """Returns uv's variables for the output of `pip config list`."""
    variables = {}
    for section in ("global.", "install.", ":env:."):
        for line in pip_config.splitlines():
            name, _, value = line.partition("=")
            variable = VARIABLES.get(name.removeprefix(section))
            if variable and name.startswith(section):
                words = ast.literal_eval(value).split()
                if variable == "UV_FIND_LINKS":
                    words = [word for word in words if "://" in word or Path(word).exists()]
                variables[variable] = ("," if variable == "UV_FIND_LINKS" else " ").join(words)
    return {name: value for name, value in variables.items() if value}


def create(venv: Path) -> None:
    """Creates the environment, unless it works and has this Python."""
    this_python = f"{sys.base_prefix} {sys.version_info[:3]}\n"
    if output(venv / "bin/python", "-c", PRINT_PYTHON) != this_python:
        python = Path(sys.executable).resolve()
        subprocess.run([python, "-m", "venv", "--clear", venv], check=True)


def install(venv: Path, groups: list[str]) -> None:
    """Installs the groups, from uv's cache if it has all packages."""
    python, uv = venv / "bin/python", venv / "bin/uv"
    if output(uv, "--version").split()[1:2] != [UV]:
        words = ["-m", "pip", "install", "--quiet", f"uv=={UV}"]
        subprocess.run([python, *words], check=True)
    versions = f"requirements{'-litellm' * ('litellm' in groups)}.txt"
    words = [uv, "pip", "install", "--quiet", "--python", python, "--constraint", versions]
    words += [word for group in groups for word in ("--group", group)]
    offline = [*words, "--offline"]
    if subprocess.run(offline, cwd=REPOSITORY, capture_output=True, check=False).returncode:
        environment = uv_variables(output(python, "-m", "pip", "config", "list")) | os.environ
        subprocess.run(words, cwd=REPOSITORY, env=environment, check=True)


def main() -> None:
    venv = Path(sys.argv[1]).absolute()
    # Targets of make may run concurrently.
    with (REPOSITORY / "requirements.txt").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            create(venv)
            install(venv, sys.argv[2:])
        except subprocess.CalledProcessError as error:
            sys.exit(error.returncode)


if __name__ == "__main__":
    main()
