"""Python's clients: http.client and requests over HTTP/1.1, httpx over HTTP/2.

usage: client.py early|end|steady PORT HOST TOKEN. Prints how many requests got which status, and what was lost, as JSON.
See ../clients.rs for what each mode asks.
"""

import asyncio
import http.client
import json
import socket
import ssl
import sys
import threading

MODE, PORT, HOST, TOKEN = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
URL = f"https://{HOST}:{PORT}/api/v1"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}

resolve = socket.getaddrinfo
socket.getaddrinfo = lambda _host, *rest, **options: resolve("127.0.0.1", *rest, **options)
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

statuses, lost = {}, []


def count(what, ask):
    try:
        note(ask())
    except Exception as error:
        lost.append(f"{what}: {error!r}")


def note(status):
    statuses[status] = statuses.get(status, 0) + 1


def early():
    import requests
    import urllib3

    urllib3.disable_warnings()
    session = requests.Session()
    session.verify = session.trust_env = False
    connection = http.client.HTTPSConnection(HOST, PORT, context=context, timeout=20)
    for method, path, size, token, times in json.load(sys.stdin):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

        def with_http_client():
            # The body leaves in a segment of its own.
            connection.putrequest(method, "/api/v1" + path)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(size))
            connection.endheaders()
            connection.send(b"x" * size)
            response = connection.getresponse()
            response.read()
            return response.status

        def with_requests():
            return session.request(method, URL + path, data=b"x" * size, headers=headers, timeout=20).status_code

        # In turn, half of them each.
        for _ in range(times // 2):
            before = len(lost)
            count(f"http.client {method} {path} {size}", with_http_client)
            if len(lost) > before:
                connection.close()
            count(f"requests {method} {path} {size}", with_requests)


def bodies(turn):
    return {"content": b"{}" + b" " * (turn % 7 * 20_000)}


def body(turn):
    """None for two of three requests, else up to 120 KB."""
    return None if turn % 3 else b"{}" + b" " * (turn % 7 * 20_000)


def request(turn):
    content = body(turn)
    method, path = ("GET", "/me") if content is None else ("POST", "/submission")
    return {"method": method, "url": URL + path, "headers": AUTHORIZATION, "content": content}


# One httpx.Client is not safe to share between threads: h2 breaks by itself. Tasks may share one.
async def together(tasks, goes_on):
    import httpx

    async with httpx.AsyncClient(http2=True, verify=False, timeout=30) as client:

        async def one():
            turn = 0
            while goes_on(turn):
                try:
                    note((await client.request(**request(turn))).status_code)
                except Exception as error:
                    lost.append(f"httpx, {tasks} tasks: {error!r}")
                turn += 1

        await asyncio.gather(*(one() for _ in range(tasks)))


def end():
    import httpx

    with httpx.Client(http2=True, verify=False, timeout=30) as client:
        for turn in range(100):
            count("httpx", lambda: client.request(**request(turn)).status_code)
    asyncio.run(together(4, lambda turn: turn < 25))


def steady():
    import httpx

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()

    def one():
        with httpx.Client(http2=True, verify=False, timeout=30) as client:
            turn = 0
            while not ended.is_set():
                count("httpx", lambda: client.request(**request(turn)).status_code)
                turn += 1

    thread = threading.Thread(target=one)
    thread.start()
    asyncio.run(together(2, lambda _: not ended.is_set()))
    thread.join()


{"early": early, "end": end, "steady": steady}[MODE]()
print(json.dumps({"statuses": statuses, "lost": lost}))
