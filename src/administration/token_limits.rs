//! What a token is limited to: the fields of both forms, and the change of a token that there is.
//!
//! A new token for which no scope is checked may do everything. A token that is limited is only widened to everything by
//! saying so.

use http::StatusCode;
use jiff::Timestamp;

use super::forms::{Form, parse_id};
use super::texts::TokenLimitsTexts;
use super::token::{after_change, find, show_with, unknown};
use super::token_forms::TypedToken;
use super::visit::Change;
use crate::error::Refusal;
use crate::reply::Reply;
use crate::store::{ChangedToken, FormReach, LimitFault, ListFault, Networks, Scope, Scopes, TokenLimits};

/// The most lines of a field. Larger: a long list fills the page. Smaller: it has to be scrolled.
const MAX_ROWS: usize = 12;

/// The fields of the limits as they are shown: those of a token, or as they were typed.
#[derive(Clone, Debug, Default)]
pub(super) struct TypedLimits {
    scopes: Vec<String>,
    pub(super) forms: String,
    pub(super) networks: String,
    pub(super) requests_per_minute: String,
    pub(super) faults: LimitFaults,
}

/// A field that can't be accepted, and why.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitFaults {
    pub(super) scopes: Option<String>,
    pub(super) forms: Option<String>,
    pub(super) networks: Option<String>,
    pub(super) requests_per_minute: Option<String>,
}

/// A box for a scope: its name, what it says, and whether it is checked.
pub(super) struct ScopeBox {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) is_checked: bool,
}

impl TypedLimits {
    /// The limits of a token.
    pub(super) fn of_token(limits: &TokenLimits) -> Self {
        let scopes = limits.scopes.names().filter(|_| !limits.scopes.is_all());
        Self {
            scopes: scopes.map(str::to_owned).collect(),
            forms: limits.forms.names().unwrap_or_default().join("\n"),
            networks: limits.networks.iter().collect::<Vec<_>>().join("\n"),
            requests_per_minute: limits.requests_per_minute.map(|own| own.to_string()).unwrap_or_default(),
            faults: LimitFaults::default(),
        }
    }

    /// As a form has them. A browser sends a field for each box that is checked; a list in one field is the same.
    pub(super) fn of_form(form: &Form) -> Self {
        Self {
            scopes: form.fields("scopes").flat_map(words).map(str::to_owned).collect(),
            forms: form.field("forms").trim().to_owned(),
            networks: form.field("networks").trim().to_owned(),
            requests_per_minute: form.field("requests_per_minute").trim().to_owned(),
            faults: LimitFaults::default(),
        }
    }

    /// How many lines a field has for a text: some more than it needs, within bounds.
    pub(super) fn rows(&self, text: &str) -> usize {
        (text.lines().count() + 1).clamp(2, MAX_ROWS)
    }

    pub(super) fn has_faults(&self) -> bool {
        let LimitFaults { scopes, forms, networks, requests_per_minute } = &self.faults;
        [scopes, forms, networks, requests_per_minute].iter().any(|fault| fault.is_some())
    }

    /// A box for each scope, and one for everything if `with_all`.
    pub(super) fn boxes(&self, text: &'static TokenLimitsTexts, with_all: &bool) -> Vec<ScopeBox> {
        let scopes = Scope::SINGLE.into_iter().chain(Some(Scope::All).filter(|_| *with_all));
        let with = |scope: Scope| ScopeBox {
            name: scope.as_str(),
            label: label_of(scope, text),
            is_checked: self.scopes.iter().any(|typed| typed == scope.as_str()),
        };
        scopes.map(with).collect()
    }

    /// The limits, or faults. `present` are those of the token: if it has some scopes only, none is a fault, and it may keep a
    /// budget that is above a lowered one of the account.
    pub(super) fn check(
        &mut self,
        text: &'static TokenLimitsTexts,
        present: &TokenLimits,
        of_account: u32,
    ) -> TokenLimits {
        let scopes = match self.scopes.is_empty() && present.scopes.is_all() {
            true => Ok(Scopes::ALL),
            // Whoever checks the box for everything need not uncheck the others.
            false if self.scopes.iter().any(|scope| scope == Scope::All.as_str()) => Ok(Scopes::ALL),
            false => Scopes::parse(self.scopes.iter().map(String::as_str)),
        };
        let forms = match self.forms.is_empty() {
            true => Ok(FormReach::All),
            false => FormReach::parse(words(&self.forms)),
        };
        let networks = match self.networks.is_empty() {
            true => Ok(Networks::default()),
            false => Networks::parse(words(&self.networks)),
        };
        let budget = match &*self.requests_per_minute {
            "" => Ok(None),
            typed => {
                let digits = Some(typed).filter(|typed| typed.bytes().all(|byte| byte.is_ascii_digit()));
                let number = digits.and_then(|digits| digits.parse().ok()).unwrap_or(0);
                match present.requests_per_minute {
                    Some(kept) if u64::from(kept) == number => Ok(Some(kept)),
                    _ => TokenLimits::parse_budget(number, of_account).map(Some),
                }
            }
        };
        self.faults = LimitFaults {
            scopes: scopes.as_ref().err().map(|ListFault { fault, .. }| words_of(fault, text)),
            forms: forms.as_ref().err().map(|ListFault { fault, .. }| words_of(fault, text)),
            networks: networks.as_ref().err().map(|ListFault { fault, .. }| words_of(fault, text)),
            requests_per_minute: budget.as_ref().err().map(|fault| words_of(fault, text)),
        };
        TokenLimits {
            scopes: scopes.unwrap_or_default(),
            forms: forms.unwrap_or_default(),
            networks: networks.unwrap_or_default(),
            requests_per_minute: budget.unwrap_or_default(),
        }
    }
}

/// The entries of a list, which commas, blanks and line breaks separate.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|of: char| of == ',' || of.is_whitespace()).filter(|word| !word.is_empty())
}

/// What a scope lets a tool do.
pub(super) fn label_of(scope: Scope, text: &'static TokenLimitsTexts) -> &'static str {
    match scope {
        Scope::FormsRead => &text.forms_read,
        Scope::SubmissionsRead => &text.submissions_read,
        Scope::GroupsRead => &text.groups_read,
        Scope::GroupsWrite => &text.groups_write,
        Scope::WebhooksManage => &text.webhooks_manage,
        Scope::Scim => &text.scim,
        Scope::All => &text.everything,
    }
}

fn words_of(fault: &LimitFault, text: &'static TokenLimitsTexts) -> String {
    match fault {
        LimitFault::UnknownScope(_) | LimitFault::StarNotAlone => text.no_choice.to_string(),
        LimitFault::NoScope => text.no_scope.to_string(),
        LimitFault::UnknownForm(typed) => text.bad_form.with("form", typed),
        LimitFault::NoForm => text.no_form.to_string(),
        LimitFault::TooManyForms => text.many_forms.to_string(),
        LimitFault::UnknownNetwork(typed) => text.bad_network.with("network", typed),
        LimitFault::HostBits { text: typed, network } => text.host_bits.fill(&[("typed", typed), ("network", network)]),
        LimitFault::NoNetwork => text.no_network.to_string(),
        LimitFault::TooManyNetworks => text.many_networks.to_string(),
        LimitFault::Budget { of_account } => text.bad_budget.with("number", of_account),
    }
}

/// Changes what a token is limited to.
pub(super) async fn change(change: &Change<'_>, id: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let (Some(number), Some(token)) = (parse_id(id), find(member, id).await?) else { return Ok(unknown(member)) };
    let mut typed = TypedLimits::of_form(&change.form);
    let of_account = member.visit.tenant.requests_per_minute;
    let limits = typed.check(&member.area.texts.token_limits, &token.limits, of_account);
    if typed.has_faults() {
        let (rotation, limits) = (TypedToken::empty(), Some(typed));
        return show_with(member, id, rotation, limits, StatusCode::UNPROCESSABLE_ENTITY, (None, None)).await;
    }
    match member.store.change_token_limits(number, |_| limits.clone(), Timestamp::now(), &change.actor).await? {
        ChangedToken::Changed => {
            let tenant = &*member.visit.tenant.slug;
            tracing::info!(tenant, actor = change.actor.name, token = number, "an administrator changed a token");
            Ok(after_change(member, number, "changed").await)
        }
        ChangedToken::Same => Ok(member.area.see_other(&format!("/tokens/{number}?done=same"))),
        ChangedToken::Unknown => Ok(unknown(member)),
        // Another administrator was faster: the page shows what the token is now.
        ChangedToken::Revoked | ChangedToken::Expired => {
            let warning = Some(&*member.area.texts.token_limits.not_changed);
            show_with(member, id, TypedToken::empty(), None, StatusCode::CONFLICT, (None, warning)).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::administration::texts::Texts;
    use crate::config::Language;

    fn checked(scopes: &str, networks: &str, budget: &str, is_limited: bool) -> Result<String, String> {
        let mut typed = TypedLimits {
            scopes: words(scopes).map(str::to_owned).collect(),
            forms: String::new(),
            networks: networks.to_owned(),
            requests_per_minute: budget.to_owned(),
            faults: LimitFaults::default(),
        };
        let scopes = if is_limited { Scopes::parse(["scim"]).unwrap() } else { Scopes::ALL };
        let present = TokenLimits { scopes, requests_per_minute: Some(70), ..TokenLimits::default() };
        let limits = typed.check(&Texts::of(Language::English).token_limits, &present, 60);
        let LimitFaults { scopes, forms, networks, requests_per_minute } = typed.faults.clone();
        match [scopes, forms, networks, requests_per_minute].into_iter().flatten().next() {
            Some(fault) => Err(fault),
            None => Ok(format!("{}; {}; {:?}", limits.scopes, limits.networks, limits.requests_per_minute)),
        }
    }

    #[test]
    fn no_scope_is_everything_only_where_nothing_is_narrowed() {
        assert_eq!(checked("", "", "", false).unwrap(), "*; ; None");
        checked("", "", "", true).unwrap_err();
        assert_eq!(checked("*,forms:read", "", "", true).unwrap(), "*; ; None");
        let some = checked("groups:read, forms:read", "203.0.113.0/24\n2001:db8::/32,198.51.100.7", "60", true);
        assert_eq!(some.unwrap(), "forms:read groups:read; 203.0.113.0/24 2001:db8::/32 198.51.100.7/32; Some(60)");
    }

    #[test]
    fn forms_are_ids_however_they_are_separated() {
        let checked = |forms: &str| {
            let mut typed = TypedLimits { forms: forms.to_owned(), ..TypedLimits::default() };
            let limits = typed.check(&Texts::of(Language::English).token_limits, &TokenLimits::default(), 60);
            typed.faults.forms.map_or(Ok(limits.forms), Err)
        };
        assert_eq!(checked("").unwrap(), FormReach::All);
        assert_eq!(checked("for_3, 1\nfor_2").unwrap(), FormReach::of([1, 2, 3]));
        assert!(checked("1 Leave").unwrap_err().contains("Leave"));
        checked(",").unwrap_err();
    }

    #[test]
    fn each_fault_says_what_would_be_right() {
        assert!(checked("", "10.0.0.1/8", "", false).unwrap_err().contains("10.0.0.0/8"));
        assert_eq!(checked("", "", "70", false).unwrap(), "*; ; Some(70)", "it is kept");
        for budget in ["0", "61", "-1", "+5", "5.0", "1e1", "99999999999999999999"] {
            assert!(checked("", "", budget, false).unwrap_err().contains("60"), "{budget}");
        }
        for (scopes, networks) in [("forms:write", ""), ("", "office"), ("", ",")] {
            checked(scopes, networks, "", false).unwrap_err();
        }
    }
}
