"""The issue of a plan: fresh keys, signatures of deployment plans, and checks on the issue of a plan file."""

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fulcrum.checks import Check
from fulcrum.core.plan.keys import private_class, private_key, public_key, public_text, signing_suite
from fulcrum.core.plan.plan_file import PlanFile
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.plan.signatures import FORMAT, Signature, check_beside, signature_of, signed_message
from fulcrum.core.plan.verified_plan import check_verified
from fulcrum.core.store.disk_sync import sync_file
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import PlanError, SignatureError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def new_key(path: str | Path, kind: str = "signing") -> str:
    """Writes a fresh private key that only its owner can read, and the public key beside it; returns the public key.

    Args:
        path: The file of the private key; the public key goes to `path` with .pub added.
        kind: One of `KINDS`.
    """
    private = private_class(kind).generate()
    serialization = signing_suite().serialization
    data = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    target = Path(path)
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SignatureError("key.file-exists", file=path) from None
    except OSError as error:
        raise SignatureError("storage.not-writable", file=path, reason=error.strerror) from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        sync_file(file.fileno())
    public = public_text(private)
    write_whole(target.with_name(target.name + ".pub"), public.encode() + b"\n")
    return public


def sign_plan(path: str | Path, key: str | Path) -> Path:
    """Signs a deployment plan that verifies, and returns the path of the signature.

    Args:
        path: The plan file; the signature is written beside the plan file.
        key: The file of the issuer's private key.

    Raises:
        PlanError: The file is no plan, a research plan, or a check of `fulcrum verify` fails.
    """
    return write_signature(path, key, purpose="deployment")


def write_signature(path: str | Path, key: str | Path, *, purpose: str) -> Path:
    """Signs a plan file with the purpose of its site, and returns the path of the signature.

    An issuer signs deployment plans alone (`sign_plan`): a reader takes a signature for a promise, and a research plan
    protects nobody. Sites for research on one machine are the exception. These sites read signed plans as all sites do,
    and site.toml states the purpose, so no site for deployment accepts such a plan.
    """
    content = read_content(path)
    if content.purpose != purpose:
        if purpose == "research":
            raise PlanError("plan.purpose-not-research", file=path)
        size = "" if content.settings.parameters else " --parameters N, the number of trained parameters"
        raise PlanError("plan.purpose-not-deployment", file=path, option=size)
    check_verified(content, PlanError, source=str(path))
    private: Ed25519PrivateKey = private_key(key)
    signed = Signature(
        format=FORMAT,
        plan_digest=content.digest,
        public_key=public_text(private),
        signature=base64.b64encode(private.sign(signed_message(content.digest))).decode(),
    )
    target = Path(f"{path}.sig")
    write_whole(target, msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n")
    return target


def signer_of(path: str | Path) -> str:
    """Returns the public key that the signature beside a plan file names, without a check of the signature."""
    return signature_of(path).public_key


def check_signature(path: str | Path, issuer: str) -> None:
    """Raises `SignatureError` unless a plan file carries a good signature by the issuer's public key.

    Args:
        path: The plan file; the signature is beside the plan file.
        issuer: The public key, as `new_key` returns the key, or a file with the key, whose name ends in .pub.
    """
    check_beside(path, read_content(path).digest, _trusted_key(issuer))


def issue_checks(path: str | Path, content: PlanFile, issuer: str | None = None) -> tuple[Check, Check, Check]:
    """Returns three checks of the issue of a plan file: purpose, signature and signer.

    Args:
        path: The plan file; a signature may be beside the plan file.
        content: The content as read from the file.
        issuer: As in `check_signature`, or None if any signer will do.

    Raises:
        SignatureError: `issuer` is no public key.
    """
    trusted = None if issuer is None else _trusted_key(issuer)
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
        check_beside(path, content.digest, signer)
    except SignatureError as error:
        signature = Check(name="signature", holds=False, detail=str(error))
        return purpose, signature, Check(name="issuer", holds=False, detail="there is no good signature")
    signature = Check(name="signature", holds=True, detail=f"good, of digest {content.digest[:12]}")
    if trusted is None:
        return purpose, signature, Check(name="issuer", holds=True, detail=f"{signer[:8]}.., to compare with --issuer")
    detail = f"{signer[:8]}.." if signer == trusted else f"signed by {signer[:8]}.., not by the issuer {trusted[:8]}.."
    return purpose, signature, Check(name="issuer", holds=signer == trusted, detail=detail)


def _trusted_key(issuer: str) -> str:
    """Returns the public key of an issuer: the key itself, or the content of a .pub file."""
    return _key_in(Path(issuer)) if issuer.endswith(".pub") else issuer


def _key_in(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SignatureError("file.unreadable", file=file, reason=error.strerror) from None
    except UnicodeDecodeError:
        raise SignatureError("key.file-invalid", file=file) from None
