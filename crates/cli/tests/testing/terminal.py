"""Runs a program under a pseudo-terminal and types into it.

usage: terminal.py STEPS PROGRAM ARGUMENT...
STEPS is JSON: pairs of a text that has to appear, and of what is typed then. A text that is empty stands for half a second. What the
terminal showed goes to standard output. Exit status 1 where a text does not appear within 60 seconds, or the program does not end well.
"""

import json
import os
import pty
import select
import sys
import time


def main():
    steps, command = json.loads(sys.argv[1]), sys.argv[2:]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(command[0], command)
    shown, looked = b"", 0

    def read(seconds):
        nonlocal shown
        if select.select([terminal], [], [], seconds)[0]:
            try:
                part = os.read(terminal, 65536)
            except OSError:
                return False
            shown += part
            return bool(part)
        return True

    missing = None
    for wanted, typed in steps:
        if not wanted:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                read(0.05)
        until = time.monotonic() + 60
        while wanted.encode() not in shown[looked:]:
            if time.monotonic() > until or not read(0.2):
                missing = wanted
                break
        if missing is not None:
            break
        looked = max(looked, shown.find(wanted.encode(), looked) + len(wanted.encode()))
        os.write(terminal, typed.encode())
    ended, until = missing is not None, time.monotonic() + 20
    while not ended and time.monotonic() < until:
        ended = not read(0.2)
    if not ended:
        missing = "the end of the program"
    sys.stdout.buffer.write(shown)
    sys.stdout.flush()
    if missing is not None:
        os.kill(child, 9)
        os.waitpid(child, 0)
        sys.exit(f"{missing!r} did not appear")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


main()
