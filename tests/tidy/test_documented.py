"""Every setting, error, command and option is in the documents, and nothing else is."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from headrace.cli.app import app
from headrace.model import errors, settings

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
SOURCE = REPOSITORY / "src" / "headrace"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]


def _read(name: str) -> str:
    return (DOCS / "reference" / name).read_text(encoding="utf-8")


def _settings() -> dict[str, object]:
    known: dict[str, object] = {}
    for section in ("gateway", "log", "engine", "store"):
        kind = getattr(settings, f"{section.title()}Settings")
        known.update({f"{section}.{f.name}": f.default for f in dataclasses.fields(kind)})
    return known


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(
        re.findall(r"^\| `(\w+\.\w+)` \| `?([^|`]+)`? \|", _read("settings.md"), re.MULTILINE)
    )
    shown = {name: value.strip().replace(",", "").replace('"', "") for name, value in rows.items()}
    assert shown == {name: str(value) for name, value in _settings().items()}


def _tree(kind: type[errors.HeadraceError]) -> Iterator[type[errors.HeadraceError]]:
    """Of the module of errors alone: whether a module with a private kind of one of them was
    imported depends on the tests that ran before."""
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


def _request_codes() -> set[str]:
    """The second argument wherever the first is an HTTP status of a refusal, or the call is of
    RequestError."""
    codes = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            status, code = node.args[:2]
            refuses = isinstance(status, ast.Constant) and status.value in range(400, 600)
            refuses = refuses or ast.unparse(node.func).endswith("RequestError")
            if refuses and isinstance(code, ast.Constant) and isinstance(code.value, str):
                codes.add(code.value)
    return codes


def test_every_error_code_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9-]+)` \|", _read("errors.md"), re.MULTILINE))
    known = {k.code for k in _tree(errors.HeadraceError)} | _request_codes()
    assert known - documented == set()
    assert documented - known == set()


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = set(re.findall(r"\b(\w+Errors?)\b", errors.__doc__ or ""))
    assert {kind.__name__ for kind in _tree(errors.HeadraceError)} == drawn
    assert drawn - set(errors.__all__) == set()


def _commands() -> dict[str, list[str]]:
    """Every command by its whole name, with its options."""
    found: dict[str, list[str]] = {}

    def walk(prefix: str, command: object) -> None:
        if isinstance(command, TyperGroup):
            context = typer.Context(command)
            for name in command.list_commands(context):
                walk(f"{prefix} {name}", command.get_command(context, name))
            return
        options = [
            name
            for parameter in command.params  # type: ignore[attr-defined]
            for name in parameter.opts
            if name.startswith("--") and name != "--help"
        ]
        found[prefix] = options

    walk("headrace", get_command(app))
    return found


def test_every_command_and_option_is_documented() -> None:
    sections = re.split(r"^## ", _read("cli.md"), flags=re.MULTILINE)
    by_name = {m.group(1): text for text in sections if (m := re.match(r"`(headrace[^`]*)`", text))}
    known = _commands()
    assert set(by_name) == set(known)
    for name, options in known.items():
        shown = set(re.findall(r"`(--[a-z-]+)", by_name[name]))
        shown_outside_json = shown - {"--project", "--url", "--token", "--json"}
        expected = set(options) - {"--project", "--url", "--token", "--json"}
        assert shown_outside_json == expected, name


def _blocks(file: Path, *languages: str) -> list[str]:
    """The fenced blocks of a document that are in one of these languages."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [body for language, body in fenced.findall(file.read_text()) if language in languages]


def _shell_lines() -> list[tuple[str, str]]:
    return [
        (file.name, line.strip())
        for file in PAGES
        for block in _blocks(file, "sh")
        for line in block.splitlines()
    ]


def _commands_of(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, taken apart as a shell does."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    words.whitespace_split = True
    command: list[str] = []
    for word in words:
        if set(word) <= set("|&;"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def test_commands_in_the_documents_exist() -> None:
    known = _commands()
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    checked = 0
    for file, line in _shell_lines():
        for words in _commands_of(line):
            if len(words) < 2:
                continue
            if words[0] == "make":
                assert words[1] in targets, f"{file}: {line}"
                checked += 1
            if words[0].rsplit("/", 1)[-1] == "headrace":
                name = " ".join(["headrace", words[1]])
                if name not in known:
                    name = " ".join(["headrace", *words[1:3]])
                assert name in known, f"{file}: {line}"
                for word in words:
                    if word.startswith("--"):
                        assert word.split("=")[0] in known[name], f"{file}: {line}"
                checked += 1
    assert checked > 10


def test_sql_in_the_documents_is_valid(joins_run: None) -> None:
    """Whole definitions are loaded, views together with the stream they need."""
    from headrace.compile import parse_sql
    from headrace.demo.shop import definitions

    stream = definitions().split("CREATE MATERIALIZED")[0]
    checked = 0
    for file in PAGES:
        for block in _blocks(file, "sql"):
            text = block if "CREATE STREAM" in block else stream + block
            assert parse_sql(text, file.name).streams
            checked += 1
    assert checked >= 5


def test_python_in_the_documents_compiles() -> None:
    blocks = [(file, block) for file in PAGES for block in _blocks(file, "python")]
    assert len(blocks) >= 5
    for file, block in blocks:
        compile(block, str(file), "exec")


def test_python_definitions_in_the_documents_equal_those_in_sql(
    tmp_path: Path, joins_run: None
) -> None:
    from headrace.compile import load_project, parse_sql
    from headrace.demo.shop import definitions

    shop, sliding, tables, joins = _blocks(DOCS / "reference" / "python.md", "python")
    (tmp_path / "headrace.toml").write_text("")
    (tmp_path / "shop.py").write_text(shop)
    assert load_project(tmp_path).views == parse_sql(definitions()).views
    (tmp_path / "shop.py").write_text(sliding)
    assert [view.name for view in load_project(tmp_path).views] == ["averages"]
    (tmp_path / "shop.py").write_text(tables)
    in_sql = [b for b in _blocks(DOCS / "reference" / "sql.md", "sql") if "CREATE TABLE" in b]
    accounts = parse_sql("".join(in_sql)).view("accounts")
    assert load_project(tmp_path).view("accounts") == accounts
    (tmp_path / "shop.py").write_text(joins)
    (in_sql,) = [b for b in in_sql if "JOIN" in b]
    assert load_project(tmp_path, "").views == parse_sql(in_sql).views


def test_json_in_the_documents_is_json() -> None:
    for file in PAGES:
        for block in _blocks(file, "json"):
            json.loads(block)


def test_links_between_documents_lead_somewhere() -> None:
    link = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
    broken = [
        f"{file.relative_to(REPOSITORY)}: {target}"
        for file in PAGES
        for target in link.findall(file.read_text())
        if "://" not in target and not (file.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("name", ["README.md", "docs/ARCHITECTURE.md", "docs/life-of-an-event.md"])
def test_files_named_in_the_documents_exist(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    for path in re.findall(r"`((?:src|tests|docs|bench)/[\w./-]+)`", text):
        assert (REPOSITORY / path).exists(), f"{name} names {path}"
