//! The `[gateway.acme]` table: which authorities issue certificates, and how they are asked.

use std::path::Path;

use super::DomainsConfig;
use super::context::LoadContext;
use super::declaration::keys;
use super::problem::Problem;
use super::table::{StringValue, TableReader};
use super::values::{MAKE_KEY, read_authorities, read_key};
use crate::acme::{AcmeSettings, Authority, ChallengeKind, ExternalAccount};
use crate::outbound::Target;
use crate::seal::Seals;

/// The largest limit of an authority. Larger: a typing mistake passes.
const MAX_LIMIT: u32 = 1_000_000;

const HTTP_01: &str = "http-01";
const TLS_ALPN_01: &str = "tls-alpn-01";

keys! { key:
    contact = strings(),
        "e-mail addresses to which the authorities write. An account that was registered with others gets these, if the \
         authority shows contacts";
    accept_terms = boolean(), "`true`: the terms of the authorities are accepted";
    challenges = choices(&[HTTP_01, TLS_ALPN_01]).default("[\"http-01\", \"tls-alpn-01\"]"),
        "how hosts are verified, in order of preference: at port 80, or by a handshake at port 443";
    seal_keys = strings().secret().help(MAKE_KEY),
        "the keys that seal private keys in the registry and on disk, each the Base64 of 32 bytes (`openssl rand -base64 32`). \
         Each is listed once. The first one seals, all of them open; `formgate seal rotate` seals with the first what others \
         have sealed";
    ca = tables(ca_key::KEYS).without("Let's Encrypt"),
        "[the authorities](#certificate-authorities), in order of preference: the first that CAA records allow, that works and \
         that has an order left is asked";
}

keys! { ca_key:
    name = string(), "its name in commands, metrics and the log";
    directory = string(), "the URL of its ACME directory";
    issuer = string().without("none"),
        "its name in CAA records, such as `letsencrypt.org`; without it, CAA records are not compared with it";
    profile = string().without("the authority's"), "the profile of its certificates, such as `shortlived`";
    eab = table(eab_key::KEYS).without("none"), "the account at the authority to which orders are bound";
    root = string().without("none"),
        "a PEM file with the root of the authority's own TLS certificate, for private authorities";
    /// The default is what Let's Encrypt allows. Larger: an authority refuses, and counts that too. Smaller: many domains that
    /// are added at once wait for longer.
    orders_per_3_hours = integer(1..=MAX_LIMIT).default("300"), "how many orders it allows in three hours";
    certificates_per_domain_per_week = integer(1..=MAX_LIMIT).without("50 for Let's Encrypt, else no limit"),
        "how many certificates it issues in a week for the hosts of a registered domain";
    certificates_per_host_per_week = integer(1..=MAX_LIMIT).without("5 for Let's Encrypt, else no limit"),
        "how many it issues in a week for the same host";
    exempts_renewals = boolean().without("`true` for Let's Encrypt, else `false`"),
        "whether renewals that name the certificate which they replace (`replaces` of ARI) count against none of these limits, \
         so that they leave all orders for new hosts";
}

keys! { eab_key:
    key_id = string().hidden(), "the id of the account, as the authority shows it";
    hmac_key = string().secret(), "its key, as the authority shows it: take it from the environment";
}

/// The directory of Let's Encrypt, the authority if none is configured.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The `[gateway.acme]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeConfig {
    /// The authorities, of which there is at least one, and how they are asked.
    pub requests: AcmeSettings,
    /// What each of them allows, in the same order.
    pub limits: Vec<AuthorityLimits>,
    /// The keys that seal the keys of certificates.
    pub seals: Seals,
}

/// What an authority allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorityLimits {
    /// Orders in three hours.
    pub orders: u32,
    /// Certificates for the hosts of a registered domain in a week.
    pub per_domain: Option<u32>,
    /// Certificates for a host in a week.
    pub per_host: Option<u32>,
    /// Whether an order that names the certificate which it replaces (`replaces`, RFC 9773) counts against none of these.
    pub exempts_renewals: bool,
}

impl AuthorityLimits {
    /// What Let's Encrypt allows, as it publishes it.
    const LETS_ENCRYPT: Self = Self { orders: 300, per_domain: Some(50), per_host: Some(5), exempts_renewals: true };
}

/// Reads the table. `folder` is that of the file.
pub(super) fn read(mut table: TableReader<'_, '_>, domains: Option<&DomainsConfig>, folder: &Path) -> AcmeConfig {
    let context = table.context();
    let contact = table.strings(&key::contact).iter().filter_map(|text| read_contact(text, context)).collect();
    let accept_at = table.span_of(&key::accept_terms);
    if !table.boolean(&key::accept_terms) {
        let span = accept_at.as_ref().unwrap_or(table.span());
        let problem = Problem::at(span, "the terms of the authorities are not accepted");
        context.report(problem.help("read them, and set `accept_terms = true`"));
    }
    let mut challenges =
        table.choices(&key::challenges, "unknown challenge").into_iter().map(challenge_of).collect::<Vec<_>>();
    if challenges.is_empty() {
        challenges = vec![ChallengeKind::Http01, ChallengeKind::TlsAlpn01];
    }
    let keys = table.strings(&key::seal_keys);
    let seals = read_keys(&keys, context);
    let entries = table.tables(&key::ca);
    let is_default = entries.is_empty();
    let mut authorities: Vec<Authority> = Vec::with_capacity(entries.len().max(1));
    let mut limits = Vec::with_capacity(entries.len().max(1));
    for entry in entries {
        let span = entry.span().clone();
        let Some((authority, limit)) = read_authority(entry, folder) else { continue };
        if authorities.iter().any(|known| known.name == authority.name) {
            context.report(Problem::at(&span, format!("two authorities are called `{}`", authority.name)));
        }
        authorities.push(authority);
        limits.push(limit);
    }
    if is_default {
        authorities.push(lets_encrypt());
        limits.push(AuthorityLimits::LETS_ENCRYPT);
    }
    if domains.is_none() {
        let problem = Problem::at(table.span(), "missing table `domains`, which says where hosts have to point");
        context.report(problem.help("add `[gateway.domains]` with `target` or `addresses`"));
    }
    table.finish();
    let dns_servers = domains.map(|domains| domains.resolvers.clone()).unwrap_or_default();
    let requests = AcmeSettings { contact, challenges, authorities, dns_servers, ..AcmeSettings::default() };
    AcmeConfig { requests, limits, seals }
}

/// Reads `seal_keys`: the first one seals, and all of them open.
fn read_keys(texts: &[StringValue], context: &LoadContext<'_>) -> Seals {
    let mut keys = Vec::with_capacity(texts.len());
    for text in texts {
        let Some(key) = read_key(text, context) else { continue };
        if keys.contains(&key) {
            // Probably a rotation in which only one of two variables was changed: it would have no effect.
            let problem = Problem::at(&text.span, "this key is in `seal_keys` already");
            context.report(problem.help("list each key once: the first one seals, and all of them open"));
        }
        keys.push(key);
    }
    let mut keys = keys.into_iter();
    Seals::new(keys.next(), keys)
}

fn lets_encrypt() -> Authority {
    Authority {
        name: "letsencrypt".to_owned(),
        directory: Target::parse(LETS_ENCRYPT).expect("it is a URL"),
        issuer: Some("letsencrypt.org".to_owned()),
        profile: None,
        external_account: None,
        roots: Vec::new(),
    }
}

fn read_contact(text: &StringValue, context: &LoadContext<'_>) -> Option<String> {
    let address = text.value.strip_prefix("mailto:").unwrap_or(&text.value);
    let is_address = address.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        && address.bytes().all(|byte| byte.is_ascii_graphic() && !b",;<>\"?".contains(&byte));
    if !is_address {
        let problem = Problem::at(&text.span, "not an e-mail address");
        context.report(problem.label("authorities write there when something is wrong with certificates"));
        return None;
    }
    Some(format!("mailto:{address}"))
}

fn challenge_of(name: &str) -> ChallengeKind {
    if name == HTTP_01 { ChallengeKind::Http01 } else { ChallengeKind::TlsAlpn01 }
}

/// Reads an entry of `[[gateway.acme.ca]]`.
fn read_authority(mut table: TableReader<'_, '_>, folder: &Path) -> Option<(Authority, AuthorityLimits)> {
    let context = table.context();
    let name = table.string(&ca_key::name).and_then(|text| read_name(text, context));
    let directory = table.string(&ca_key::directory).and_then(|text| read_directory(&text, context));
    let issuer = table.string(&ca_key::issuer).map(|text| text.value.to_ascii_lowercase());
    let profile = table.string(&ca_key::profile).map(|text| text.value);
    let external = table.table(&ca_key::eab).map(read_external_account);
    let roots = table.string(&ca_key::root).map(|path| read_authorities(&path, folder, context));
    let is_known = directory.as_ref().is_some_and(is_lets_encrypt);
    let known = if is_known { Some(AuthorityLimits::LETS_ENCRYPT) } else { None };
    let limits = AuthorityLimits {
        orders: table.integer(&ca_key::orders_per_3_hours),
        per_domain: table
            .given_integer(&ca_key::certificates_per_domain_per_week)
            .or(known.and_then(|known| known.per_domain)),
        per_host: table
            .given_integer(&ca_key::certificates_per_host_per_week)
            .or(known.and_then(|known| known.per_host)),
        exempts_renewals: table
            .given_boolean(&ca_key::exempts_renewals)
            .unwrap_or_else(|| known.is_some_and(|known| known.exempts_renewals)),
    };
    table.finish();
    let authority = Authority {
        name: name?,
        directory: directory?,
        issuer,
        profile,
        external_account: external.map_or(Some(None), |read| read.map(Some))?,
        roots: roots.map_or(Some(Vec::new()), |read| read)?,
    };
    Some((authority, limits))
}

fn is_lets_encrypt(directory: &Target) -> bool {
    let host = directory.uri().host().unwrap_or_default();
    host == "letsencrypt.org" || host.ends_with(".letsencrypt.org")
}

/// Reads the table `eab` of an authority.
fn read_external_account(mut table: TableReader<'_, '_>) -> Option<ExternalAccount> {
    let context = table.context();
    let (key_id, key) = (table.string(&eab_key::key_id), table.string(&eab_key::hmac_key));
    table.finish();
    let (key_id, key) = (key_id?, key?);
    let account = ExternalAccount::new(&key_id.value, &key.value);
    if let Err(error) = &account {
        let problem = Problem::at(&key.span, error.to_string());
        context.report(problem.label("expected the key exactly as the authority shows it"));
    }
    account.ok()
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

fn read_directory(text: &StringValue, context: &LoadContext<'_>) -> Option<Target> {
    let target = Target::parse(&text.value).ok();
    if target.is_none() {
        let problem = Problem::at(&text.span, "not the directory of an authority");
        context.report(problem.label("expected an `https://` URL"));
    }
    target
}
