"""Small C programs that measure llama.cpp, built beside its libraries."""

import pathlib
import subprocess

SCRIPTS = pathlib.Path(__file__).resolve().parent


def build_peer(name, source, build, folder):
    """The program of scripts/NAME.c, in `folder`: `source` is the source of llama.cpp, `build` where it was built."""
    program = folder / name
    libraries = [f"-L{build / place}" for place in ("src", "ggml/src", "bin")]
    names = ["llama", "ggml", "ggml-cpu", "ggml-base", "stdc++", "m", "gomp", "pthread"]
    command = ["cc", "-O2", "-o", program, SCRIPTS / f"{name}.c", f"-I{source / 'include'}", f"-I{source / 'ggml/include'}"]
    subprocess.run([*command, *libraries, f"-Wl,-rpath,{build / 'bin'}", *(f"-l{name}" for name in names)], check=True)
    return program
