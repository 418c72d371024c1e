"""Looks at the clients that openapi-generator makes of the description, and uses the one in Python.

Arguments: the description, the folder with a folder for each language, the base URL, the certificate to trust and a token.
"""

import json
import pathlib
import re
import sys

import openapi_client
from openapi_client.models import Replay, Subscribe

description, folder, base_url, certificate, token = sys.argv[1:]

# A generator may drop a call and say nothing, if two tags have the same name, say.
SOURCES = {"python": "*.py", "typescript-fetch": "*.ts", "java": "*.java", "go": "*.go"}
METHODS = {"get", "head", "post", "put", "patch", "delete"}
paths = json.loads(pathlib.Path(description).read_text())["paths"]
calls = [path[method]["operationId"] for path in paths.values() for method in path.keys() & METHODS]
assert len(calls) > 20, calls
for language, pattern in SOURCES.items():
    files = [file for file in pathlib.Path(folder, language).rglob(pattern) if "test" not in str(file).lower()]
    text = "\n".join(file.read_text() for file in files)
    for call in calls:
        name = re.sub("([A-Z])", r"_\1", call).lower() if language == "python" else call
        name = name[0].upper() + name[1:] if language == "go" else name
        assert re.search(rf"\b{name}\(", text), f"{language} lacks {name}"

configuration = openapi_client.Configuration(host=base_url, access_token=token, ssl_ca_cert=certificate)
with openapi_client.ApiClient(configuration) as client:
    changes = openapi_client.SubmissionsApi(client).list_changes(limit=5)
    assert changes.data, changes
    for change in changes.data:
        assert change.actual_instance.submission.id == change.actual_instance.id
    subscriptions = openapi_client.SubscriptionsApi(client)
    made = subscriptions.subscribe(Subscribe.from_dict({"target_url": "https://hooks.example.com/generator"})).data
    replayed = subscriptions.replay_events(made.id, Replay.from_dict({"since": "2020-01-01"}))
    assert replayed.data.id == made.id, replayed
    assert subscriptions.delete_subscription(made.id).deleted == 1

# Both kinds of a change are told apart by their type.
deleted = {"type": "deleted", "id": "sub_1", "form": "for_1", "changed_at": "2026-01-01T00:00:00.000000Z", "submission": None}
change = openapi_client.Change.from_dict(deleted).actual_instance
assert isinstance(change, openapi_client.Deletion) and change.submission is None, change
