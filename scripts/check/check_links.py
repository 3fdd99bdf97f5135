"""Checks that links between the pages of a folder of HTML lead somewhere: files and marks in them. Links to other sites are not followed.

usage: check_links.py FOLDER
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Pages that mdBook makes for itself: paths in the first one are those of the site.
NOT_PAGES = {"404.html", "toc.html"}


class Page(HTMLParser):
    """The marks of a page, and what it links to."""

    def __init__(self, path):
        super().__init__()
        self.marks, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("id"):
            self.marks.add(attributes["id"])
        for name in ("href", "src"):
            if attributes.get(name):
                self.links.append(attributes[name])


def main():
    folder = Path(sys.argv[1])
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html") if path.name not in NOT_PAGES}
    if not pages:
        sys.exit(f"{folder} holds no page")
    broken, links = [], 0
    for path, page in sorted(pages.items()):
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            links += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                broken.append(f"{path.name}: {link} is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].marks:
                broken.append(f"{path.name}: {link}: there is no such mark")
    for line in broken:
        print(line, file=sys.stderr)
    if broken:
        sys.exit(1)
    print(f"{len(pages)} pages, {links} links, none broken")


main()
