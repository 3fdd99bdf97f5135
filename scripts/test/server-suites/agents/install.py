"""Installs clients from npm and PyPI, each in a folder of its own, at the versions of versions.json or at the newest."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

VERSIONS = json.loads((pathlib.Path(__file__).parent / "versions.json").read_text())
# Some agents need a newer Node.js than Debian has.
NODE = "24.21.0"
# A registry may offer a version before the packages that it depends on.
EARLIER = 3


def node_folder(suites):
    """The folder of the programs node and npm, which is installed if it is not there."""
    folder = suites / "node"
    if not (folder / "node_modules/.bin/node").exists():
        npm_install(folder, [f"node@{NODE}"], os.environ["PATH"])
    return folder / "node_modules/.bin"


def npm_install(folder, packages, path):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"private": true}')
    command = ["npm", "install", "--no-fund", "--no-audit", "--loglevel=error", *packages]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL)


def npm_newest(folder, packages, path):
    """Installs the newest versions; of a single package an earlier one, if the newest cannot be installed."""
    try:
        return npm_install(folder, packages, path)
    except subprocess.CalledProcessError:
        if len(packages) > 1:
            raise
    listed = subprocess.run(["npm", "view", packages[0], "versions", "--json"], check=True, capture_output=True)
    whole = [version for version in json.loads(listed.stdout) if "-" not in version]
    whole.sort(key=lambda version: [int(part) for part in version.split(".")])
    for version in reversed(whole[-EARLIER - 1 : -1]):
        try:
            return npm_install(folder, [f"{packages[0]}@{version}"], path)
        except subprocess.CalledProcessError:
            print(f"{packages[0]} {version} cannot be installed", file=sys.stderr)
    raise SystemExit(f"no version of {packages[0]} can be installed")


def pip_install(folder, packages):
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", "--upgrade", *packages], check=True)


def install(name, which, suites):
    """The folder of a client and the version of its first package; `which` is "pinned" or "newest"."""
    folder, (kind, packages) = suites / which / name, next(iter(VERSIONS[name].items()))
    ready = folder / "ready"
    if not ready.exists():
        pinned = [f"{package}{'@' if kind == 'npm' else '=='}{version}" for package, version in packages.items()]
        path = f"{node_folder(suites)}:{os.environ['PATH']}"
        if kind == "npm":
            npm_install(folder, pinned, path) if which == "pinned" else npm_newest(folder, list(packages), path)
        else:
            pip_install(folder, pinned if which == "pinned" else list(packages))
        ready.write_text(installed_version(folder, kind, next(iter(packages))))
    return folder, ready.read_text()


def installed_version(folder, kind, package):
    if kind == "npm":
        return json.loads((folder / "node_modules" / package / "package.json").read_text())["version"]
    ask = f"import importlib.metadata as m; print(m.version({package.split('[')[0]!r}))"
    return subprocess.run([folder / "bin/python", "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
