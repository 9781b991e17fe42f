"""Plan files whose words and figures are false, sealed anew; and signatures of an issuer who does not verify."""

import base64
from pathlib import Path

import msgspec

from fulcrum.core.plan.keys import private_key, public_text
from fulcrum.core.plan.plan_file import PlanFile, to_json
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.plan.signatures import FORMAT, Signature, signed_message

CLAIM = "Over all rounds every silo's whole dataset has epsilon 0.1 against everybody."


def sealed(content: dict) -> bytes:
    """Returns a plan file with the digest of its content, as a forger would seal it.

    A content that no plan file can have is refused before its digest is compared, so it keeps the old digest.
    """
    try:
        return to_json(msgspec.convert(content, PlanFile))
    except msgspec.ValidationError:
        return msgspec.json.encode(content)


def lie(path: Path) -> None:
    """Has a plan file claim epsilon 0.1 for every silo, in figures and words; its noise stays as it is."""
    content = read_content(path)
    guarantee = msgspec.structs.replace(content.guarantee, statement=CLAIM, assumptions=["none"])
    summary = msgspec.structs.replace(
        content.summary,
        epsilon_above_worst=0.1,
        epsilon_above_mean=0.1,
        epsilon_inside_worst=0.1,
        epsilon_inside_mean=0.1,
    )
    silos = [msgspec.structs.replace(entry, epsilon=dict.fromkeys(entry.epsilon, 0.1)) for entry in content.silos]
    path.write_bytes(to_json(msgspec.structs.replace(content, guarantee=guarantee, summary=summary, silos=silos)))


def sign_anyway(path: Path, key: Path) -> None:
    """Signs a plan file whatever it says, as a program of the issuer's own would."""
    private, digest = private_key(key), read_content(path).digest
    signature = base64.b64encode(private.sign(signed_message(digest))).decode()
    signed = Signature(format=FORMAT, plan_digest=digest, public_key=public_text(private), signature=signature)
    Path(f"{path}.sig").write_bytes(msgspec.json.encode(signed))
