"""Provisions users and groups with scim2-client, as a directory would, from what the service says of itself.

Arguments: the base URL, the certificate to trust and a token.
"""

import ssl
import sys

from httpx2 import Client
from scim2_client import SCIMClientException
from scim2_client.engines.httpx2 import SyncSCIMClient
from scim2_models import PatchOp, PatchOperation, SCIMException, SearchRequest

base_url, certificate, token = sys.argv[1:]
trust = ssl.create_default_context(cafile=certificate)
http = Client(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, verify=trust)
client = SyncSCIMClient(http)
client.discover()
User, Group = client.get_resource_model("User"), client.get_resource_model("Group")
checks = 0


def check(condition, what):
    global checks
    checks += 1
    assert condition, what


def search(text, **parameters):
    return SearchRequest(filter=text, **parameters)


def patch(resource, *operations):
    changes = PatchOp[type(resource)](operations=[PatchOperation(**operation) for operation in operations])
    return client.modify(type(resource), resource.id, changes)


def members(group):
    return {member.value for member in client.query(Group, group.id).members or []}


config = client.provider.config
check(config.patch.supported and config.filter.supported and config.etag.supported and config.sort.supported, config)
check(not config.bulk.supported and not config.change_password.supported, config)

# Users: created, found, changed, replaced and deactivated.
users = []
for number in range(4):
    name = f"scim2-client-{number}@example.com"
    user = User(user_name=name, display_name=f"Client {number}", external_id=f"scim2-client-{number}")
    user.emails = [User.Emails(value=name, type="work", primary=True)] if hasattr(User, "Emails") else [{"value": name}]
    users.append(client.create(user))
    check(users[-1].id.startswith("usr_") and users[-1].active and users[-1].meta.version, users[-1])
found = client.query(User, query_parameters=search('userName eq "SCIM2-client-1@example.com"'))
check(found.total_results == 1 and found.resources[0] == users[1], found)
ordered = search('userName sw "scim2-client"', sort_by="userName", sort_order="descending", start_index=2, count=2)
page = client.query(User, query_parameters=ordered)
check(page.total_results == 4 and [user.id for user in page.resources] == [users[2].id, users[1].id], page)
changed = patch(users[0], {"op": "replace", "path": "displayName", "value": "Changed"})
check(changed.display_name == "Changed" and changed.meta.version != users[0].meta.version, changed)
users[1].display_name = "Replaced"
replaced = client.replace(users[1])
check(replaced.display_name == "Replaced" and replaced.external_id == "scim2-client-1", replaced)
users[1] = replaced

# A group, and its members by deltas.
group = client.create(Group(display_name="scim2-client", members=[{"value": users[0].id}, {"value": users[1].id}]))
check(members(group) == {users[0].id, users[1].id}, group)
check(group.members[0].ref.endswith(f"/Users/{users[0].id}") and group.members[0].display == "Changed", group)
patch(group, {"op": "add", "path": "members", "value": [{"value": users[2].id}, {"value": users[3].id}]})
check(members(group) == {user.id for user in users}, group)
patch(group, {"op": "remove", "path": f'members[value eq "{users[0].id}"]'})
check(members(group) == {user.id for user in users[1:]}, group)
patch(users[3], {"op": "replace", "path": "active", "value": False})
check(members(group) == {users[1].id, users[2].id}, "an inactive user is no member")
patch(users[3], {"op": "replace", "path": "active", "value": True})
check(members(group) == {user.id for user in users[1:]}, "it is back")
patch(group, {"op": "replace", "path": "members", "value": [{"value": users[0].id}]})
check(members(group) == {users[0].id}, group)

# Both types at once.
found = client.search(search(f'displayName eq "changed" or members eq "{users[0].id}"', sort_by="displayName"))
shown = [resource.display_name for resource in found.resources]
check(shown == ["All Users", "Changed", "scim2-client"] and found.total_results == 3, shown)
found = client.search(search('externalId sw "scim2-client"', start_index=3, count=1))
check(found.total_results == 4 and [user.id for user in found.resources] == [users[2].id], found)

# What is refused, as the library reads it.
for refused in (
    lambda: client.create(User(user_name=users[2].user_name, emails=users[2].emails)),
    lambda: client.create(Group(display_name="ALL users")),
    lambda: client.query(User, query_parameters=search('title eq "x"')),
    lambda: client.query(User, "usr_999999999"),
):
    try:
        refused()
    except (SCIMException, SCIMClientException):
        checks += 1
    else:
        raise AssertionError("it is accepted")

client.delete(Group, group.id)
for user in users:
    client.delete(User, user.id)
left = client.search(search('externalId sw "scim2-client"'))
check(left.total_results == 0, left)
print(f"scim2-client: {checks} checks passed")
