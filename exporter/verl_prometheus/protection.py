"""Who may connect to an endpoint, and how: TLS and basic authentication."""

from __future__ import annotations

import base64
import hmac
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Protection:
    """Paths of PEM files and of a password file, "" for none; plain data, since it travels to agents on other nodes."""

    cert_file: str = ""
    key_file: str = ""
    username: str = ""
    password_file: str = ""

    @property
    def scheme(self) -> str:
        return "https" if self.cert_file else "http"

    def context(self) -> ssl.SSLContext | None:
        """The server's side of TLS; None for plain HTTP. Raises OSError (of it ssl.SSLError) for files that are none."""
        if not self.cert_file:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.cert_file, self.key_file)
        return context

    def authorization(self) -> bytes | None:
        """The Authorization header that a client must send; None if anybody may come. Raises OSError."""
        if not self.username:
            return None
        password = Path(self.password_file).read_bytes().strip()
        return b"Basic " + base64.b64encode(self.username.encode() + b":" + password)


def admits(authorization: bytes | None, header: str) -> bool:
    """Whether a request with that Authorization header may pass; takes as long for a wrong one as for the right one."""
    return authorization is None or hmac.compare_digest(authorization, header.encode("latin-1", "replace"))
