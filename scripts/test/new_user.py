"""The steps of scripts/test/new-user, which says what they are."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import new_user_documents as documents
import small_hub

# Lines of an output that are shown, and characters of a line.
SHOWN_LINES, SHOWN_WIDTH = 26, 150
LIMIT_S = 600
USER = 1000
QUESTION = "What is the pass key for garden gate? The pass key for garden gate is"


class Machine:
    """A clean root, or where there is none an empty HOME; commands run there as a new user."""

    def __init__(self, root):
        self.root = pathlib.Path(root) if root else None
        self.bare = None if root else tempfile.TemporaryDirectory()
        self.home = self.root / "home/user" if root else pathlib.Path(self.bare.name)
        self.inner_home = "/home/user" if root else str(self.home)
        self.home.mkdir(parents=True, exist_ok=True)
        self.environment = {"HOME": self.inner_home, "PATH": f"{self.inner_home}/riffle:/usr/bin:/bin", "LANG": "C.UTF-8"}

    def own(self):
        """Gives what was put into HOME to the user."""
        if self.root:
            subprocess.run(["chown", "-R", f"{USER}:{USER}", self.home], check=True)

    def words(self, command):
        clean = ["env", "-i", *(f"{name}={value}" for name, value in self.environment.items())]
        inside = [*clean, "bash", "-c", f"cd; {command}"]
        if not self.root:
            return inside
        enter = f'mount -t proc proc "{self.root}/proc"; exec chroot --userspec={USER}:{USER} "{self.root}" "$@"'
        return ["unshare", "--mount", "bash", "-c", enter, "bash", *inside]

    def run(self, command):
        """Exit status, output of both kinds, seconds."""
        start = time.monotonic()
        done = subprocess.run(
            self.words(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S
        )
        return done.returncode, done.stdout.decode(errors="replace"), time.monotonic() - start


class Player:
    """Does one step after the other, and ends everything at the first that lacks something."""

    def __init__(self, machine):
        self.machine = machine
        self.times = []

    def step(self, title, command, expected=(), status=0, absent=()):
        print(f"\n=== {title}\n$ {command}", flush=True)
        found, output, seconds = self.machine.run(command)
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith("reading ")]
        for line in lines[:SHOWN_LINES]:
            print(line if len(line) <= SHOWN_WIDTH else f"{line[:SHOWN_WIDTH]}…")
        if len(lines) > SHOWN_LINES:
            print(f"… {len(lines) - SHOWN_LINES} more lines")
        missing = [part for part in expected if not re.search(part, output)]
        unwanted = [part for part in absent if re.search(part, output)]
        problem = None
        if found != status:
            problem = f"exit status {found}, expected {status}"
        elif missing:
            problem = f"no {missing[0]!r} in the output"
        elif unwanted:
            problem = f"{unwanted[0]!r} in the output"
        if problem:
            print(output[-4000:])
            raise SystemExit(f"new-user: FAILED at \"{title}\": {problem}; the command was: {command}")
        print(f"--- ok, {seconds:.1f} s", flush=True)
        self.times.append((seconds, title))
        return output

    def skip(self, title, why):
        print(f"\n=== {title}\nskipped: {why}", flush=True)

    def summary(self):
        print("\nseconds  step")
        for seconds, title in self.times:
            print(f"{seconds:7.1f}  {title}")


def hub(model):
    """A hub with the model that is pulled, and the model's name there."""
    shipped = pathlib.Path("fixtures/model")
    if model:
        path = pathlib.Path(model)
        content = {"smollm2-135m-instruct-Q4_1.gguf": path.read_bytes(), "README.md": b"SmolLM2"}
        return small_hub.start({"local/smollm2": content}), "local/smollm2"
    files = {path.name: path.read_bytes() for path in shipped.iterdir() if path.is_file()}
    return small_hub.start({"local/shipped": files}), "local/shipped"


def book_of_ruth(tree):
    """Chapters of The Book of Ruth, King James Version, from Debian's bible-kjv-text."""
    command = [tree / "usr/bin/bible", "-p", tree / "usr/lib", "-f", "Ruth1:1-4:22"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    chapters = {}
    for line in text.splitlines():
        verse = re.match(r"Ruth?(\d+):(\d+) (.*)", line)
        if verse:
            chapters.setdefault(int(verse[1]), []).append(f"{verse[2]} {verse[3]}")
    if [len(verses) for _, verses in sorted(chapters.items())] != [22, 23, 18, 22]:
        raise SystemExit("new-user: the package bible-kjv-text does not hold the four chapters of Ruth")
    return [(f"Ruth {number}", verses) for number, verses in sorted(chapters.items())]


def install(player, archive, books):
    machine = player.machine
    shutil.copy(archive, machine.home / "riffle.tar.gz")
    documents.pdf(machine.home / "minutes.pdf", documents.MINUTES)
    if books:
        documents.epub(machine.home / "ruth.epub", "The Book of Ruth", book_of_ruth(books))
        long = books / "usr/share/developers-reference/developers-reference.epub"
        shutil.copy(long, machine.home / "developers-reference.epub")
    machine.own()
    unpack = "mkdir riffle && tar xf riffle.tar.gz --strip-components 1 -C riffle && rm riffle.tar.gz"
    player.step("install", f"{unpack} && riffle --version", [r"^riffle \d"])
    player.step("the main job", "riffle", [r"answer    70452", r"right: line 298", r"kept      9\d\.\d%", "Try next:"])
    player.step("help", "riffle -h", ["Use a model:", "  ask ", "  chat ", "  pull "])


def pull(player, endpoint, name):
    player.machine.environment["HF_ENDPOINT"] = endpoint
    player.step("an empty list", "riffle list", ["no models in", "riffle pull"])
    player.step("a model that is not there yet", f"riffle ask --model {name} minutes.pdf 'When?'", [f"riffle pull {name}"], status=1)
    player.step("pull", f"riffle pull {name}", [r"downloaded in", "next: riffle"])
    player.step("pull again", f"riffle pull {name}", ["everything was there"])
    player.step("list", "riffle list", [f"{name}.*complete", r"just now|minutes ago"])
    player.step("plan", f"riffle plan --model {name} --ctx 4096", [r"plan +fits"])


def ask(player, name, real):
    ask = f"riffle ask --verbose --model {name}"
    read = r"\(0 of \d+ tokens were read before\)"
    # Whole blocks of some hundred tokens are kept: the PDF is shorter.
    if real:
        player.step(
            "ask a PDF", f'{ask} minutes.pdf "Where does the summer party take place?"', ["lighthouse", "minutes.pdf, page 3", read]
        )
        player.step(
            "follow-up: a second question later",
            f'{ask} minutes.pdf "How many apple trees will the club plant?"',
            [r"\b12\b", "minutes.pdf, page 2", read],
        )
        questions = r'printf "%s\n" "Where does the summer party take place?" "When?"'
        player.step("follow-up: a conversation", f"{questions} | {ask} minutes.pdf --follow", ["lighthouse", "page 3"])
    else:
        player.step("ask a PDF", f'{ask} minutes.pdf "{QUESTION}" -n 8', [r"\b58213\b", "minutes.pdf, page 1", read])
        player.step("follow-up: a second question later", f'{ask} minutes.pdf "Who?" -n 8', ["tokens were read before"])
    player.step("what is wrong is said", f'{ask} minute.pdf "When?"', ["minute.pdf: no such file; check the path"], status=1)
    chat = r'printf "%s\n" "Hello. Who leads the meeting?" "And who writes the minutes?" /stats'
    player.step("chat", f"{chat} | riffle chat --model {name} minutes.pdf -n 40", [r"tokens"])


def ask_books(player, name, real, books):
    title = "ask an EPUB: The Book of Ruth"
    if not books:
        return player.skip(title, "the Debian package bible-kjv-text cannot be had here")
    question = "What was the name of Naomi's husband?"
    answer = ["Elimelech"] if real else []
    command = f'riffle ask --verbose --model {name} ruth.epub "{question}" -n 40'
    player.step(title, command, [*answer, r'ruth.epub, chapter "Ruth \d"', r"\(0 of"])
    player.step(f"{title}, again", command, [*answer, "from disk"])
    if not real:
        return player.skip("a book that is too long", "it is asked of SmolLM2 alone, whose context is shorter")
    command = f'riffle ask --model {name} developers-reference.epub "Who may upload?"'
    return player.step("a book that is too long", command, ["that the question needs, in", "--whole reads all of it"])


def completions(player):
    place = ".local/share/bash-completion/completions"
    player.step("completions", f"mkdir -p {place} && riffle completions bash > {place}/riffle && wc -l {place}/riffle", [r"^\d{3,}"])
    tried = f'. {place}/riffle; COMP_WORDS=(riffle pu); COMP_CWORD=1; _riffle riffle pu riffle; echo "pu<Tab>: ${{COMPREPLY[*]}}"'
    player.step("a command is completed", tried, [r"pu<Tab>: pull\b"])
    tried = f'. {place}/riffle; COMP_WORDS=(riffle ask --no-); COMP_CWORD=2; _riffle riffle --no- ask; echo "${{COMPREPLY[*]}}"'
    player.step("an option is completed", tried, ["--no-keep"])


def tidy(player, name):
    player.step("remove", f"riffle rm {name}", ["removed", "free again"])
    player.step("the list is empty again", "riffle list", ["no models in"])
    player.step("what is left in HOME", "find . -type f -not -path './riffle/*' | sort", absent=[r"\.incomplete", r"\.gguf"])


def main():
    parser = argparse.ArgumentParser()
    for option in ("--archive", "--root", "--books", "--model"):
        parser.add_argument(option, required=True)
    arguments = parser.parse_args()
    tree = pathlib.Path(arguments.books)
    books = tree if tree.is_dir() else None
    real = bool(arguments.model)
    print("model: SmolLM2-135M-Instruct Q4_1" if real else "model: the shipped one; answers are expected about a pass key alone")
    player = Player(Machine(arguments.root))
    endpoint, name = hub(arguments.model)
    start = time.monotonic()
    install(player, arguments.archive, books)
    pull(player, endpoint, name)
    ask(player, name, real)
    ask_books(player, name, real, books)
    completions(player)
    tidy(player, name)
    player.step("the main job with full attention beside it", "riffle --dense", ["full attention", r"answer +70452 +70452", r"100\.0%"])
    player.summary()
    print(f"{time.monotonic() - start:7.1f}  all steps: ok")


if __name__ == "__main__":
    sys.exit(main())
