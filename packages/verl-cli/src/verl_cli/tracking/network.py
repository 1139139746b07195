"""Whether a service can be reached at all."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request

#: Seconds to connect, and to wait for the first byte.
PROBE_SECONDS = 5.0


def reachable(url: str) -> bool:
    """Whether anything answers at `url`, through the proxies of the environment: a refusal is an answer as well."""
    try:
        with urllib.request.urlopen(url, timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except urllib.error.URLError as error:
        # Somebody is there whose certificate this Python does not know; the service's own client may.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, http.client.HTTPException, ValueError):
        return False
