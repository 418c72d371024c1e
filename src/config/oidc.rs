//! The tables `[gateway.administration.oidc]` and `[tenant.oidc]`: the OpenID provider whose users sign in to the
//! administration area, and which of them have a role.
//!
//! Owns the keys and their ranges. A tenant's table replaces the gateway's. The role depends on one claim only, and a
//! value that is not listed means no access.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use url::Url;

use super::context::LoadContext;
use super::declaration::keys;
use super::problem::Problem;
use super::table::{StringValue, TableReader};
use super::values::read_authorities;
use crate::outbound::Target;
use crate::store::AdminRole;

/// The longest value of a string. Larger: addresses and cookies of a sign-in get longer than browsers and proxies take.
/// Smaller: some providers' secrets and claim names do not fit.
const MAX_TEXT: usize = 512;
/// The most values of a role. Larger: a list of persons that belongs in a group of the provider. Smaller: an operator
/// with a group for each team can't list them.
const MAX_VALUES: usize = 100;

keys! { key:
    issuer = string(),
        "the provider's `https://` URL, to the letter as in `issuer` of its `/.well-known/openid-configuration`. It may be at a \
         private address, but not at a link-local one. The shared issuers of Microsoft Entra ID (`common`, `organizations`, \
         `consumers`) are refused";
    client_id = string(), "formgate's id at the provider";
    client_secret = string().secret().with_variables_in_registry(),
        "its secret at the provider: take it from the environment";
    scopes = string().default("\"openid email profile\""),
        "what to ask for, separated by spaces; `openid` is one of them";
    role_claim = string(),
        "the claim of the ID token that decides the role: a string, or an array of strings. A dot leads into an object: \
         `realm_access.roles`; a claim whose own name has the dots, such as `https://example.com/roles`, comes first. Safe are claims \
         that only administrators of the provider set, such as `roles`, `groups` or a mapped one, and `sub`. `email` counts only if it is \
         [verified](administration.md#sign-in-with-openid-connect). What users can choose themselves is refused: `name`, \
         `preferred_username`, `upn`, `nickname` and the other claims of a profile";
    admin_values = strings().default("[]"), "the values that give the role `admin`; at most 100";
    viewer_values = strings().default("[]"),
        "the values that give the role `viewer`; one of the two lists has a value";
    emails_are_verified = boolean().default("false"),
        "whether you vouch for the e-mail addresses of this provider where an ID token does not say that they are verified. \
         `true` is safe only if no user can choose an address: whoever can is shown as anybody else in pages and the audit log, \
         and has the role of the address if `role_claim` is `email`";
    ca_file = string().without("none"),
        "a PEM file of certificate authorities to trust in addition to the system's, read with the table";
}

/// What follows the issuer in the address of a provider's description (OpenID Connect Discovery 1.0, section 4).
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Hosts of Microsoft Entra ID.
const ENTRA_HOSTS: [&str; 4] =
    ["login.microsoftonline.com", "login.microsoftonline.us", "login.partner.microsoftonline.cn", "sts.windows.net"];
/// The issuers of Entra that are not of one organization. The last one is the tenant of all personal accounts.
const ENTRA_SHARED: [&str; 5] =
    ["common", "organizations", "consumers", "{tenantid}", "9188040d-6c67-4c5b-b112-36a304b66dad"];

/// Claims that users of many providers set themselves (OpenID Connect Core 1.0, section 5.1, and Microsoft's `upn` and
/// `unique_name`): who writes another one's into a profile would have that one's role. An `email` counts if it is verified.
const CHOSEN_BY_USERS: [&str; 18] = [
    "name",
    "given_name",
    "family_name",
    "middle_name",
    "nickname",
    "preferred_username",
    "upn",
    "unique_name",
    "profile",
    "picture",
    "website",
    "gender",
    "birthdate",
    "zoneinfo",
    "locale",
    "phone_number",
    "address",
    "updated_at",
];

/// An OpenID provider, and the roles of its users.
#[derive(Clone, Debug)]
pub struct OidcConfig {
    /// The issuer, exactly as the provider writes it.
    pub issuer: Box<str>,
    /// formgate's name at the provider.
    pub client_id: Box<str>,
    /// formgate's secret at the provider.
    pub client_secret: SecretString,
    /// The scopes to ask for, separated by spaces; `openid` is one of them.
    pub scopes: Box<str>,
    /// The claim that decides the role.
    pub role_claim: Box<str>,
    /// The values of the claim that make an administrator.
    pub admin_values: Box<[Box<str>]>,
    /// The values of the claim that make a viewer.
    pub viewer_values: Box<[Box<str>]>,
    /// Whether the operator vouches for the e-mail addresses of the provider's users where a token says nothing about them.
    pub emails_are_verified: bool,
    /// Certificate authorities to trust in addition to the system's.
    pub authorities: Box<[CertificateDer<'static>]>,
}

impl PartialEq for OidcConfig {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            issuer,
            client_id,
            client_secret,
            scopes,
            role_claim,
            admin_values,
            viewer_values,
            emails_are_verified,
            authorities,
        } = self;
        *issuer == other.issuer
            && *client_id == other.client_id
            && client_secret.expose_secret() == other.client_secret.expose_secret()
            && *scopes == other.scopes
            && *role_claim == other.role_claim
            && *admin_values == other.admin_values
            && *viewer_values == other.viewer_values
            && *emails_are_verified == other.emails_are_verified
            && *authorities == other.authorities
    }
}

impl Eq for OidcConfig {}

impl OidcConfig {
    /// Whether the provider is Microsoft Entra ID.
    #[must_use]
    pub fn is_entra(&self) -> bool {
        let host = Url::parse(&self.issuer).ok().and_then(|url| url.host_str().map(ToOwned::to_owned));
        host.is_some_and(|host| ENTRA_HOSTS.contains(&&*host))
    }

    /// The role that a value of the claim gives: a string, or an array of strings of which one is enough.
    #[must_use]
    pub fn role(&self, claim: &Value) -> Option<AdminRole> {
        let has = |values: &[Box<str>]| {
            let is_listed = |value: &Value| value.as_str().is_some_and(|text| values.iter().any(|it| **it == *text));
            match claim {
                Value::Array(items) => items.iter().any(is_listed),
                other => is_listed(other),
            }
        };
        if has(&self.admin_values) {
            return Some(AdminRole::Admin);
        }
        has(&self.viewer_values).then_some(AdminRole::Viewer)
    }
}

/// Reads the table; `None` if it is faulty. `folder` is that of the file.
pub(super) fn read(mut table: TableReader<'_, '_>, folder: &Path) -> Option<OidcConfig> {
    let context = table.context();
    let issuer = table.string(&key::issuer).and_then(|text| read_issuer(text, context));
    let client_id = table.string(&key::client_id).and_then(|text| read_text(text, "a client id", context));
    let secret = table.string(&key::client_secret).and_then(|text| read_text(text, "a client secret", context));
    let scopes = match table.string(&key::scopes) {
        Some(text) => read_scopes(text, context),
        None => key::scopes.default_value().map(Into::into),
    };
    let role_claim = table.string(&key::role_claim).and_then(|text| read_role_claim(text, context));
    let admin = table.strings(&key::admin_values);
    let viewer = table.strings(&key::viewer_values);
    if admin.is_empty() && viewer.is_empty() {
        let problem = Problem::at(table.span(), "no role for any user of the provider");
        context.report(
            problem.help("list the values of `role_claim` that give a role in `admin_values` or `viewer_values`"),
        );
    }
    if let Some(both) = viewer.iter().find(|value| admin.iter().any(|other| other.value == value.value)) {
        context.report(Problem::at(&both.span, "the same value for both roles").label("also in `admin_values`"));
    }
    let admin_values = read_values(admin, context);
    let viewer_values = read_values(viewer, context);
    let emails_are_verified = table.boolean(&key::emails_are_verified);
    let authorities = table.string(&key::ca_file).map(|path| read_authorities(&path, folder, context));
    table.finish();
    Some(OidcConfig {
        issuer: issuer?,
        client_id: client_id?,
        client_secret: SecretString::from(secret?),
        scopes: scopes?,
        role_claim: role_claim?,
        emails_are_verified,
        admin_values: admin_values?,
        viewer_values: viewer_values?,
        authorities: authorities.map_or(Some(Vec::new()), |read| read)?.into(),
    })
}

fn read_issuer(text: StringValue, context: &LoadContext<'_>) -> Option<Box<str>> {
    let url = Url::parse(&text.value).ok().filter(|url| Target::parse(url.as_str()).is_ok());
    let is_plain = text.value.len() <= MAX_TEXT && text.value.bytes().all(|byte| byte.is_ascii_graphic());
    let Some(url) = url.filter(|url| is_plain && url.query().is_none() && url.fragment().is_none()) else {
        let problem = Problem::at(&text.span, "not the issuer of an OpenID provider");
        context
            .report(problem.label("expected an `https://` URL without `?` and `#`, exactly as the provider writes it"));
        return None;
    };
    if url.path().ends_with(DISCOVERY) {
        let problem = Problem::at(&text.span, "this is where the provider describes itself, and not its issuer");
        context.report(problem.help(format!("leave out `{DISCOVERY}` at the end, which formgate adds")));
        return None;
    }
    let segment = url.path_segments().and_then(|mut segments| segments.next()).unwrap_or_default().to_ascii_lowercase();
    let segment = segment.replace("%7b", "{").replace("%7d", "}");
    if ENTRA_HOSTS.contains(&url.host_str().unwrap_or_default()) && ENTRA_SHARED.contains(&&*segment) {
        let problem = Problem::at(&text.span, "this issuer is not of one organization");
        let problem = problem.label("any organization, or any person with a Microsoft account, could sign in");
        context.report(problem.help(
            "write the issuer of your own directory, `https://login.microsoftonline.com/DIRECTORY-ID/v2.0`; the id is \
             on the overview page of Microsoft Entra ID",
        ));
        return None;
    }
    Some(text.value.into())
}

fn read_role_claim(text: StringValue, context: &LoadContext<'_>) -> Option<Box<str>> {
    // A part of such a claim too: `address.country`.
    let claim = text.value.split('.').next().unwrap_or_default();
    if CHOSEN_BY_USERS.contains(&claim) {
        let problem = Problem::at(&text.span, "a claim that users can choose themselves gives no role");
        let problem = problem.label("whoever writes a listed value into a profile would have the role");
        context.report(problem.help(
            "use a claim that the provider's administrators set, such as `roles` or `groups`, or `sub`, or `email`, which \
             counts with `\"email_verified\": true` only",
        ));
        return None;
    }
    read_text(text, "a claim", context)
}

/// A text without control characters.
fn read_text(text: StringValue, what: &str, context: &LoadContext<'_>) -> Option<Box<str>> {
    if text.value.len() <= MAX_TEXT && !text.value.chars().any(char::is_control) {
        return Some(text.value.into());
    }
    let problem = Problem::at(&text.span, format!("not {what}"));
    context.report(problem.label(format!("expected at most {MAX_TEXT} bytes without control characters")));
    None
}

/// Scopes as OAuth writes them (RFC 6749, section 3.3).
fn read_scopes(text: StringValue, context: &LoadContext<'_>) -> Option<Box<str>> {
    let is_scope = |scope: &str| {
        !scope.is_empty() && scope.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
    };
    let scopes: Vec<_> = text.value.split(' ').collect();
    let is_plain = text.value.len() <= MAX_TEXT && scopes.iter().all(|scope| is_scope(scope));
    if is_plain && scopes.contains(&"openid") {
        return Some(text.value.into());
    }
    let problem = Problem::at(&text.span, "not the scopes of a sign-in");
    context.report(problem.label("expected names that are separated by one space, `openid` among them"));
    None
}

fn read_values(values: Vec<StringValue>, context: &LoadContext<'_>) -> Option<Box<[Box<str>]>> {
    if let Some(further) = values.get(MAX_VALUES) {
        let problem = Problem::at(&further.span, format!("more than {MAX_VALUES} values"));
        context.report(problem.help("give the role to a group of the provider, and list the group"));
        return None;
    }
    values.into_iter().map(|text| read_text(text, "a value of a claim", context)).collect()
}
