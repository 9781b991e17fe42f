"""The signature of a plan: Ed25519 over the plan's digest, in a file next to the plan file.

With the issuer's public key a silo can tell the issued plan from a plan of another origin. The signature of plan.json
is plan.json.sig. Issuers sign plans by `fulcrum.planning.files.plan_issue`.
"""

import base64
from pathlib import Path

import msgspec

from fulcrum.core.plan.keys import public_key, signing_suite
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_of_issuer
from fulcrum.errors import SignatureError
from fulcrum.parsing import json_of

FORMAT = "fulcrum.signature/1"


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a signature file; key and signature are in base64."""

    format: str
    plan_digest: str
    public_key: str
    signature: str


def read_signed_plan(path: str | Path, issuer: str) -> VerifiedPlan:
    """Reads a plan file, checks the issuer's signature, and returns the verified plan.

    Guarantees: signature, checks and returned plan are of the same bytes. The file is read once, so a file replaced
    between two reads cannot pass the signature with one content and release with another.

    Args:
        path: The plan file; the signature is in the file of the same name with ".sig" appended.
        issuer: The public key itself, in the form that `new_key` returns; not the name of a file.

    Raises:
        SignatureError: The issuer did not sign this plan.
        PlanError: The file is no plan, or a check of `fulcrum verify` fails.
    """
    content = read_content(path)
    check_beside(path, content.digest, issuer)
    return verified_of_issuer(content, issuer, source=str(path))


def check_beside(path: str | Path, digest: str, trusted: str) -> None:
    """Checks the signature next to a plan file for a digest and the issuer's public key.

    Args:
        path: The plan file.
        digest: The digest of the content that was read from the file.
        trusted: The issuer's public key. A signature by any other key fails, even a valid signature.

    Raises:
        SignatureError: The signature is missing, malformed, by another key or of another plan.
    """
    suite = signing_suite()
    signed = signature_of(path)
    if signed.plan_digest != digest:
        raise SignatureError("signature.plan-differs", file=path, signed_digest=signed.plan_digest, digest=digest)
    public = public_key(trusted)
    if signed.public_key != trusted:
        raise SignatureError("signature.issuer-differs", file=path, signer=signed.public_key, issuer=trusted)
    try:
        public.verify(base64.b64decode(signed.signature, validate=True), signed_message(digest))
    except (suite.invalid_signature, ValueError):
        raise SignatureError("signature.invalid", file=path, issuer=trusted) from None


def signature_of(path: str | Path) -> Signature:
    """Reads the signature next to a plan file, without a check of the signature itself."""
    file = Path(f"{path}.sig")
    if file.exists() and not file.is_file():  # to open a pipe would block for ever
        reason = "it is a folder" if file.is_dir() else "it is not a regular file"
        raise SignatureError("signature.file-unreadable", file=file, reason=reason)
    try:
        signed = json_of(file.read_bytes(), Signature)
    except OSError as error:
        raise SignatureError("signature.file-unreadable", file=file, reason=error.strerror) from None
    except msgspec.MsgspecError as error:
        raise SignatureError("signature.malformed", file=file, reason=str(error)) from None
    if signed.format != FORMAT:
        raise SignatureError("signature.format-unknown", file=file, expected=FORMAT, format=signed.format[:40])
    return signed


def signed_message(digest: str) -> bytes:
    """Returns the bytes that an issuer signs; the format in front keeps the signature from other uses of the key."""
    return f"{FORMAT} of plan {digest}".encode()
