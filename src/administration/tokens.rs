//! The list of tokens, and the form that generates one.
//!
//! The value of a new token is in the answer to the POST and nowhere else. Sending the form again, as browsers offer,
//! creates no second token, since the form has a key.

use askama::Template;
use http::StatusCode;

use super::forms::parameter;
use super::frame::{Frame, page};
use super::named_forms::{FormNames, NamedForm, in_short};
use super::texts::{TokenFormsTexts, TokenValueTexts, TokensTexts, UsesTexts};
use super::times::Moment;
use super::token_forms::{Choice, TypedToken, expiries};
use super::token_limits::TypedLimits;
use super::usage;
use super::visit::{Change, Member};
use crate::error::Refusal;
use crate::reply::Reply;
use crate::store::{RequestCounts, StoreError, TokenFilter, TokenLimits, TokenRecord};
use crate::tenant::token::{self, CreateTokenError, Created, NewTokenRequest};

/// How many tokens a page has. Larger: a page of an account with very many takes longer. Smaller: more pages.
const PAGE: usize = 100;

/// The lists: parameter, filter, and what the link says.
fn lists(text: &TokensTexts) -> [(&'static str, TokenFilter, &str); 4] {
    [
        ("", TokenFilter::Active, &text.active),
        ("expiring", TokenFilter::ExpireSoon, &text.expiring),
        ("unused", TokenFilter::Unused, &text.unused),
        ("all", TokenFilter::All, &text.all),
    ]
}

/// A token in the list.
pub(super) struct TokenRow {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) prefix: String,
    pub(super) created: Moment,
    pub(super) created_by: Option<String>,
    pub(super) last_used: Option<Moment>,
    pub(super) last_used_route: Option<String>,
    pub(super) last_used_network: Option<String>,
    pub(super) expires: Option<Moment>,
    pub(super) revoked: Option<Moment>,
    pub(super) replaces: Option<i64>,
    pub(super) limits: TokenLimits,
    /// The forms that it is limited to.
    pub(super) forms: Vec<NamedForm>,
    /// In the last 24 hours.
    pub(super) requests: RequestCounts,
    pub(super) state: &'static str,
}

impl TokenRow {
    /// The rows of tokens, in their order.
    pub(super) async fn of(tokens: Vec<TokenRecord>, member: &Member<'_>) -> Result<Vec<Self>, StoreError> {
        let ids: Vec<i64> = tokens.iter().map(|token| token.id).collect();
        let requests = usage::of_last_day(member, &ids).await?;
        let forms = tokens.iter().flat_map(|token| token.limits.forms.forms().unwrap_or_default().iter().copied());
        let names = FormNames::of(forms, member).await?;
        let row = |token: TokenRecord| {
            let requests = requests.get(&token.id).copied().unwrap_or_default();
            Self::with(token, requests, &names, member)
        };
        Ok(tokens.into_iter().map(row).collect())
    }

    fn with(mut token: TokenRecord, requests: RequestCounts, names: &FormNames, member: &Member<'_>) -> Self {
        let state = token.state(member.now);
        member.visit.tenant.tokens.last_used.complete(&mut token);
        Self {
            id: token.id,
            name: token.name,
            prefix: token.prefix,
            created: member.moment(token.created_at),
            created_by: token.created_by,
            last_used: token.last_used_at.map(|at| member.moment(at)),
            last_used_route: token.last_used_route,
            last_used_network: token.last_used_network,
            expires: token.expires_at.map(|at| member.moment(at)),
            revoked: token.revoked_at.map(|at| member.moment(at)),
            replaces: token.replaces,
            forms: names.named(&token.limits.forms),
            limits: token.limits,
            requests,
            state,
        }
    }

    /// For which route it was last used and from which network, as far as that is known.
    pub(super) fn manner(&self, text: &UsesTexts) -> String {
        let route = self.last_used_route.as_ref().map(|route| text.for_route.with("route", route));
        let network = self.last_used_network.as_ref().map(|network| text.from_network.with("network", network));
        route.unwrap_or_default() + &network.unwrap_or_default()
    }

    /// The forms that it is limited to, in a list.
    fn forms_in_short(&self) -> String {
        in_short(self.forms.iter().map(NamedForm::label))
    }

    /// The networks that it is limited to, in a list.
    fn networks_in_short(&self) -> String {
        in_short(self.limits.networks.iter())
    }

    pub(super) fn is_active(&self) -> bool {
        self.state == "active"
    }
}

#[derive(Template)]
#[template(path = "tokens.html", config = "src/administration/askama.toml")]
struct TokensPage {
    frame: Frame,
    text: &'static TokensTexts,
    lists: Vec<ListLink>,
    shown: &'static str,
    rows: Vec<TokenRow>,
    is_first: bool,
    /// The query of the next page.
    next: Option<String>,
    typed: TypedToken,
    expiries: [Choice; 5],
    zone: String,
    limits: TypedLimits,
    /// Whether there is a token that is limited to some scopes.
    is_limited: bool,
    /// The requests per minute of the account.
    of_account: u32,
}

struct ListLink {
    query: String,
    label: &'static str,
    is_shown: bool,
}

/// The page with the value of a new token.
#[derive(Template)]
#[template(path = "token_value.html", config = "src/administration/askama.toml")]
pub(super) struct ValuePage {
    pub(super) frame: Frame,
    pub(super) text: &'static TokenValueTexts,
    pub(super) name: String,
    pub(super) id: i64,
    pub(super) value: String,
    /// The address of the API.
    pub(super) address: String,
    /// The token that it replaces, and until when that one is accepted; `None` in there: it is revoked.
    pub(super) replaced: Option<(i64, Option<Moment>)>,
    pub(super) warning: Option<&'static str>,
}

#[derive(Template)]
#[template(path = "token_again.html", config = "src/administration/askama.toml")]
struct AgainPage {
    frame: Frame,
    text: &'static TokenValueTexts,
    id: i64,
}

pub(super) async fn show(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    list(member, TypedToken::empty(), TypedLimits::default(), StatusCode::OK).await
}

async fn list(
    member: &Member<'_>,
    typed: TypedToken,
    limits: TypedLimits,
    status: StatusCode,
) -> Result<Reply, Refusal> {
    let query = member.visit.head.uri.query();
    let wanted = parameter(query, "show");
    let text = &member.area.texts.tokens;
    let lists = lists(text);
    let (shown, filter, _) = lists.into_iter().find(|(name, _, _)| *name == wanted).unwrap_or(lists[0]);
    let before = parameter(query, "before").parse::<i64>().ok();
    let limit = u32::try_from(PAGE + 1).expect("it is small");
    let mut tokens = member.store.list_newest_tokens(filter, before, limit, member.now).await?;
    let has_more = tokens.len() > PAGE;
    tokens.truncate(PAGE);
    let last = tokens.last().filter(|_| has_more).map(|token| token.id);
    let tokens_page = TokensPage {
        frame: Frame::of(member, "tokens"),
        text,
        lists: lists
            .into_iter()
            .map(|(name, _, label)| ListLink {
                query: if name.is_empty() { String::new() } else { format!("?show={name}") },
                label,
                is_shown: name == shown,
            })
            .collect(),
        shown,
        rows: TokenRow::of(tokens, member).await?,
        is_first: before.is_none(),
        next: last.map(|last| match shown {
            "" => format!("?before={last}"),
            shown => format!("?show={shown}&before={last}"),
        }),
        typed,
        expiries: expiries(&member.area.texts.token_forms),
        zone: zone_of(member),
        limits,
        is_limited: false,
        of_account: member.visit.tenant.requests_per_minute,
    };
    Ok(page(status, &tokens_page))
}

/// The name of the account's time zone.
pub(super) fn zone_of(member: &Member<'_>) -> String {
    member.visit.tenant.timezone.iana_name().unwrap_or("UTC").to_owned()
}

pub(super) async fn create(change: &Change<'_>, _: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let mut typed = TypedToken::of(&change.form);
    let text = &member.area.texts.token_forms;
    let name = typed.check_name(text);
    let form_key = Some(typed.check_key(text));
    let expires_at = typed.check_expiry(member.now, &member.visit.tenant.timezone, text);
    let mut typed_limits = TypedLimits::of_form(&change.form);
    let of_account = member.visit.tenant.requests_per_minute;
    let limits = typed_limits.check(&member.area.texts.token_limits, &TokenLimits::default(), of_account);
    if typed.faults.any() || typed_limits.has_faults() {
        return list(member, typed, typed_limits, StatusCode::UNPROCESSABLE_ENTITY).await;
    }
    let request = NewTokenRequest { name: name.clone(), expires_at, limits, form_key };
    match token::create(&member.store, request, &change.actor).await {
        Ok(Created::New { id, token }) => {
            let tenant = &*member.visit.tenant.slug;
            tracing::info!(tenant, actor = change.actor.name, token = id, "an administrator created a token");
            // A node may remember that the token is unknown; a new value can't have been asked for, so only caches are lost.
            member.announce_tokens().await;
            let value = ValuePage {
                frame: Frame::of(member, "tokens"),
                text: &member.area.texts.token_value,
                name,
                id,
                value: token.expose().to_owned(),
                address: member.api_address(),
                replaced: None,
                warning: None,
            };
            Ok(page(StatusCode::CREATED, &value))
        }
        Ok(Created::Existing { id, .. }) => Ok(sent_before(member, id)),
        Err(error) => list(member, faulty(error, typed, text)?, typed_limits, StatusCode::UNPROCESSABLE_ENTITY).await,
    }
}

/// The page for a form that was sent before.
pub(super) fn sent_before(member: &Member<'_>, id: i64) -> Reply {
    let again = AgainPage { frame: Frame::of(member, "tokens"), text: &member.area.texts.token_value, id };
    page(StatusCode::OK, &again)
}

/// The form with the field that can't be accepted, or the failure of the database.
pub(super) fn faulty(
    error: CreateTokenError,
    mut typed: TypedToken,
    text: &'static TokenFormsTexts,
) -> Result<TypedToken, StoreError> {
    match error {
        CreateTokenError::InvalidName => typed.faults.name = Some(&text.refused_name),
        CreateTokenError::AlreadyExpired => typed.faults.expires = Some(&text.past),
        CreateTokenError::Store(error) => return Err(error),
    }
    Ok(typed)
}
