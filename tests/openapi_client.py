"""Uses the client that openapi-python-client makes of the description, against a gateway with the demo's data.

Arguments: the base URL, the certificate to trust and a token. The generated package is `formgate_client`.
"""

import datetime
import importlib
import pkgutil
import ssl
import sys

import formgate_client
from formgate_client import AuthenticatedClient
from formgate_client.api.account import head_me, show_me
from formgate_client.api.forms import list_forms, show_form
from formgate_client.api.groups import delete_group, list_groups, show_group, write_group
from formgate_client.api.submissions import search_submissions, show_submission
from formgate_client.api.subscriptions import delete_subscription, list_subscriptions, subscribe, unsubscribe
from formgate_client.models import (
    Event,
    Faults,
    Filters,
    FiltersTermsType0,
    GroupWrite,
    NewMember,
    SortBy,
    SortDirection,
    Status,
    Subscribe,
    SubmissionPage,
    Switch,
    Unsubscribe,
    WriteGroupReport,
)

base_url, certificate, token = sys.argv[1:]
for module in pkgutil.walk_packages(formgate_client.__path__, "formgate_client."):
    importlib.import_module(module.name)

trust = ssl.create_default_context(cafile=certificate)
client = AuthenticatedClient(base_url=base_url, token=token, verify_ssl=trust, raise_on_unexpected_status=True)

assert show_me.sync(client=client).account.id == "acme"
assert head_me.sync_detailed(client=client).status_code == 200
forms = list_forms.sync(client=client, page=1)
assert forms.meta.total == len(forms.data) > 0 and forms.links.prev is None
elements = {element.name: element.id for element in show_form.sync("for_1", client=client).data.elements}

# Every filter, each as the client's types have it.
terms = FiltersTermsType0()
terms[str(elements["Kind of leave"])] = ["holiday", "training"]
day, instant = datetime.date(2020, 1, 1), datetime.datetime(2040, 1, 1, tzinfo=datetime.timezone.utc)
filters = Filters(
    forms=["for_1", "2", 4],
    statuses=list(Status),
    search="a",
    submitters=[1, "2"],
    pending=[1],
    participants=[1],
    terms=terms,
    start=day,
    end=instant,
    labels=[1],
    shared_labels=[1],
    flows=[1],
    sort_by=SortBy.CREATED_AT,
    sort_direction=SortDirection.ASC,
)
refused = search_submissions.sync(client=client, body=filters)
assert isinstance(refused, Faults) and list(refused.errors.additional_properties) == ["search"], refused
filters.search = "ay"
assert isinstance(search_submissions.sync(client=client, body=filters), SubmissionPage)
filters = Filters(terms=terms, start=day, end=instant, sort_by=SortBy.UPDATED_AT, labels=None)
found = search_submissions.sync(client=client, body=filters, page=1)
assert found.meta.total == len(found.data) > 0
assert all(submission.created_at.tzinfo for submission in found.data)
everything = search_submissions.sync(client=client, body=Filters(), page=2)
assert everything.meta.current_page == 2 and everything.links.prev and everything.data
answer = search_submissions.sync_detailed(client=client, body=Filters.from_dict({"status": "pending"}))
assert answer.headers["X-Ignored-Parameters"] == "status"
assert show_submission.sync(found.data[0].id, client=client).data == found.data[0]

group = GroupWrite(name="Python", external_id="python", members=[NewMember(email="py@bücher.example", name="Py")])
written = write_group.sync(client=client, body=group, dry_run=Switch.VALUE_0, report=WriteGroupReport.MEMBERS)
assert (written.result, written.report.created) == ("created", ["py@bücher.example"])
listed = list_groups.sync(client=client, external_id="python", managed=Switch.VALUE_1)
assert listed.data == [written.data], (listed, written)
assert show_group.sync(written.data.id, client=client).data.members[0].name == "Py"
assert delete_group.sync(written.data.id, client=client).deleted

wish = Subscribe(target_url="https://hooks.example.com/python", event=Event.SUBMISSION_UPDATED, form="for_1")
made = subscribe.sync(client=client, body=wish).data
assert made.secret.startswith("whsec_")
assert made.id in [known.id for known in list_subscriptions.sync(client=client).data]
assert delete_subscription.sync(made.id, client=client).deleted == 1
assert unsubscribe.sync(client=client, body=Unsubscribe(target_url=wish.target_url)).deleted == 0
