//! The keys of each page: a struct for each table of the files, and a field for each key.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::reasons::ReasonsTexts;
use super::{Counted, Text};

/// Declares the texts of a page: their type, and their keys.
macro_rules! page {
    ($(#[$doc:meta])* $name:ident { $($kind:ident: $($key:ident),+;)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(in crate::administration) struct $name {
            $($(pub(in crate::administration) $key: $kind,)+)+
        }
    };
}

page! {
    /// A whole file.
    Texts {
        DatesTexts: dates;
        NumbersTexts: numbers;
        FrameTexts: frame;
        StatesTexts: states;
        RolesTexts: roles;
        UsesTexts: uses;
        EnterTexts: enter;
        OverviewTexts: overview;
        ChartTexts: chart;
        TokensTexts: tokens;
        TokenFormsTexts: token_forms;
        TokenValueTexts: token_value;
        TokenTexts: token;
        TokenFactsTexts: token_facts;
        TokenLimitsTexts: token_limits;
        RevokeTexts: revoke;
        WebhooksTexts: webhooks;
        WebhookTexts: webhook;
        GroupsTexts: groups;
        GroupTexts: group;
        GroupSyncTexts: group_sync;
        DomainsTexts: domains;
        DomainTexts: domain;
        DomainFaultsTexts: domain_faults;
        DomainStatesTexts: domain_states;
        DomainMeaningsTexts: domain_meanings;
        DomainReasonsTexts: domain_reasons;
        RequestsTexts: requests;
        RequestTexts: request;
        RefusalsTexts: refusals;
        ExportTexts: export;
        AuditTexts: audit;
        SessionsTexts: sessions;
        ActionsTexts: actions;
        NamesTexts: audit_names;
        ReasonsTexts: reasons;
        ProblemsTexts: problems;
    }
}

page! {
    /// A page that says why there is no other one: its heading, and a paragraph for each sentence.
    ProblemText {
        Text: title;
        Sentences: sentences;
    }
}

/// What actions of the audit log are called, by their names in the log.
pub(in crate::administration) type ActionsTexts = BTreeMap<String, Text>;

/// What the reasons of refusals mean, by their words in the log of requests.
pub(in crate::administration) type RefusalsTexts = BTreeMap<String, Text>;

/// What the audit log calls by these names: subjects, keys of details, and values as `key.value`. Others are shown unchanged.
pub(in crate::administration) type NamesTexts = BTreeMap<String, Text>;

/// Paragraphs.
pub(in crate::administration) type Sentences = Vec<Text>;

page! {
    /// How instants and days are written, and what is written in place of a missing one.
    DatesTexts {
        Text: moment, second, day, hour, minute, never;
    }
}

page! {
    /// How numbers are written.
    NumbersTexts {
        Text: thousands;
    }
}

page! {
    /// What surrounds each page.
    FrameTexts {
        Text: skip, pages, overview, tokens, webhooks, groups, requests, domains, export, audit, sessions, viewer,
            sign_out, error, actions;
    }
}

page! {
    /// The states of tokens and of webhooks.
    StatesTexts {
        Text: active, expired, revoked, failing, paused, disabled, gone;
    }
}

page! {
    /// What the roles are called.
    RolesTexts {
        Text: admin, viewer;
    }
}

page! {
    /// How a token was used: what follows the time.
    UsesTexts {
        Text: for_route, from_network;
    }
}

page! {
    /// The page of a sign-in link.
    EnterTexts {
        Text: heading, named, unnamed, viewer, button, by_provider, by_link, not_you;
    }
}

page! {
    /// The overview.
    OverviewTexts {
        Text: lead, budget, in_this_minute, remaining, shared, attention, nothing,
            nothing_with_domains, no_token, first_token, domain, domains_unknown;
        Counted: tokens, webhooks, active, expiring, unused, failing, disabled, more_domains, waiting_domains;
    }
}

page! {
    /// The charts of the overview.
    ChartTexts {
        Text: hour, days, by_minute, by_hour, empty, this_node, this_node_for_now, late, totals,
            period, token, others, refused, table, table_of;
    }
}

page! {
    /// The list of tokens.
    TokensTexts {
        Text: lead, heading, name, generate, lists, active, expiring, unused, all, no_older,
            none_active, first, none, caption, prefix, created, by, last_used, requests, refused,
            expires, revoke, older;
        Counted: own_budget;
    }
}

page! {
    /// The fields of the forms of tokens, and what is wrong with them.
    TokenFormsTexts {
        Text: expires, as_before, never, in_30_days, in_90_days, in_a_year, on_a_day, which_day, not_at_all,
            one_hour, one_day, one_week, no_name, bad_name, refused_name, incomplete, no_choice,
            no_day, bad_day, past_day, far_day, past;
    }
}

page! {
    /// The page with the value of a new token, and the one for a form that was sent before.
    TokenValueTexts {
        Text: heading, lead, address, header, try_it, description, openapi, old_until, old_revoked, token, copied, again,
            again_lead, if_lost, to_token;
    }
}

page! {
    /// The page of a token.
    TokenTexts {
        Text: heading, late, old, old_ended, old_in_use, old_unused, old_used, old_never_used,
            old_until, old_link, new, new_by, new_ended, new_until, was_changed, was_same, was_revoked, rotate, rotate_lead, overlap, not_rotated, revoke, revoke_lead,
            ask_revoke, requests, unknown, read, read_nothing;
        Counted: old_requests, read_submissions, read_forms;
    }
}

page! {
    /// What is known about a token.
    TokenFactsTexts {
        Text: prefix, state, since, created, created_by, last_used, route, last_day, refused,
            expires, replaces, token;
        Counted: requests;
    }
}

page! {
    /// What a token is limited to.
    TokenLimitsTexts {
        Text: heading, lead, change, scopes, forms_read, submissions_read, groups_read, groups_write,
            webhooks_manage, scim, everything, none_is_all, some, forms, forms_note, every_form, bad_form, no_form, many_forms,
            networks, networks_note, everywhere,
            budget, budget_note, of_account, no_choice, no_scope, bad_network, host_bits, no_network,
            many_networks, bad_budget, not_changed;
    }
}

page! {
    /// The page that asks whether to revoke a token.
    RevokeTexts {
        Text: heading, last_used, stops, never_used, soon_by_redis, soon, lasting, button, keep,
            only_viewer, ended;
        Counted: requests;
    }
}

page! {
    /// The list of webhooks.
    WebhooksTexts {
        Text: lead, empty, caption, webhook, state, sends, of_form, of_every_form, of_reach, waiting,
            last_success;
        Counted: lost;
    }
}

page! {
    /// The page of a webhook.
    WebhookTexts {
        Text: heading, paused, resumed, replayed, test_accepted, test_failed, answered,
            no_submission, unusable, drill, secret_lead, receiver, of_form, failing_since, next_attempt,
            lost, lost_until, created, made_by, bound, unbound, token_ended, delivery, delivery_lead, test, pause, resume, replay, rotate_heading,
            rotate_lead, grace, leaked, rotate, already_rotated, attempts, lists, all, failed,
            none_failed, none, caption, event, attempt, when, outcome, took, was_accepted,
            was_failed, no_action, no_grace, unknown;
    }
}

page! {
    /// The list of group syncs.
    GroupsTexts {
        Text: lead, only, show_all, open, no_older, empty, caption, sync, numbered, undoes, group,
            new, when, by, came, went, older, all_groups, more_groups, no_more_groups, written_by, members,
            held_heading, held_lead, directories, token, last_request, last_change, syncs, until;
    }
}

page! {
    /// One group, above its syncs.
    GroupTexts {
        Text: of_scim, of_api, of_account, built_in, diverged, caption, member, what, since, by, removed, deactivated,
            deleted, first, decide, apply, drop, only_viewer, take_back, give_api, give_scim, no_action, unknown;
        Counted: held;
    }
}

page! {
    /// The page of a group sync.
    GroupSyncTexts {
        Text: heading, by_token, by_other, is_new, undid, sync, changed, came, went, would_come,
            would_go, no_one, undo, undo_lead, button, leave, only_viewer, no_members, all_changed,
            group_deleted, undone, touched, nothing_changed, not_undone, unknown;
        Counted: more, skipped;
    }
}

page! {
    /// The domains of the account.
    DomainsTexts {
        Text: lead, obtained, in_file, add_heading, host, add, removed, taken, of_operator, too_many,
            too_many_unproved,
            caption, state, next_step, since, certificate, was_added, nothing, of_operator_file,
            expires, none_yet, no_more, more;
    }
}

page! {
    /// One domain.
    DomainTexts {
        Text: heading, was_added, was_same, was_checked, was_asked, too_often, reason, expires, renews,
            checked, next_check, records, records_lead, proof, proof_lead, proof_label, what,
            kind, name, in_full, value, add, remove_record, keep, check_heading, check_lead, check,
            remove_heading, remove_lead, remove, no_action, unknown;
    }
}

page! {
    /// Why a text is not a domain.
    DomainFaultsTexts {
        Text: ip_address, empty, has_url_parts, wildcard, empty_label, long_label, long_name, punycode,
            characters, single_label, special_use, numeric_end, not_in_certificates, public_suffix;
    }
}

page! {
    /// The states of domains.
    DomainStatesTexts {
        Text: claimed, dns, verified, queued, issuing, live, failing, gone, removed, served;
    }
}

page! {
    /// What the states of domains mean.
    DomainMeaningsTexts {
        Text: claimed, dns, verified, queued, issuing, live, failing, gone, removed, served;
    }
}

page! {
    /// What is wrong with a domain, in a few words.
    DomainReasonsTexts {
        Text: no_records, not_seen_yet, elsewhere, behind_cdn, caa, dns_broken, dnssec,
            proof_missing, not_checked_yet, dns_down, taken, claim_expired, ca_refused, ca_limited, expired, ca_account,
            ca_down, unreachable;
    }
}

page! {
    /// The log of requests.
    RequestsTexts {
        Text: lead, filter, token, status, any, since, bad_filter, none, empty, off, caption, when, request, took,
            rows, no_token, no_route, older;
    }
}

page! {
    /// One request.
    RequestTexts {
        Text: at, reason, counted, counted_note, sent, network, agent, id, unknown;
    }
}

page! {
    /// Exports.
    ExportTexts {
        Text: lead, form, every_form, format, csv, parquet, ndjson, since, until, excel, button, download, once, only_viewer,
            bad_format, no_form, bad_form, bad_period, too_long, gone;
    }
}

page! {
    /// The audit log.
    AuditTexts {
        Text: lead, filter, who, action, any, since, until, export, bad_day, none, empty, caption, when,
            what, details, changed, no_limit, by_command, by_operator, by_gateway, on_pages, older;
    }
}

page! {
    /// The sessions.
    SessionsTexts {
        Text: lead, caption, who, own, signed_in, last_seen, ends, from, sign_out, all, no_session;
    }
}

page! {
    /// The pages in place of the one that was asked for.
    ProblemsTexts {
        Text: to_overview, sign_in, sign_in_again, sign_in_with, new_link, brought_back,
            no_such_page;
        ProblemText: session_ended, not_signed_in, unknown_link, signed_out, foreign_origin,
            stale_form, only_viewer, form_type, form_content, mistyped, method, too_large,
            too_many_pages, too_many_attempts, unavailable, too_slow, fault, unreadable,
            provider_failed, sign_in_lost, sign_in_expired, sign_in_denied, sign_in_refused,
            no_role, export_running;
    }
}
