#!/usr/bin/env python3
"""Writes lists of the names in macOS's frameworks (.tbd files), by which zig links a program without Apple's SDK.

Zig has such a list for libSystem alone. The names of the others are those that the crates declare; each is bound to its framework as
with the SDK, and a program names only what it uses. A wrong name of a crate would be found by macOS when the program starts.

Usage: macos_stubs.py FOLDER          writes FOLDER/frameworks and FOLDER/libraries"""

import json
import pathlib
import re
import subprocess
import sys

# Crates that declare names of macOS's libraries, and the library of a name by its beginning.
CRATES = ["core-foundation-sys", "objc2-core-foundation", "objc2-io-kit", "objc2", "security-framework-sys", "sysinfo", "iana-time-zone"]
LIBRARIES = {
    "CoreFoundation": ("/System/Library/Frameworks/CoreFoundation.framework/Versions/A/CoreFoundation", r"_*k?CF"),
    "Foundation": ("/System/Library/Frameworks/Foundation.framework/Versions/C/Foundation", r"NS(?!Object$)[A-Z]"),
    "IOKit": ("/System/Library/Frameworks/IOKit.framework/Versions/A/IOKit", r"k?IO[A-Z]"),
    "Security": ("/System/Library/Frameworks/Security.framework/Versions/A/Security", r"k?(Sec|SSL|CMS|Authorization)[A-Z]"),
    "objc": ("/usr/lib/libobjc.A.dylib", r"_*(objc|class|sel|object|method|ivar|protocol|property|imp)_|NSObject$"),
}
DECLARATION = re.compile(r"\b(?:fn|static)\s+(?:mut\s+)?([A-Za-z_]\w*)\s*[(:<]")
STUB = """--- !tapi-tbd
tbd-version: 4
targets: [ x86_64-macos, arm64-macos ]
install-name: '{path}'
exports:
  - targets: [ x86_64-macos, arm64-macos ]
    symbols: [ {symbols} ]
...
"""


def declared_names():
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    folders = [pathlib.Path(p["manifest_path"]).parent for p in metadata["packages"] if p["name"] in CRATES]
    return {name for folder in folders for file in folder.glob("src/**/*.rs") for name in DECLARATION.findall(file.read_text())}


def main():
    folder, names = pathlib.Path(sys.argv[1]), declared_names()
    for library, (path, beginning) in LIBRARIES.items():
        symbols = sorted("_" + name for name in names if re.match(beginning, name))
        file = folder / "libraries" / f"lib{library}.tbd"
        if "Frameworks" in path:
            file = folder / "frameworks" / f"{library}.framework" / f"{library}.tbd"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(STUB.format(path=path, symbols=", ".join(symbols)))


main()
