#!/usr/bin/env python3
"""Checks a program or library for macOS as far as that goes without macOS.

Refused are another processor than that asked for, libraries that not every macOS has, symbols of no named library, and a
signature that does not fit the bytes: Apple's processors start no program without one.

Usage: macho_check.py FILE arm64|x86_64 [--library]          --library: symbols of the program that loads it may lack a library"""

import hashlib
import pathlib
import struct
import sys

PROCESSORS = {"arm64": 0x0100000C, "x86_64": 0x01000007}
# The program's own folder and the system's; the latter are there on every macOS.
FOLDERS = ("/usr/lib/lib", "/System/Library/Frameworks/")
DYNAMIC_LOOKUP = 0xFE


def load_commands(data):
    """Yields the number of each load command with its bytes."""
    count, at = struct.unpack_from("<I", data, 16)[0], 32
    for _ in range(count):
        command, length = struct.unpack_from("<II", data, at)
        yield command, data[at : at + length]
        at += length


def string_at(data, offset):
    return data[offset : data.index(b"\0", offset)].decode()


def undefined_symbols(data, table):
    """Returns the name and the number of the library of every symbol that another file defines."""
    symbols, count, strings = struct.unpack_from("<III", table, 8)
    found = []
    for at in range(symbols, symbols + 16 * count, 16):
        name, kind, _, description, _ = struct.unpack_from("<IBBHQ", data, at)
        # N_STAB symbols are of debuggers; N_TYPE is N_UNDF without a value for what another file defines.
        if not kind & 0xE0 and kind & 0x0E == 0:
            found.append((string_at(data, strings + name), description >> 8))
    return found


def broken_pages(data, place):
    """Returns how many pages the signature has, and how many of them have other bytes than it says."""
    offset = struct.unpack_from("<I", place, 8)[0]
    magic, _, count = struct.unpack_from(">III", data, offset)
    assert magic == 0xFADE0CC0, "no signature where the file names one"
    for index in range(count):
        kind, inner = struct.unpack_from(">II", data, offset + 12 + 8 * index)
        if kind == 0:
            break
    directory = offset + inner
    magic, _, _, _, hashes, _, _, pages, limit = struct.unpack_from(">9I", data, directory)
    size, kind, _, shift = struct.unpack_from(">4B", data, directory + 36)
    assert (magic, kind, size) == (0xFADE0C02, 2, 32), "a signature by other sums than SHA-256"
    broken = 0
    for page in range(pages):
        end = min((page + 1) << shift, limit)
        wanted = data[directory + hashes + size * page :][:size]
        broken += hashlib.sha256(data[page << shift : end]).digest() != wanted
    return pages, broken


def main():
    file, processor, library = sys.argv[1], sys.argv[2], "--library" in sys.argv[3:]
    data = pathlib.Path(file).read_bytes()
    magic, found = struct.unpack_from("<II", data)
    if magic != 0xFEEDFACF or found != PROCESSORS[processor]:
        sys.exit(f"{file}: no file for macOS on {processor}")
    libraries, oldest, symbols, signature = [], None, [], None
    for number, command in load_commands(data):
        if number & 0x7FFFFFFF in (0x0C, 0x18):
            libraries.append(string_at(command, struct.unpack_from("<I", command, 8)[0]))
        elif number in (0x32, 0x24):
            version = struct.unpack_from("<I", command, 12 if number == 0x32 else 8)[0]
            oldest = f"{version >> 16}.{version >> 8 & 255}"
        elif number == 0x02:
            symbols = undefined_symbols(data, command)
        elif number == 0x1D:
            signature = broken_pages(data, command)
    if foreign := [name for name in libraries if not name.startswith(FOLDERS)]:
        sys.exit(f"{file}: needs libraries that macOS lacks: {', '.join(foreign)}")
    nowhere = [name for name, ordinal in symbols if ordinal == DYNAMIC_LOOKUP and not (library and name.startswith("_Py"))]
    if nowhere:
        sys.exit(f"{file}: {len(nowhere)} symbols of no library: {', '.join(nowhere[:5])}")
    if processor == "arm64" and not signature:
        sys.exit(f"{file}: not signed, so it does not start")
    if signature and signature[1]:
        sys.exit(f"{file}: the signature does not fit {signature[1]} of {signature[0]} pages, so it does not start")
    signed = f"signed ({signature[0]} pages)" if signature else "not signed"
    names = ", ".join(name.rsplit("/", 1)[1] for name in libraries)
    print(f"for macOS {oldest} or later on {processor}, {signed}, {len(symbols)} symbols of {names}")


main()
