"""A look at a server before gRPC connects: reached or not, encrypted or not, certificates right or wrong.

gRPC reports all of these as unavailable. A server with a wrong certificate would then be asked until the
deadline, without a word about the reason.
"""

from __future__ import annotations

import socket
import ssl

from khop.servers.access import Access
from khop.servers.addresses import Endpoint
from khop.servers.errors import ServerError, TimedOut, Unauthenticated, Unavailable


def check_server(endpoint: Endpoint, access: Access, timeout_s: float) -> None:
    """Raise a ServerError if the server is not reached, or not trusted. Sends no token."""
    try:
        # A server that ends may close one connection, but it does not accept another one.
        if not any(_stays(endpoint, access, timeout_s) for _ in range(2)):
            raise Unauthenticated(
                f"{endpoint}: it closes the connection after TLS; it was started with --client-ca, so give "
                "client_cert and client_key"
            )
    except ServerError:  # some are OSErrors too
        raise
    except TimeoutError:
        raise TimedOut(f"{endpoint}: no answer within {timeout_s:.1f} s") from None
    except OSError as error:
        raise Unavailable(f"{endpoint}: {error.strerror or error}") from None


def _stays(endpoint: Endpoint, access: Access, timeout_s: float) -> bool:
    """Return False if the server closes the connection after the handshake."""
    with socket.create_connection((endpoint.number, endpoint.address.port), timeout_s) as plain:
        return not access.encrypts(endpoint) or _greets(plain, endpoint, access)


def _greets(plain: socket.socket, endpoint: Endpoint, access: Access) -> bool:
    try:
        with context_of(access).wrap_socket(plain, server_hostname=endpoint.address.host) as secure:
            # In TLS 1.3, a server looks at this side's certificate only after the handshake.
            return bool(secure.recv(1))
    except ssl.SSLCertVerificationError as error:
        raise Unauthenticated(
            f"{endpoint}: its certificate is not trusted ({error.verify_message}); give the authority that "
            "signed it as ca, and connect by a name that the certificate has"
        ) from None
    except ssl.SSLError as error:
        raise Unauthenticated(f"{endpoint}: {_tls_reason(error)}") from None


def _tls_reason(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version" in reason or "record layer" in reason:
        return "it does not encrypt, so it gets no token; start it with --tls-cert and --tls-key"
    if "alert" in reason or "certificate required" in reason:
        return f"it refuses this client's certificate ({reason}); give client_cert and client_key"
    return f"TLS failed ({reason}); compare its certificate with ca"


def context_of(access: Access) -> ssl.SSLContext:
    """Return the TLS settings of a client: verified, version 1.2 or newer, HTTP/2."""
    context = ssl.create_default_context(cafile=access.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if access.client_cert is not None:
        context.load_cert_chain(access.client_cert, access.client_key)
    return context


def speaks_tls(endpoint: Endpoint, timeout_s: float) -> bool:
    """Return True if the server encrypts. Only for an error message: nothing is verified, nothing sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((endpoint.number, endpoint.address.port), timeout_s) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except OSError:
        return False
