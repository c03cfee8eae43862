"""`python -m bench.lines [FOLDER]`: lines of code, without comments, docstrings and blank lines."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

__all__ = ["count_lines"]

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_lines(source: str) -> int:
    """A string over several lines counts with all of them unless it is a docstring."""
    with_code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            with_code.update(range(token.start[0], token.end[0] + 1))
    return len(with_code - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, _WITH_DOCSTRING) or ast.get_docstring(node) is None:
            continue
        docstring = node.body[0]
        assert docstring.end_lineno is not None
        found.update(range(docstring.lineno, docstring.end_lineno + 1))
    return found


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "src")
    print(sum(count_lines(file.read_text("utf-8")) for file in folder.rglob("*.py")))


if __name__ == "__main__":
    main()
