"""The cryptographic primitives of the package `cryptography`, imported and used once when this module is imported.

No function imports a primitive later, or uses a primitive first: a process may fork in the middle of that. The child
then inherits the lock of a half imported module, or a lock of OpenSSL, without the thread to release the lock, and
waits for ever. 12 of 19 children hung in a measurement: a thread drew the first noise while the process forked.

>>> suite = primitives("this example needs")
>>> suite.hkdf(suite.sha256(), 32, None, b"purpose").derive(b"secret").hex()[:8]
'eced7de9'
"""

from types import SimpleNamespace

from fulcrum.errors import MissingExtraError


def _import_primitives() -> SimpleNamespace | None:
    """Returns the classes and modules of `cryptography`; None without the package."""
    try:
        from cryptography.exceptions import InvalidSignature, InvalidTag
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
        from cryptography.hazmat.primitives.ciphers import Cipher, aead, algorithms, modes
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        return None
    try:
        from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    except ImportError:
        hpke = None  # before version 47
    else:
        hpke = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    return SimpleNamespace(
        cipher=Cipher,
        aes_256=algorithms.AES256,
        counter_mode=modes.CTR,
        aes_gcm=aead.AESGCM,
        sha256=hashes.SHA256,
        hkdf=HKDF,
        ed25519=ed25519,  # the module of keys that sign
        x25519=x25519,  # the module of keys that agree on secrets
        serialization=serialization,
        hpke=hpke,  # the suite of RFC 9180, for sealed releases
        invalid_signature=InvalidSignature,
        invalid_tag=InvalidTag,
    )


def _use_once(suite: SimpleNamespace) -> None:
    """Uses every primitive once: OpenSSL looks algorithms up under locks. The keys are fresh and forgotten."""
    key = bytes(32)
    suite.cipher(suite.aes_256(key), suite.counter_mode(bytes(16))).encryptor().update(key)
    suite.hkdf(suite.sha256(), 32, None, b"").derive(key)
    sealed = suite.aes_gcm(key).encrypt(bytes(12), b"", b"")
    suite.aes_gcm(key).decrypt(bytes(12), sealed, b"")
    pair = suite.x25519.X25519PrivateKey.generate()
    pair.exchange(pair.public_key())
    if suite.hpke is not None:
        suite.hpke.decrypt(suite.hpke.encrypt(b"", pair.public_key(), info=b""), pair, info=b"")
    signer = suite.ed25519.Ed25519PrivateKey.generate()
    signer.public_key().verify(signer.sign(b""), b"")
    form = suite.serialization
    text = signer.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    form.load_pem_private_key(text, password=None)


_PRIMITIVES = _import_primitives()
if _PRIMITIVES is not None:
    _use_once(_PRIMITIVES)


def primitives(purpose: str) -> SimpleNamespace:
    """Returns the primitives, by the names of `_import_primitives`.

    Args:
        purpose: The work and a verb, such as "signing needs", for the message.

    Raises:
        MissingExtraError: The package is not installed.
    """
    if _PRIMITIVES is None:
        raise MissingExtraError("extra.cryptography-missing", purpose=purpose)
    return _PRIMITIVES
