"""The OpenAPI document: from the table of routes and the tables of options."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kv_cache import __version__
from kv_cache.result.metrics import Json
from kv_cache.web.classes import WebClass
from kv_cache.web.commands import WebCommand

_BODIES = {
    ("POST", "/check"): "Wanted",
    ("POST", "/runs"): "Wanted",
    ("PUT", "/notes/{path}"): "Notes",
    ("POST", "/scenarios"): "DrawnScenario",
    ("POST", "/login"): "Token",
}
_ERROR = {
    "description": "A refusal, with the sentence that the command line would print",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def openapi(
    routes: Sequence[tuple[str, str, Any, str]], commands: Mapping[str, WebCommand]
) -> Json:
    """Return the document of all routes; each command's values as its options say them."""
    paths: dict[str, dict[str, Json]] = {}
    for method, route, _, about in routes:
        path = route.replace(":path}", "}")
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, about)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kv-cache.py serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas(commands)},
    }


def _operation(method: str, path: str, about: str) -> Json:
    operation: dict[str, object] = {
        "summary": about,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{(\w+)\}", path)
        ],
        "responses": {"200": {"description": about}, "4XX": _ERROR, "507": _ERROR},
    }
    if (body := _BODIES.get((method, path))) is not None:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
        operation["requestBody"] = {"required": True, "content": content}
    if path == "/traces":
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _schemas(commands: Mapping[str, WebCommand]) -> Json:
    text = {"type": "string"}
    error = {"type": "object", "properties": {"kind": text, "sentence": text}}
    return {
        "Wanted": {"oneOf": [_wanted(command) for command in commands.values()]},
        "Notes": {"type": "object", "properties": {"label": text, "note": text}},
        "DrawnScenario": {
            "type": "object",
            "required": ["name", "base", "instances"],
            "properties": {"name": text, "base": text, "instances": {"type": "object"}},
        },
        "Token": text,
        "Error": {"type": "object", "properties": {"error": error}},
    }


def _wanted(command: WebCommand) -> Json:
    free = [path for path in command.options if command.class_of(path) is not WebClass.NEVER]
    value = {"oneOf": [{"type": "boolean"}, {"type": "string"},
                       {"type": "array", "items": {"type": "string"}}]}  # fmt: skip
    described = {path: {"description": command.options[path].rule.help, **value} for path in free}
    return {
        "type": "object",
        "required": ["command"],
        "properties": {
            "command": {"const": command.name},
            "values": {
                "type": "object", "properties": described, "additionalProperties": False,
            },
        },
    }  # fmt: skip
