"""Who issued a plan: Ed25519 signatures over its digest, beside the plan file; and the keys that plans carry.

A silo that knows the issuer's public key knows that the plan it was handed is the one that was issued. The signature of
plan.json is plan.json.sig. Silos and issuers sign with Ed25519 keys, written as bare base64; releases are sealed to the
X25519 key of a region, written as "x25519:" and base64.
"""

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fulcrum.checks import Check
from fulcrum.core.plan.plan_file import PlanFile, key_bytes
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.plan.verified_plan import VerifiedPlan, check_verified, verified
from fulcrum.core.store.durable_files import sync_file, write_whole
from fulcrum.errors import PlanError, SignatureError, check_known
from fulcrum.parsing import json_of
from fulcrum.primitives import Primitives, primitives

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = "fulcrum.signature/1"

KINDS = ("signing", "sealing")
"""What a key is for: to sign (Ed25519), or to open what is sealed to its owner (X25519)."""

_SEALING = "x25519:"  # before the public text of a sealing key, so that neither kind is taken for the other


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a signature file holds; key and signature in base64."""

    format: str
    plan_digest: str
    public_key: str
    signature: str


def new_key(path: str | Path, kind: str = "signing") -> str:
    """Writes a fresh private key for its owner's eyes alone, and its public half beside it; returns the latter.

    Args:
        path: Where the private key goes; the public one is `path` with .pub added.
        kind: One of `KINDS`.
    """
    private = _private_class(kind).generate()
    serialization = _suite().serialization
    data = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    target = Path(path)
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SignatureError(f"{path} exists. A key is never overwritten: choose another name") from None
    except OSError as error:
        raise SignatureError(f"{path} cannot be written: {error.strerror}") from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        sync_file(file.fileno())
    public = public_text(private)
    write_whole(target.with_name(target.name + ".pub"), public.encode() + b"\n")
    return public


def private_key(path: str | Path, kind: str = "signing") -> Any:
    """Reads a private key of one of `KINDS` from its file."""
    wanted = _private_class(kind)
    serialization = _suite().serialization
    try:
        private = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    except OSError as error:
        raise SignatureError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        private = None
    if not isinstance(private, wanted):
        name, option = ("an Ed25519", "") if kind == "signing" else ("an X25519", " --kind sealing")
        what = "a private key" if private is None else f"{name} key"
        raise SignatureError(f"{path} is not {what}. Make one with: fulcrum keygen{option}")
    return private


def public_text(private: Any) -> str:
    """Returns the public half of a private key as plans carry it."""
    x25519 = _suite().x25519
    text = base64.b64encode(private.public_key().public_bytes_raw()).decode()
    return _SEALING + text if isinstance(private, x25519.X25519PrivateKey) else text


def public_key(text: str, kind: str = "signing") -> Any:
    """Returns the public key of one of `KINDS` that a text as `new_key` returns it stands for."""
    suite = _suite()
    made, start = (
        (suite.ed25519.Ed25519PublicKey, "") if kind == "signing" else (suite.x25519.X25519PublicKey, _SEALING)
    )
    refusal = SignatureError(f"{text[:15]}.. is not a public key for {kind}. Make one with: fulcrum keygen")
    key = key_bytes(text.removeprefix(start)) if text.startswith(start) else None
    if key is None:
        raise refusal
    try:
        return made.from_public_bytes(key)
    except ValueError:
        raise refusal from None


def sign_plan(path: str | Path, key: str | Path) -> Path:
    """Signs a deployment plan that verifies, and returns the path of the signature.

    Args:
        path: The plan file; the signature is written beside it.
        key: The file of the issuer's private key.

    Raises:
        PlanError: The file is no plan, a research plan, or a check of `fulcrum verify` fails.
    """
    return write_signature(path, key, purpose="deployment")


def write_signature(path: str | Path, key: str | Path, *, purpose: str) -> Path:
    """Signs a plan file of the purpose that its site states, and returns the path of the signature.

    An issuer signs deployment plans alone (`sign_plan`): a reader takes a signature for a promise, and a research plan
    protects nobody. Sites for research on one machine are the exception. They read signed plans as all sites do, and
    site.toml states their purpose, so that no site for deployment takes such a plan.
    """
    content = read_content(path)
    if content.purpose != purpose:
        if purpose == "research":
            raise PlanError(f"{path} is a deployment plan, and the site is for research. Plan with --purpose research")
        size = "" if content.settings.parameters else " --parameters N, the number of trained parameters"
        raise PlanError(
            f"{path} is a research plan: it protects nobody, and no issuer signs it. "
            f"Plan with --purpose deployment{size}"
        )
    check_verified(content, PlanError, source=str(path))
    private: Ed25519PrivateKey = private_key(key)
    signed = Signature(
        format=FORMAT,
        plan_digest=content.digest,
        public_key=public_text(private),
        signature=base64.b64encode(private.sign(_message(content.digest))).decode(),
    )
    target = Path(f"{path}.sig")
    write_whole(target, msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n")
    return target


def signer_of(path: str | Path) -> str:
    """Returns the public key that the signature beside a plan file names; whether it is good is another question."""
    return _signature_of(path).public_key


def check_signature(path: str | Path, issuer: str) -> None:
    """Raises `SignatureError` unless a plan file carries a good signature by the issuer's public key.

    Args:
        path: The plan file; its signature is beside it.
        issuer: The public key, as `new_key` returns it, or a file that holds it, whose name ends in .pub.
    """
    _check(path, read_content(path).digest, _trusted(issuer))


def issue_checks(path: str | Path, content: PlanFile, issuer: str | None = None) -> tuple[Check, Check, Check]:
    """Returns three checks of how a plan file was issued: its purpose, its signature, and who signed it.

    Args:
        path: The plan file; a signature may be beside it.
        content: As it was read from the file.
        issuer: As in `check_signature`, or None where anybody may have signed.

    Raises:
        SignatureError: `issuer` is no public key.
    """
    trusted = None if issuer is None else _trusted(issuer)
    if trusted is not None:
        public_key(trusted)
    deployed = content.purpose == "deployment"
    detail = "deployment" if deployed else "research: it protects nobody"
    purpose = Check(name="purpose", holds=deployed or trusted is None, detail=detail)
    if not os.path.lexists(f"{path}.sig"):
        detail = "none. Sign the plan with: fulcrum sign" if deployed else "none"
        signature = Check(name="signature", holds=trusted is None, detail=detail)
        return purpose, signature, Check(name="issuer", holds=trusted is None, detail="nobody signed this plan")
    try:
        signer = signer_of(path)
        _check(path, content.digest, signer)
    except SignatureError as error:
        signature = Check(name="signature", holds=False, detail=str(error))
        return purpose, signature, Check(name="issuer", holds=False, detail="there is no good signature")
    signature = Check(name="signature", holds=True, detail=f"good, of digest {content.digest[:12]}")
    if trusted is None:
        return purpose, signature, Check(name="issuer", holds=True, detail=f"{signer[:8]}.., to compare with --issuer")
    detail = f"{signer[:8]}.." if signer == trusted else f"signed by {signer[:8]}.., not by the issuer {trusted[:8]}.."
    return purpose, signature, Check(name="issuer", holds=signer == trusted, detail=detail)


def _trusted(issuer: str) -> str:
    """Returns the public key that an issuer is given by: the key itself, or the content of a .pub file."""
    return _key_in(Path(issuer)) if issuer.endswith(".pub") else issuer


def _check(path: str | Path, digest: str, trusted: str) -> None:
    """Checks the signature beside a plan file against the digest of what was read from it."""
    suite = _suite()
    signed = _signature_of(path)
    if signed.plan_digest != digest:
        raise SignatureError(f"{path}.sig signs another plan ({signed.plan_digest[:4]}.., this one is {digest[:4]}..)")
    public = public_key(trusted)
    if signed.public_key != trusted:
        raise SignatureError(f"{path} was signed by {signed.public_key[:8]}.., not by the issuer {trusted[:8]}..")
    try:
        public.verify(base64.b64decode(signed.signature, validate=True), _message(digest))
    except (suite.invalid_signature, ValueError):
        raise SignatureError(f"{path}.sig is not a good signature by the issuer {trusted[:8]}..") from None


def _signature_of(path: str | Path) -> Signature:
    """Reads the signature beside a plan file."""
    file = Path(f"{path}.sig")
    if file.exists() and not file.is_file():  # opening a pipe would wait for ever
        what = "a folder" if file.is_dir() else "not a regular file"
        raise SignatureError(f"{file} cannot be read: it is {what}. Sign the plan with: fulcrum sign")
    try:
        signed = json_of(file.read_bytes(), Signature)
    except OSError as error:
        raise SignatureError(f"{file} cannot be read: {error.strerror}. Sign the plan with: fulcrum sign") from None
    except msgspec.MsgspecError as error:
        raise SignatureError(f"{file} is not a signature: {error}") from None
    if signed.format != FORMAT:
        raise SignatureError(f"{file} is not a signature of format {FORMAT}, got {signed.format[:40]!r}")
    return signed


def read_signed_plan(path: str | Path, issuer: str) -> VerifiedPlan:
    """Reads a plan file, checks the issuer's signature, verifies the file as it was read, and returns the plan.

    Args:
        path: The plan file; its signature is beside it.
        issuer: The public key itself, as `new_key` returns it; no file is read for it.

    Raises:
        SignatureError: The issuer did not sign this plan.
        PlanError: The file is no plan, or a check of `fulcrum verify` fails.
    """
    content = read_content(path)
    _check(path, content.digest, issuer)
    return verified(content, issuer=issuer, source=str(path))


def _key_in(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SignatureError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SignatureError(f"{file} is not a public key. Make one with: fulcrum keygen") from None


def _message(digest: str) -> bytes:
    return f"{FORMAT} of plan {digest}".encode()


def _private_class(kind: str) -> Any:
    check_known("kind of key", kind, KINDS)
    suite = _suite()
    return suite.ed25519.Ed25519PrivateKey if kind == "signing" else suite.x25519.X25519PrivateKey


def _suite() -> Primitives:
    return primitives("signing needs")
