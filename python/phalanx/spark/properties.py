"""A file of settings, as Spark reads it: Java's properties.

SESSION-9 (as-spark-reads): what Spark takes for a setting, in a file or on the command line, is one here, with the
same value. In a file those are the rules of `java.util.Properties.load`: `=`, `:` or blanks between key and value,
lines that go on after a backslash, `#` and `!` before comments, and escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLANKS = " \t\f"
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_BETWEEN = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# What Spark takes off both ends of a value (`Utils.trimExceptCRLF`): someone may want a line's end there.
_TRIMMED = "".join(chr(code) for code in range(33) if chr(code) not in "\r\n")


def settings_in(path: str) -> dict[str, str]:
    """The settings in a file of Spark's.

    Raises `OSError` where it can't be read, `ValueError` for an escape that Java refuses, and Spark with it.
    """
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
    found = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        end = 0 if key is None else key.end()
        between = _BETWEEN.match(line, end)
        value = line[end if between is None else between.end() :]
        found[_unescaped(line[:end])] = _unescaped(value).strip(_TRIMMED)
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """The lines with a setting, joined where they go on after an odd number of backslashes."""
    line = ""
    for natural in re.split(r"\r\n?|\n", text):
        piece = natural.lstrip(_BLANKS)
        if not line and piece[:1] in ("", "#", "!"):
            continue
        line += piece
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
        else:
            yield line
            line = ""
    if line:
        yield line


def _unescaped(text: str) -> str:
    def character(escape: re.Match[str]) -> str:
        code, other = escape.groups()
        if other == "u":
            raise ValueError(f"{text!r} has \\u without four hexadecimal digits")
        return chr(int(code, 16)) if code else _ESCAPED.get(other, other)

    # Java writes a character beyond the first 65,536 as two.
    utf16 = _ESCAPE.sub(character, text).encode("utf-16-le", "surrogatepass")
    return utf16.decode("utf-16-le", "surrogatepass")
