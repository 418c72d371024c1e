"""Reads CSV and Parquet exports by Python's csv, DuckDB, pyarrow and LibreOffice, and compares them with NDJSON.

usage: compare.py FOLDER. It has forms.json, a list of forms, and for each form: ID.ndjson, ID.csv, ID.excel.csv, ID.raw.csv and
ID.parquet. What a table has to contain is derived here from NDJSON, independently of the gateway.
"""

import csv
import datetime
import json
import math
import pathlib
import re
import subprocess
import sys

import duckdb
import pyarrow.parquet

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
FACTS = ["id", "status", "created_at", "updated_at"]
CHOICES = ("select", "radio", "checkbox")
TYPED = ("number", "date", "time", "file", *CHOICES)

csv.field_size_limit(2**31 - 1)


def parse(kind, entries, text):
    """What the answers to a field are, in the type of the field."""
    if kind == "file":
        keys = ("name", "url", "mime_type", "size")
        return [{key: file[key] for key in keys} for entry in entries for file in entry["files"]]
    if kind in CHOICES:
        return [line for line in text.replace("\r\n", "\n").split("\n") if line]
    if kind == "number" and NUMBER.fullmatch(text):
        return float(text) if math.isfinite(float(text)) else None
    if kind == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        try:
            return datetime.date.fromisoformat(text)
        except ValueError:
            return None
    if kind == "time" and (shown := re.fullmatch(r"(([01]\d|2[0-3]):[0-5]\d) (CET|CEST)", text)):
        return datetime.time.fromisoformat(shown[1])
    return None


def table_of(form, rows):
    """The names, types and rows of the columns of a form."""
    names = {}
    for element in form["elements"]:
        names[element["gid"]] = (element["heading"], element["type"], element["typed"])
    table = []
    for row in rows:
        if row.get("deleted"):
            table.append({"id": row["id"], "deleted": True})
            continue
        cells = {fact: row[fact] for fact in FACTS}
        for gid, (name, kind, typed) in names.items():
            entries = [entry for entry in row["allElements"] if entry["gid"] == gid]
            text = "\n".join(entry["value"] for entry in entries)
            text = text if len(entries) < 2 or text.strip("\n") else ""
            cells[name] = text
            if kind in TYPED:
                cells[typed] = parse(kind, entries, text)
        table.append(cells)
    return names, table


def guarded(text, kind):
    unsafe = text[:1] in tuple("=+-@\t\r") and kind != "number" and not NUMBER.fullmatch(text)
    return "'" + text if unsafe else text


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file, strict=True))


def compare_csv(folder, form, names, table):
    kinds = [None] * 4 + [kind for _, kind, _ in names.values()]
    heading = FACTS + [name for name, _, _ in names.values()]
    deleted = form["since"]
    raw = [heading + ["deleted"] * deleted]
    for row in table:
        gone = ["true" if row.get("deleted") else "false"] * deleted
        raw.append([row.get(name, "") for name in heading] + gone)
    safe = [[guarded(name, None) for name in raw[0]]]
    safe += [[guarded(cell, kind) for cell, kind in zip(row, kinds + [None])] for row in raw[1:]]
    for name, expected in (("csv", safe), ("raw.csv", raw)):
        found = read_csv(folder / f"{form['file']}.{name}")
        assert found == expected, first_difference(found, expected)
    plain, excel = ((folder / f"{form['file']}.{name}").read_bytes() for name in ("csv", "excel.csv"))
    assert excel == b"\xef\xbb\xbf" + plain, "the mark is all that Excel needs"
    for line in csv_lines(plain.decode()):
        assert line.endswith("\r\n"), line[-20:]
    return safe


def csv_lines(text):
    """The records of a file, with their ends."""
    start, quoted = 0, False
    for at, character in enumerate(text):
        quoted ^= character == '"'
        if character == "\n" and not quoted:
            yield text[start : at + 1]
            start = at + 1
    assert start == len(text), "the last record has an end"


def first_difference(found, expected):
    for number, (one, other) in enumerate(zip(found, expected)):
        if one != other:
            pairs = one.items() if isinstance(one, dict) else enumerate(one)
            return [(number, key, cell, other[key]) for key, cell in pairs if cell != other[key]][:3]
    return f"{len(found)} rows, not {len(expected)}"


def instant(text):
    return text and datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def compare_parquet(folder, form, names, table):
    path = folder / f"{form['file']}.parquet"
    columns = list(FACTS)
    for name, kind, typed in names.values():
        columns += [name, typed] if kind in TYPED else [name]
    columns += ["deleted"] * form["since"]
    expected = []
    for row in table:
        cells = {column: row.get(column) for column in columns}
        cells |= {fact: instant(cells[fact]) for fact in FACTS[2:]}
        if form["since"]:
            cells["deleted"] = row.get("deleted", False)
        expected.append(cells)

    file = pyarrow.parquet.ParquetFile(path)
    read = file.read()
    assert read.column_names == columns, (read.column_names, columns)
    found = read.to_pylist()
    assert found == expected, first_difference(found, expected)
    metadata = file.metadata.metadata
    assert metadata[b"formgate.cursor"].decode() == form["cursor"], metadata
    assert metadata[b"formgate.rows"].decode() == str(len(table)), metadata
    assert file.metadata.num_row_groups == form["groups"], file.metadata
    compressions = {
        file.metadata.row_group(group).column(column).compression
        for group in range(file.metadata.num_row_groups)
        for column in range(file.metadata.num_columns)
    }
    assert compressions <= {"ZSTD"}, compressions

    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    query = database.execute("SELECT * FROM read_parquet(?)", [str(path)])
    described = [column[0] for column in query.description]
    assert described == columns, described
    found = [dict(zip(columns, row)) for row in query.fetchall()]
    assert found == expected, first_difference(found, expected)
    keys = database.execute("SELECT decode(key), decode(value) FROM parquet_kv_metadata(?)", [str(path)]).fetchall()
    assert ("formgate.cursor", form["cursor"]) in keys, keys


def in_calc(folder, path, import_options):
    """The cells that LibreOffice Calc has when it has imported a file."""
    text = "Text - txt - csv (StarCalc):44,34,76,1"
    command = ["soffice", f"-env:UserInstallation=file://{folder}/profile", "--headless", f"--infilter={text}{import_options}"]
    command += ["--convert-to", f"csv:{text},,0,false,true", "--outdir", str(folder / "calc"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return read_csv(folder / "calc" / path.name)


def line_ends(rows):
    """Rows with the line ends that Calc has in cells. It takes both characters for one end, in either order."""
    return [[re.sub("\r\n?|\n\r", "\n", cell) for cell in row] for row in rows]


def compare_calc(folder, form, safe):
    width = len(safe[0])
    as_text = "," + "/".join(f"{column}/2" for column in range(1, width + 1))
    found = line_ends(in_calc(folder, folder / f"{form['file']}.excel.csv", as_text))
    expected = line_ends(safe)
    assert found == expected, first_difference(found, expected)
    # As it opens without being asked: nothing is calculated, whereas the raw file would be.
    opened = in_calc(folder, folder / f"{form['file']}.csv", "")
    at = [(row, column) for row, cells in enumerate(safe) for column, cell in enumerate(cells) if cell == "'=1+1"]
    assert at and all(opened[row][column] == "'=1+1" for row, column in at), at
    raw = in_calc(folder, folder / f"{form['file']}.raw.csv", "")
    assert all(raw[row][column] == "2" for row, column in at), "Calc calculates what is not marked"


def main(folder):
    for form in json.loads((folder / "forms.json").read_text()):
        lines = (folder / f"{form['file']}.ndjson").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        end = rows.pop()
        assert end["rows"] == len(rows) == form["rows"], (end, form["rows"])
        names, table = table_of(form, rows)
        safe = compare_csv(folder, form, names, table)
        compare_parquet(folder, form, names, table)
        if form["calc"]:
            compare_calc(folder, form, safe)
        print(form["file"], len(table), len(names))


main(pathlib.Path(sys.argv[1]))
