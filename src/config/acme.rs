//! The `[gateway.acme]` table: which authorities issue certificates, and how they are asked.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretSlice};
use url::Url;

use super::context::LoadContext;
use super::problem::Problem;
use super::table::{StringValue, TableReader};
use super::webhooks::{read_authorities, read_key};
use crate::seal::Seals;

/// The directory of Let's Encrypt, the authority if none is configured.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The `[gateway.acme]` table.
#[derive(Clone, Debug, PartialEq)]
pub struct AcmeConfig {
    /// E-mail addresses of the accounts.
    pub contact: Vec<String>,
    /// How hosts are proved to authorities, in order of preference.
    pub challenges: Vec<ChallengeKind>,
    /// The keys that seal the keys of certificates.
    pub seals: Seals,
    /// The authorities, in order of preference; at least one.
    pub authorities: Vec<AuthorityConfig>,
}

/// How a host is proved to an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeKind {
    /// A document at port 80 (RFC 8555, section 8.3).
    Http01,
    /// A certificate at port 443 (RFC 8737).
    TlsAlpn01,
}

/// An entry of `[[gateway.acme.ca]]`.
#[derive(Clone, Debug)]
pub struct AuthorityConfig {
    /// What commands, metrics and the log call it.
    pub name: String,
    /// The URL of its directory.
    pub directory: Url,
    /// Its name in CAA records. `None`: they are not compared with it.
    pub issuer: Option<String>,
    /// The profile of its certificates, such as `shortlived`.
    pub profile: Option<String>,
    /// The account to which orders are bound.
    pub external_account: Option<ExternalAccountConfig>,
    /// The roots of its own TLS certificate, in addition to those of the system.
    pub roots: Vec<CertificateDer<'static>>,
}

/// The account at an authority that was made outside of ACME (RFC 8555, section 7.3.4).
#[derive(Clone, Debug)]
pub struct ExternalAccountConfig {
    /// Its id.
    pub key_id: String,
    /// The key that signs for it.
    pub hmac_key: SecretSlice<u8>,
}

impl PartialEq for AuthorityConfig {
    fn eq(&self, other: &Self) -> bool {
        let account = |authority: &Self| {
            let account = authority.external_account.as_ref()?;
            Some((account.key_id.clone(), account.hmac_key.expose_secret().to_vec()))
        };
        let Self { name, directory, issuer, profile, external_account: _, roots } = self;
        *name == other.name
            && *directory == other.directory
            && *issuer == other.issuer
            && *profile == other.profile
            && account(self) == account(other)
            && *roots == other.roots
    }
}

/// Reads the table; `None` if it is missing or faulty. `folder` is that of the file.
pub(super) fn read(table: Option<TableReader<'_, '_>>, has_domains: bool, folder: &Path) -> Option<AcmeConfig> {
    let mut table = table?;
    let context = table.context();
    let contact =
        table.required_strings("contact").into_iter().filter_map(|text| read_contact(text, context)).collect();
    let accept_at = table.span_of("accept_terms");
    if !table.boolean("accept_terms", false) {
        let span = accept_at.as_ref().unwrap_or(table.span());
        let problem = Problem::at(span, "the terms of the authorities are not accepted");
        context.report(problem.help("read them, and set `accept_terms = true`"));
    }
    let challenges = table.strings("challenges");
    let mut challenges: Vec<_> = challenges.iter().filter_map(|text| read_challenge(text, context)).collect();
    if challenges.is_empty() {
        challenges = vec![ChallengeKind::Http01, ChallengeKind::TlsAlpn01];
    }
    let keys = table.required_strings("seal_keys");
    let mut keys = keys.iter().filter_map(|text| read_key(text, context)).collect::<Vec<_>>().into_iter();
    let seals = Seals::new(keys.next(), keys);
    let entries = table.tables("ca");
    let is_default = entries.is_empty();
    let mut authorities: Vec<AuthorityConfig> = Vec::with_capacity(entries.len().max(1));
    for entry in entries {
        let span = entry.span().clone();
        let Some(authority) = read_authority(entry, folder) else { continue };
        if authorities.iter().any(|known| known.name == authority.name) {
            context.report(Problem::at(&span, format!("two authorities are called `{}`", authority.name)));
        }
        authorities.push(authority);
    }
    if is_default {
        authorities.push(lets_encrypt());
    }
    if !has_domains {
        let problem = Problem::at(table.span(), "missing table `domains`, which says where hosts have to point");
        context.report(problem.help("add `[gateway.domains]` with `target` or `addresses`"));
    }
    table.finish();
    Some(AcmeConfig { contact, challenges, seals, authorities })
}

fn lets_encrypt() -> AuthorityConfig {
    AuthorityConfig {
        name: "letsencrypt".to_owned(),
        directory: Url::parse(LETS_ENCRYPT).expect("it is a URL"),
        issuer: Some("letsencrypt.org".to_owned()),
        profile: None,
        external_account: None,
        roots: Vec::new(),
    }
}

fn read_contact(text: StringValue, context: &LoadContext<'_>) -> Option<String> {
    let address = text.value.strip_prefix("mailto:").unwrap_or(&text.value);
    let is_address = address.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        && address.bytes().all(|byte| byte.is_ascii_graphic() && !b",;<>\"?".contains(&byte));
    if !is_address {
        let problem = Problem::at(&text.span, "not an e-mail address");
        context.report(problem.label("authorities write there when something is wrong with certificates"));
        return None;
    }
    Some(address.to_owned())
}

fn read_challenge(text: &StringValue, context: &LoadContext<'_>) -> Option<ChallengeKind> {
    match text.value.as_str() {
        "http-01" => Some(ChallengeKind::Http01),
        "tls-alpn-01" => Some(ChallengeKind::TlsAlpn01),
        _ => {
            let problem = Problem::at(&text.span, "unknown challenge");
            context.report(problem.label("expected `http-01` or `tls-alpn-01`"));
            None
        }
    }
}

/// Reads an entry of `[[gateway.acme.ca]]`.
pub(super) fn read_authority(mut table: TableReader<'_, '_>, folder: &Path) -> Option<AuthorityConfig> {
    let context = table.context();
    let name = table.required_string("name").and_then(|text| read_name(text, context));
    let directory = table.required_string("directory").and_then(|text| read_directory(&text, context));
    let issuer = table.string("issuer").map(|text| text.value.to_ascii_lowercase());
    let profile = table.string("profile").map(|text| text.value);
    let external = table.table("eab").map(read_external_account);
    let roots = table.string("root").map(|path| read_authorities(&path, folder, context));
    table.finish();
    Some(AuthorityConfig {
        name: name?,
        directory: directory?,
        issuer,
        profile,
        external_account: external.map_or(Some(None), |read| read.map(Some))?,
        roots: roots.map_or(Some(Vec::new()), |read| read)?,
    })
}

/// Reads the table `eab` of an authority.
pub(super) fn read_external_account(mut table: TableReader<'_, '_>) -> Option<ExternalAccountConfig> {
    let context = table.context();
    let key_id = table.required_string("key_id").map(|text| text.value);
    let key = table.required_string("hmac_key").and_then(|text| {
        let decoded =
            URL_SAFE_NO_PAD.decode(text.value.trim().trim_end_matches('=')).ok().filter(|key| !key.is_empty());
        if decoded.is_none() {
            let problem = Problem::at(&text.span, "not a key of an external account");
            context.report(problem.label("expected base64url, exactly as the authority shows it"));
        }
        decoded
    });
    table.finish();
    Some(ExternalAccountConfig { key_id: key_id?, hmac_key: key?.into() })
}

/// A name that is a label of metrics.
fn read_name(text: StringValue, context: &LoadContext<'_>) -> Option<String> {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.value.is_empty() || text.value.len() > 63 || !text.value.bytes().all(is_name) {
        let problem = Problem::at(&text.span, "not the name of an authority");
        context.report(problem.label("expected lower-case letters, digits and hyphens"));
        return None;
    }
    Some(text.value)
}

fn read_directory(text: &StringValue, context: &LoadContext<'_>) -> Option<Url> {
    let url = Url::parse(&text.value).ok().filter(|url| url.scheme() == "https" && url.has_host());
    if url.is_none() {
        let problem = Problem::at(&text.span, "not the directory of an authority");
        context.report(problem.label("expected an `https://` URL"));
    }
    url
}
