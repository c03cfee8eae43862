"""Bearer tokens: 256 random bits, stored as SHA-256, compared in constant time.

A token has that much entropy that a slow hash would add nothing. The file holds no secret that
could be used; it is still only readable by its owner.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.model.errors import SettingsError
from headrace.model.settings import Settings

__all__ = ["Token", "Tokens", "create_token", "list_tokens", "load_tokens", "revoke_token"]

TOKENS_MAX = 1_000
TOKEN_CHARACTERS_MAX = 256
_PREFIX = "hr_"
_SCOPE = re.compile(r"ingest:(\*|[A-Za-z_][A-Za-z0-9_]*)|query|sql|admin")
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


@dataclass(frozen=True)
class Token:
    """`hash` is the SHA-256 of the token in hexadecimal. The token itself is kept nowhere."""

    name: str
    hash: str
    scopes: tuple[str, ...]

    def allows(self, scope: str) -> bool:
        """`ingest:*` covers every stream; no other scope covers another."""
        return scope in self.scopes or (scope.startswith("ingest:") and "ingest:*" in self.scopes)


class Tokens:
    """All tokens of a project at one moment."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self.tokens = tokens

    def verify(self, secret: str) -> Token | None:
        """The token that was presented; every stored one is compared, whichever fits."""
        presented = hashlib.sha256(secret[: TOKEN_CHARACTERS_MAX + 1].encode()).hexdigest()
        found = None
        for token in self.tokens:
            if hmac.compare_digest(token.hash, presented):
                found = token
        return found


def load_tokens(file: Path) -> Tokens | None:
    """None if there is no file: then no token was ever made. Raises SettingsError if the file
    cannot be read as tokens, without quoting it."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{file} cannot be read as tokens ({type(error).__name__})",
            hint="restore it, or remove it and make new tokens",
        ) from None
    try:
        tokens = tuple(
            Token(str(item["name"]), str(item["hash"]), tuple(str(s) for s in item["scopes"]))
            for item in raw
        )
    except (KeyError, TypeError):
        raise SettingsError(
            f"{file} does not hold a list of tokens",
            hint="restore it, or remove it and make new tokens",
        ) from None
    return Tokens(tokens)


def create_token(settings: Settings, name: str, scopes: list[str]) -> str:
    """Store a new token and return it: the only time it can be seen. A running gateway knows it
    within a second. Raises SettingsError for a wrong or taken name, or an unknown scope."""
    if _NAME.fullmatch(name) is None:
        raise SettingsError(
            f"{name!r} is no token name", hint="1 to 64 letters, digits, or one of _ . @ -"
        )
    if not scopes:
        raise SettingsError("a token needs a scope", hint="for example ingest:* or query")
    for scope in scopes:
        if _SCOPE.fullmatch(scope) is None:
            raise SettingsError(
                f"{scope!r} is no scope", hint="ingest:STREAM, ingest:*, query, sql or admin"
            )
    existing = load_tokens(settings.tokens_file) or Tokens(())
    if any(token.name == name for token in existing.tokens):
        raise SettingsError(f"a token named {name} exists", hint="revoke it first")
    if len(existing.tokens) >= TOKENS_MAX:
        raise SettingsError(f"there are {TOKENS_MAX} tokens already", hint="revoke some")
    secret = _PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    _write(settings.tokens_file, (*existing.tokens, Token(name, digest, tuple(scopes))))
    return secret


def list_tokens(settings: Settings) -> list[Token]:
    """In the order they were made."""
    existing = load_tokens(settings.tokens_file)
    return list(existing.tokens) if existing else []


def revoke_token(settings: Settings, name: str) -> bool:
    """Whether there was one. The file stays when the last token goes: an empty list means that
    nobody is let in, not that everybody is."""
    existing = load_tokens(settings.tokens_file)
    if existing is None:
        return False
    left = tuple(token for token in existing.tokens if token.name != name)
    if len(left) == len(existing.tokens):
        return False
    _write(settings.tokens_file, left)
    return True


def _write(file: Path, tokens: tuple[Token, ...]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        json.dump([asdict(token) for token in tokens], handle, indent=2)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(file)
