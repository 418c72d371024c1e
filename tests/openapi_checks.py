"""What schemathesis can't know of formgate. tests/openapi loads these checks in place of five of its own."""

import re

import schemathesis
from schemathesis.specs.openapi.checks import (
    ensure_resource_availability,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    use_after_free,
)

# Which elements there are is the account's.
UNKNOWN_FIELDS = {
    f"The fields.{at} must be one of id, status, created_at, updated_at, allElements, or the id of an element."
    for at in range(1000)
}

# Which format needs a form and a column of it, and that a cursor has a checksum and a form.
EXPORT = {
    "The fields must name a column of the form.",
    *UNKNOWN_FIELDS,
    "The form is required in this format.",
    "The since must be a cursor that an answer had.",
    "The as_of must be a cursor that an answer had.",
    "The as_of must be the cursor of the export that after resumes.",
    "The end must not be before the start.",
    "The terms must have at most 1000 answers in all.",
}

# Faults that no schema can tell, since they depend on two values at once or on what the account has. The description
# tells of each in words.
BEYOND_SCHEMAS = {
    ("GET", "/submission/export"): EXPORT,
    ("POST", "/submission/export"): EXPORT,
    ("POST", "/submission"): {
        "The end must not be before the start.",
        "The terms must have at most 1000 answers in all.",
        # A cursor has a checksum.
        "The cursor must be one that an answer had, or empty to begin.",
        "The cursor was made with other filters or another order.",
        "The cursor can't be combined with a page.",
        "The limit is one of pages by cursor: add `cursor=`.",
        *UNKNOWN_FIELDS,
    },
    ("GET", "/submission/{id}"): UNKNOWN_FIELDS,
    # A cursor has a checksum.
    ("GET", "/submission/changes"): {
        "The cursor must be `now` or one that an answer had; leave it out to begin.",
        "The cursor was made with other forms.",
        *UNKNOWN_FIELDS,
    },
    # The same, and a parameter that is a date or a date-time is a type of its own in generated clients.
    ("GET", "/request"): {
        "The cursor must be one that an answer had; leave it out to begin.",
        "The since must be a date (YYYY-MM-DD) or an RFC 3339 date-time.",
    },
    ("POST", "/group/{id}/managed_by"): {"The group is the built-in one, which nobody writes."},
    ("POST", "/subscribe"): {"The form does not exist.", "The account has 100 subscriptions already: delete one first."},
    # A cursor has a checksum, and which events there are is the account's.
    ("POST", "/subscribe/{id}/replay"): {
        "The body must have one of event, submissions, since and failed.",
        "The event was not sent to this subscription, or can't be any more.",
        "The since must be a date, an RFC 3339 date-time or a cursor.",
        "The since is a cursor of another log, or ahead of this one.",
        *(f"The submissions.{at} has no event for this subscription." for at in range(100)),
    },
    ("POST", "/subscribe/{id}/test"): {
        "The subscription can't be tested: there is no submission to send yet.",
    },
    ("POST", "/unsubscribe"): {"The id or the target_url is required."},
    ("PUT", "/group"): {
        "The name is that of two or more groups: an external_id must tell which is meant.",
        "The name is that of the built-in group, which cannot be written.",
    },
}

# Addresses that a pattern would have to know all of Unicode for.
BEYOND_PATTERNS = re.compile(
    r"The members\.\d+\.email must (not contain the invisible character U\+[0-9A-F]+|be an email address without mailto:"
    r"|have a domain that is a valid internationalized domain name|be a valid email address)\."
)


def has_unusual_address(case):
    """Whether a body has an address beyond ASCII, which can be faulty in ways that its pattern allows."""
    members = case.body.get("members") if isinstance(case.body, dict) else None
    emails = [str(member.get("email")) for member in members or () if isinstance(member, dict)]
    return any(not email.isascii() or "xn--" in email.lower() for email in emails)


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """Has no call wait for a change: the answer would be the same, later."""
    wait = str((case.query or {}).get("wait"))
    if case.path == "/submission/changes" and wait.isdigit() and int(wait) <= 25:
        case.query["wait"] = "0"


@schemathesis.check
def valid_data_is_accepted(ctx, response, case):
    """positive_data_acceptance, but for those faults, and only where there is no other."""
    # The answer to a HEAD has no texts.
    query = case.query or {}
    has_cursor = case.path in ("/submission/changes", "/request") and ("cursor" in query or "since" in query)
    if case.method.upper() == "HEAD" and (has_cursor or case.path == "/submission/export" or "fields" in query):
        return None
    known = BEYOND_SCHEMAS.get((case.method.upper(), case.path))
    if known and response.status_code == 422:
        texts = [text for texts in response.json()["errors"].values() for text in texts]
        if all(text in known or (BEYOND_PATTERNS.fullmatch(text) and has_unusual_address(case)) for text in texts):
            return None
    return positive_data_acceptance(ctx, response, case)


@schemathesis.check
def answers_have_what_is_required(ctx, response, case):
    """response_schema_conformance, but for fields, which decide what is required of a submission: no schema can tell that."""
    if (case.query or {}).get("fields") and response.status_code == 200:
        return None
    return response_schema_conformance(ctx, response, case)


@schemathesis.check
def faulty_data_is_refused(ctx, response, case):
    """negative_data_rejection, but for a body or terms that are null or an empty array: some languages have no other empty object."""
    if case.body is None or case.body == []:
        return None
    if case.path == "/submission" and isinstance(case.body, dict) and case.body.get("terms") == []:
        return None
    return negative_data_rejection(ctx, response, case)


# The numbers of groups that a workflow step asks: deleting one answers `deleted: false`, and keeps it.
kept = set()


@schemathesis.check
def what_is_deleted_is_gone(ctx, response, case):
    """use_after_free, but for groups that were not deleted, and said so."""
    if case.path == "/group/{id}":
        number = str(case.path_parameters.get("id")).removeprefix("grp_")
        if case.method.upper() == "DELETE" and response.status_code == 200 and not response.json()["deleted"]:
            kept.add(number)
        if number in kept:
            return None
    return use_after_free(ctx, response, case)


# The targets of the subscriptions that were made, by number, and the numbers of those that were deleted since.
targets, unsubscribed = {}, set()


@schemathesis.check
def what_is_made_is_there(ctx, response, case):
    """ensure_resource_availability, but for subscriptions that POST /unsubscribe deleted."""
    call = (case.method.upper(), case.path)
    if call == ("POST", "/subscribe") and response.status_code in (200, 201):
        made = response.json()["data"]
        targets[made["id"].removeprefix("hook_")] = made["target_url"]
    if call == ("POST", "/unsubscribe") and response.status_code == 200 and response.json()["deleted"]:
        unsubscribed.add(str(case.body.get("id")).removeprefix("hook_"))
        unsubscribed.update(number for number, target in targets.items() if target == case.body.get("target_url"))
    if case.path == "/subscribe/{id}" and str(case.path_parameters.get("id")).removeprefix("hook_") in unsubscribed:
        return None
    return ensure_resource_availability(ctx, response, case)
