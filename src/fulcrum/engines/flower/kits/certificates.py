"""Certificates and keys of a Flower federation: TLS for the SuperLink, and an identity key for every SuperNode."""

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import MissingExtraError

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
"""The authority's certificate, present at every site; the SuperLink's own certificate and private key."""

NODE_KEY = "node.key"
"""A SuperNode's private key; the file of the public half ends with `.pub`."""

_YEARS = datetime.timedelta(days=3650)


def write_certificates(folder: Path, server: Path, host: str) -> None:
    """Writes an authority, and a certificate signed by the authority for a SuperLink with a given name.

    Args:
        folder: The folder for the authority's certificate. The private key of the authority is discarded after a single
            signature.
        server: The folder for the SuperLink's certificate and key.
        host: The name or address under which sites reach the SuperLink.
    """
    x509, ec, hashes, serialization = _cryptography()
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    authority_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Fulcrum federation")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "SuperLink")])

    def sign(name: Any, public: Any, *, authority: bool) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        identity = x509.SubjectKeyIdentifier.from_public_key(public)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + _YEARS)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(identity, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )
        if not authority:
            unique = list(dict.fromkeys(names))
            builder = builder.add_extension(x509.SubjectAlternativeName(unique), critical=False)
        return builder.sign(authority_key, hashes.SHA384())

    pem = serialization.Encoding.PEM
    whole = sign(issuer, authority_key.public_key(), authority=True)
    write_whole(folder / AUTHORITY, whole.public_bytes(pem))
    write_whole(server / CERTIFICATE, sign(subject, key.public_key(), authority=False).public_bytes(pem))
    plain = serialization.NoEncryption()
    write_whole(
        server / KEY, key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain), private=True
    )


def write_node_key(folder: Path) -> None:
    """Writes the key pair that identifies a SuperNode at the SuperLink, in Flower's format."""
    _, ec, _, serialization = _cryptography()
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_whole(folder / NODE_KEY, private, private=True)
    write_whole(folder / f"{NODE_KEY}.pub", public + b"\n")


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MissingExtraError(
            "kit.package-missing", engine="Flower", package="cryptography", extra="flower"
        ) from None
    return x509, ec, hashes, serialization
