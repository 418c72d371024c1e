"""Compares what documents and comments say of the code with the code.

    python3 tests/maps.py            prints what differs, and exits with 1 if anything does
    python3 tests/maps.py --write    writes the list of rooms in .github/CONTRIBUTING.md first

It needs nothing but Python; tests/deploy runs it.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Pages of the past name code that is gone.
HISTORY = {"benches/NOTEBOOK.md", "deploy/CHANGELOG.md"}

# Names of programs, which a comment may begin with, although tests have types that start them.
PROGRAMS = {"PgBouncer"}

CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\br(#*)\".*?\"\1|\"(?:\\.|[^\"\\])*\"|'(?:\\.[^']*|[^'\\])'", re.DOTALL)
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CAMEL = re.compile(r"(?<![\w`:/.])[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b(?!`)")
faults = []


def expect(condition, fault):
    if not condition:
        faults.append(fault)


def all_files():
    """The paths of all files, without what is built or installed."""
    found = []
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in ("target", "node_modules", "__pycache__", ".git")]
        found += [(Path(folder) / name).relative_to(ROOT).as_posix() for name in names]
    return sorted(found)


class Source:
    """A file of Rust: its code without strings and comments, and its comments by line."""

    def __init__(self, name):
        self.name, text = name, (ROOT / name).read_text()
        self.comments = {}
        self.code = CODE.sub(lambda match: self.keep(text, match), text)
        self.identifiers = set(IDENTIFIER.findall(self.code))

    def keep(self, text, match):
        if match[0].startswith("//"):
            self.comments[text.count("\n", 0, match.start()) + 1] = match[0]
        return re.sub(r"[^\n]", " ", match[0])

    def paragraphs(self):
        """Runs of comment lines without their slashes, each with its first line."""
        run, begin = [], 0
        for line, text in [*sorted(self.comments.items()), (0, "")]:
            words = re.sub(r"^//[/!]?", "", text).strip()
            if run and (line != begin + len(run) or not words):
                yield begin, run
                run = []
            if words:
                begin = begin if run else line
                run.append(words)


def without_blocks(markdown):
    """The text of a page, with empty lines for its code blocks."""
    return re.sub(r"^ *```.*?^ *```", lambda block: re.sub(r"[^\n]", "", block[0]), markdown, flags=re.DOTALL | re.MULTILINE)


def sentence(source):
    """The first sentence of the documentation of a module, as Markdown without links."""
    _, run = next(source.paragraphs())
    text = re.match(r".*?[.](?= |$)|.*", " ".join(run))[0]
    return re.sub(r"\[([^]]+)\](?:\([^)]*\))?", r"\1", text).rstrip(":")


def check_rooms(sources, write):
    """The list of rooms is that of src/lib.rs, with the first sentence of each."""
    modules = re.findall(r"^(?:pub )?mod (\w+);$", sources["src/lib.rs"].code, re.MULTILINE)
    expect(len(modules) > 30, "src/lib.rs: its modules were not found")
    rows = [f"| [{name}](../src/{name}.rs) | {sentence(sources[f'src/{name}.rs'])} |" for name in modules]
    table = "\n".join(["| room | owns |", "| --- | --- |", *rows])
    page = ROOT / ".github/CONTRIBUTING.md"
    before, begin, rest = page.read_text().partition("<!-- rooms -->\n")
    _, end, after = rest.partition("<!-- end of rooms -->\n")
    expect(begin and end, "CONTRIBUTING.md: there is no place for the rooms")
    written = f"{before}{begin}\n{table}\n\n{end}{after}"
    if write and begin and end:
        page.write_text(written)
    expect(page.read_text() == written, "CONTRIBUTING.md: the rooms differ from src; run `python3 tests/maps.py --write`")
    advice = page.read_text().partition("### What to run\n")[2].partition("\n### ")[0]
    listed = set(re.findall(r"\bsrc/(\w+)", advice))
    expect(set(modules) == listed, f"CONTRIBUTING.md, What to run: rooms differ: {sorted(set(modules) ^ listed)}")
    for test in re.findall(r"`([a-z_:]+)::`", advice):
        expect(f"tests/it/{test.replace('::', '/')}.rs" in sources, f"CONTRIBUTING.md, What to run: there is no test {test}")


def check_runbook(sources):
    """The runbook has a section for what each alert names and no other, and a row for each background task."""
    text = (ROOT / "deploy/runbook.md").read_text()
    alerts = set(re.findall(r"runbook_url: deploy/runbook\.md#(\w+)$", (ROOT / "deploy/prometheus/alerts.yml").read_text(), re.MULTILINE))
    sections = {name.lower() for name in re.findall(r"^## (Formgate\w+)$", text, re.MULTILINE)}
    expect(alerts and alerts == sections, f"runbook.md: sections and alerts differ: {sorted(alerts ^ sections)}")
    tasks = set()
    for source in sources.values():
        if source.name.startswith("src/"):
            whole = (ROOT / source.name).read_text().partition("#[cfg(test)]")[0]
            tasks |= {name for name in re.findall(r"\bimpl Task for [^{]*\{.*?const NAME: &'static str = \"(\w+)\"", whole, re.DOTALL)}
    section = text.partition("## FormgateTaskStalled\n")[2].partition("\n## ")[0]
    rows = {task for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for task in re.findall(r"`(\w+)`", row)} - {"task"}
    expect(len(tasks) > 5 and tasks == rows, f"runbook.md, FormgateTaskStalled: tasks differ: {sorted(tasks ^ rows)}")


class Names:
    """What the code defines, and what it brings from other crates."""

    def __init__(self, sources, files):
        self.files, self.modules, self.members = files, {}, {}
        manifest = (ROOT / "Cargo.toml").read_text()
        crates = {name.replace("-", "_") for name in re.findall(r"^([\w-]+) = ", manifest, re.MULTILINE)}
        self.foreign = {"std", "core", "alloc"} | crates
        own = {"crate", "super", "self", "formgate"}
        defined = re.compile(r"\b(?:struct|enum|trait|type|union)\s+([A-Z]\w*)")
        for source in sources.values():
            for name in defined.findall(source.code):
                self.members.setdefault(name, set()).update(source.identifiers)
        for source in sources.values():
            stem = Path(source.name).stem
            self.modules.setdefault(stem, set()).update(source.identifiers)
            for head in re.findall(r"\bimpl\b([^{;]*)\{", source.code):
                for name in set(IDENTIFIER.findall(head)) & self.members.keys():
                    self.members[name] |= source.identifiers
            for use in re.findall(r"\buse ([^;]+);", source.code):
                root = IDENTIFIER.match(use)
                if root and root[0] not in own and root[0] not in self.modules:
                    self.foreign |= set(IDENTIFIER.findall(use))
        self.all = set().union(*(source.identifiers for source in sources.values())) | self.modules.keys()

    def fault(self, path):
        """Why a path such as `Type::function` names nothing."""
        parts = [part for part in re.split("::", path) if part not in ("crate", "self", "super", "Self", "formgate")]
        # A placeholder, or the name of another crate's.
        if not parts or parts[0].isupper() or parts[0] in self.foreign - self.members.keys():
            return None
        missing = [part for part in parts if part not in self.all]
        if missing:
            return f"there is no {missing[0]}"
        if len(parts) == 1:
            return None
        owner, item = parts[-2:]
        if owner in self.members:
            return None if item in self.members[owner] else f"{owner} has no {item}"
        if owner in self.modules and item not in self.modules[owner] | self.modules.keys():
            return f"the module {owner} has no {item}"
        return None

    def has_file(self, path):
        return any(name == path or name.endswith(f"/{path}") for name in self.files)


PATH = re.compile(r"(?<![\w:.$`-])`?((?:[A-Za-z_]\w*::)+[A-Za-z_]\w*)")
FILE = re.compile(r"(?<![\w/.:{}*-])((?:[\w.-]+/)*[\w.-]*\w\.(?:rs|lua|sql|py))\b")


def check_names(sources, files):
    """Comments and pages name code that exists, and types in backticks."""
    names = Names(sources, files)

    def check(where, line, text):
        for found in PATH.finditer(text):
            fault = names.fault(found[1])
            expect(not fault, f"{where}:{line + text.count(chr(10), 0, found.start())}: {found[1]}: {fault}")
        for found in FILE.finditer(text):
            expect(names.has_file(found[1]), f"{where}:{line + text.count(chr(10), 0, found.start())}: there is no {found[1]}")
        plain = re.sub(r"```.*?```|`[^`]*`|\[[^\]]*\]", lambda quoted: re.sub(r"[^\n]", "`", quoted[0]), text, flags=re.DOTALL)
        for found in CAMEL.finditer(plain):
            is_type = found[0] in names.members and found[0] not in PROGRAMS
            expect(not is_type, f"{where}:{line + plain.count(chr(10), 0, found.start())}: the type {found[0]} needs backticks, or a rename spoiled this")

    for source in sources.values():
        for line, run in source.paragraphs():
            check(source.name, line, "\n".join(run))
    for file in files:
        text = (ROOT / file).read_text() if file.endswith((".md", ".sql")) and file not in HISTORY else ""
        if file.endswith(".md"):
            # tests/deploy.py follows the links.
            check(file, 1, re.sub(r"\]\([^)\n]*\)", "]", without_blocks(text)))
        for at, comment in enumerate(text.split("\n") if file.endswith(".sql") else [], 1):
            check(file, at, comment.partition("--")[2])
    # The tests that tests/run starts first.
    listed = (ROOT / "tests/run").read_text().partition("\nlongest=(\n")[2].partition("\n)")[0]
    expect(listed, "tests/run: the longest tests were not found")
    for name in re.findall(r"^ +([\w:]+?)(?:::\{.*\}|::sqlite|::postgres)?$", listed, re.MULTILINE):
        fault = names.fault(name)
        expect(not fault, f"tests/run: {name}: {fault}")


def check_paths(files):
    """Every file that is named by its path from the root exists, in whatever file it is named."""
    mention = re.compile(r"(?<![\w./-])(?:\.\./)*((?:deploy|src|tests|benches)/[\w/.-]*\w\.[a-z]+)\b")
    for file in files:
        if file in HISTORY or file.endswith((".png", ".svg", ".lock")):
            continue
        for path in mention.findall((ROOT / file).read_text(errors="replace")):
            expect(any(name == path or name.endswith(f"/{path}") for name in files), f"{file}: there is no {path}")


def check_pages(sources):
    """Comments and messages of the program name sections of pages that exist."""
    for source in sources.values():
        text = re.sub(r"\\\n\s*|\n\s*//[/!]? ?", " ", (ROOT / source.name).read_text())
        for section, page in re.findall(r"`([^`\n]+)` in ((?:deploy|src|tests|benches)/[\w/.-]*\w\.md)\b", text):
            file = ROOT / page
            is_there = file.exists() and re.search(rf"^#+ {re.escape(section)}$", file.read_text(), re.MULTILINE)
            expect(is_there, f"{source.name}: {page} has no section {section}")


def check(write=False):
    files = all_files()
    sources = {name: Source(name) for name in files if name.endswith(".rs")}
    check_rooms(sources, write)
    check_runbook(sources)
    check_names(sources, files)
    check_paths(files)
    check_pages(sources)
    return faults


if __name__ == "__main__":
    if check("--write" in sys.argv):
        sys.exit("\n".join(faults))
