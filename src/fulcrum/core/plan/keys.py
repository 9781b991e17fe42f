"""The keys of issuers, silos and regions: private keys in files, public keys as plans carry them.

Silos and issuers sign with Ed25519 keys, written as bare base64; releases are sealed to the X25519 key of a region,
written as "x25519:" and base64.
"""

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.plan.plan_file import key_bytes
from fulcrum.errors import ExchangeError, FulcrumError, SignatureError, check_known
from fulcrum.primitives import primitives

KINDS = ("signing", "sealing")
"""The uses of a key: to sign (Ed25519), or to open releases sealed to the key's owner (X25519)."""

_SEALING = "x25519:"  # before the text of a sealing key: 32 bytes of one kind must not pass for a key of the other


def private_key(path: str | Path, kind: str = "signing", error: type[FulcrumError] = SignatureError) -> Any:
    """Reads a private key of one of `KINDS` from a file, or raises `error`; the file has no password."""
    wanted = private_class(kind)
    try:
        private = signing_suite().serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    except OSError as failure:
        raise error("file.unreadable", file=path, reason=failure.strerror) from None
    except (ValueError, TypeError):
        private = None
    if not isinstance(private, wanted):
        name, option = ("an Ed25519 key", "") if kind == "signing" else ("an X25519 key", " --kind sealing")
        expected = "a private key" if private is None else name
        raise error("key.private-invalid", file=path, expected=expected, option=option)
    return private


def public_text(private: Any) -> str:
    """Returns the public half of a private key in the text form of plans."""
    x25519 = signing_suite().x25519
    text = base64.b64encode(private.public_key().public_bytes_raw()).decode()
    return _SEALING + text if isinstance(private, x25519.X25519PrivateKey) else text


def public_key(text: str, kind: str = "signing") -> Any:
    """Returns the public key of a text in the form that `new_key` returns.

    Raises:
        SignatureError: The text is no key of the kind, or not the only accepted spelling of a key (`key_bytes`).
    """
    suite = signing_suite()
    public_class, start = (
        (suite.ed25519.Ed25519PublicKey, "") if kind == "signing" else (suite.x25519.X25519PublicKey, _SEALING)
    )
    key = key_bytes(text.removeprefix(start)) if text.startswith(start) else None
    try:
        return public_class.from_public_bytes(key or b"")
    except ValueError:
        raise SignatureError("key.public-invalid", text=text[:15], kind=kind) from None


def plan_key(plan: PlanData, name: str, kind: str) -> Any:
    """Returns the plan's public key of a silo ("signing") or of a region ("sealing"), or raises `ExchangeError`."""
    role = "silo" if kind == "signing" else plan.federation.innermost.name
    if name not in plan.keys:
        raise ExchangeError("plan.key-missing", role=role, name=name)
    try:
        return public_key(plan.keys[name], kind)
    except SignatureError as error:
        raise ExchangeError("plan.key-invalid", role=role, name=name, reason=str(error)) from None


def load_private_key(plan: PlanData, name: str, path: str | Path, kind: str) -> Any:
    """Reads a private key and checks that the plan carries the public half under the name.

    Raises:
        ExchangeError: The plan has no key of the name, the file is no key, or the key is not the plan's.
    """
    plan_key(plan, name, kind)
    private = private_key(path, kind, error=ExchangeError)
    if public_text(private) != plan.keys[name]:
        raise ExchangeError("key.not-of-plan", file=path, name=name)
    return private


def private_class(kind: str) -> Any:
    """Returns the class of private keys of one of `KINDS`."""
    check_known("kind of key", kind, KINDS)
    suite = signing_suite()
    return suite.ed25519.Ed25519PrivateKey if kind == "signing" else suite.x25519.X25519PrivateKey


def signing_suite() -> SimpleNamespace:
    """Returns the cryptographic primitives of signatures."""
    return primitives("signing needs")
