"""Has Python find names below `localhost` on this machine (RFC 6761, section 6.3), as browsers and curl do and glibc does not.

Python runs this file at its start if the folder is in PYTHONPATH.
"""

import socket

find = socket.getaddrinfo


def find_here(host, *arguments, **named):
    return find("localhost" if str(host).endswith(".localhost") else host, *arguments, **named)


socket.getaddrinfo = find_here
