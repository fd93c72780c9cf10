"""The fields of a job's files: read from YAML or JSON, and taken one by one for what each has to be.

Every function raises `ValueError` with a sentence that names the file or the field.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


def read(path: str) -> dict[str, Any]:
    """The fields of a file, which is JSON if its name says so, else YAML; a field without a value isn't there.

    Raises `OSError` where it can't be read, `ValueError` where it is something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path} is not a text file: {problem}") from problem
    fields = _json(path, text) if path.endswith(".json") else _yaml(path, text)
    if not isinstance(fields, dict):
        raise ValueError(f"{path} has to be a mapping of fields")
    return _given(fields)


def fields_of(where: str, value: Any, known: Collection[str]) -> dict[str, Any]:
    """`value` as fields by name, none but those that are known."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}; it has to be a mapping of fields")
    unknown = [str(key) for key in value if key not in known]
    if unknown:
        raise ValueError(f"{where} has unknown fields: {', '.join(unknown)}")
    return value


def text_of(where: str, value: Any) -> str:
    """`value` as text: itself, or a number's."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{where} has {value!r}, which is neither text nor a number; put text in quotes")
    return str(value)


def texts_of(where: str, value: Any) -> list[str]:
    """`value`, a list, as texts."""
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r}; it has to be a list")
    return [text_of(where, each) for each in value]


def count_of(where: str, value: Any) -> int:
    """`value` as a count: 0 or more."""
    digits = str(value).strip()
    if isinstance(value, (bool, float)) or not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{where} is {value!r}; it has to be a whole number, 0 or more")
    return int(digits)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _given(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if value is not None
    }


def _json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as problem:
        raise ValueError(f"{path} is not valid JSON: {problem}") from problem


def _yaml(path: str, text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ValueError(f"{path} is YAML, which needs `pip install pyyaml`; JSON needs nothing") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as problem:  # ValueError: a date that there isn't
        raise ValueError(f"{path} is not valid YAML: {problem}") from problem
