//! The output of a demo: where everything is, and commands that work as pasted.
//!
//! Every command is complete, with the path of the certificate and the token, so that any one can be pasted into a
//! shell in any folder.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::folder::DemoFolder;
use crate::config::TenantConfig;

/// A tenant and one of its tokens.
pub(super) struct DemoAccount<'c> {
    pub(super) tenant: &'c TenantConfig,
    pub(super) token: String,
}

/// A command to print: a description, and the parts that differ between commands.
struct DemoCall<'a> {
    about: &'a str,
    options: &'a str,
    token: &'a str,
    host: &'a str,
    path: &'a str,
    /// JSON without single quotes. With a body, the method is POST unless `options` sets another.
    body: Option<&'a str>,
    then: &'a str,
}

impl<'a> DemoCall<'a> {
    fn to(account: &'a DemoAccount<'_>, path: &'a str, about: &'a str) -> Self {
        let host = account.tenant.address.as_str();
        Self { about, options: "", token: &account.token, host, path, body: None, then: "" }
    }

    fn with_body(self, body: &'a str) -> Self {
        Self { body: Some(body), ..self }
    }
}

/// Where the parts of the demo are.
pub(super) struct Places<'d> {
    pub(super) address: SocketAddr,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) receiver: &'d str,
    /// A link into the administration area.
    pub(super) link: Option<String>,
    /// The socket of the operator API.
    pub(super) operator: Option<PathBuf>,
}

/// The complete output.
pub(super) fn show(
    folder: &DemoFolder,
    places: &Places<'_>,
    acme: &DemoAccount<'_>,
    globex: &DemoAccount<'_>,
) -> Result<String> {
    let Places { address, metrics, receiver, link, operator } = places;
    let port = address.port();
    let mut text = "formgate serves two tenants with sample data.\n\n".to_owned();
    for DemoAccount { tenant, token } in [acme, globex] {
        text += &format!("{:14}https://{}:{port}/api/v1\n{:14}token {token}\n", tenant.name, tenant.address, "");
    }
    text += &format!("{:14}{}\n", "Configuration", folder.config().display());
    if let Some(link) = link {
        text += &format!(
            "{:14}{link}\n{:14}signs in to the administration area of {}, once; the browser warns of the\n\
             {:14}certificate, which the demo issued itself: proceed\n",
            "Sign-in link", "", acme.tenant.name, ""
        );
    }
    if let Some(metrics) = metrics {
        text += &format!("{:14}http://{metrics}/metrics\n", "Metrics");
    }
    text += &format!("{:14}{receiver} prints those of {}\n", "Webhooks", acme.tenant.name);
    if let Some(operator) = operator {
        text += &format!("{:14}{} adds and removes accounts\n", "Operator API", operator.display());
    }
    text += "\nPaste any of these into another terminal:\n\n";

    let certificate = folder.certificate();
    let certificate = quoted(certificate.to_str().context("the folder's path must be UTF-8")?);
    // More calls than are admitted, so that some are refused.
    let flood = format!("/me?call=[1-{}]", globex.tenant.requests_per_minute.saturating_add(5));
    for call in calls(acme, globex, &flood) {
        text += &format!("# {}\n{}\n\n", call.about, command(&call, &certificate, *address));
    }
    if let Some(database) = acme.tenant.database.file() {
        let database = quoted(database.to_str().context("the folder's path must be UTF-8")?);
        text += &format!("# {CHANGE_ABOUT}\nsqlite3 {database} \\\n  \"{CHANGE}\"\n\n");
    }
    if let Some(operator) = operator {
        let socket = quoted(operator.to_str().context("the folder's path must be UTF-8")?);
        text += &format!("# {SIGN_UP_ABOUT}\ncurl -X PUT --unix-socket {socket} \\\n  {SIGN_UP}\n\n");
    }
    text += "A change of the configuration takes effect once it is saved.\n";
    text += if folder.is_temporary() {
        "Ctrl-C stops, and removes everything; so does closing this terminal."
    } else {
        "Ctrl-C stops; so does closing this terminal."
    };
    Ok(text)
}

const CHANGE_ABOUT: &str = "A change by SQL, as by a forms product that knows nothing of formgate: its webhook is printed \
                            here within 2 s. Needs the program sqlite3.";

const SIGN_UP_ABOUT: &str = "A further account, as your product adds it at sign-up: its database, and a first token.";

const SIGN_UP: &str = concat!(
    r#"-d '{"name": "Initech", "address": "initech.localhost", "database": "sqlite:initech.db"}' \"#,
    "\n  'http://operator/v1/tenants/initech?migrate=1&token=First&wait=5'"
);

const CHANGE: &str = "UPDATE submissions SET status = 'approved', \
                      updated_at = strftime('%s', 'now') * 1000000 WHERE id = 2009";

/// Of the members in the sample data, this leaves out Farid.
const FINANCE: &str = concat!(
    r#"{"name": "Finance", "external_id": "ldap-finance", "members": "#,
    r#"[{"email": "chloe.martin@acme.example"}, {"email": "nia@acme.example", "name": "Nia"}]}"#
);

fn calls<'a>(acme: &'a DemoAccount<'_>, globex: &'a DemoAccount<'_>, flood: &'a str) -> [DemoCall<'a>; 10] {
    [
        DemoCall {
            options: "-i ",
            ..DemoCall::to(acme, "/me", "Whose token is it? The headers show the remaining budget.")
        },
        DemoCall::to(acme, "/form", "The active forms."),
        DemoCall::to(acme, "/form/for_1", "One form with its elements, whose ids are the keys of `terms`."),
        DemoCall::to(acme, "/submission", "Submissions that wait for a decision, newest change first.")
            .with_body(r#"{"statuses": ["pending", "info", "escalate"]}"#),
        DemoCall::to(acme, "/submission", "A keyword in any answer, in any case, and a span of days in New York.")
            .with_body(r#"{"search": "ZÜRICH", "start": "2026-03-01", "end": "2026-03-31"}"#),
        DemoCall::to(acme, "/submission?page=2", "The second page of all submissions.").with_body("{}"),
        DemoCall::to(acme, "/submission/sub_2005", "An expense report: its lines are child submissions, shown in it."),
        DemoCall {
            options: "-X PUT ",
            ..DemoCall::to(acme, "/group", "A group as a directory has it: one member stays, one comes, one goes.")
        }
        .with_body(FINANCE),
        DemoCall { token: &acme.token, ..DemoCall::to(globex, "/me", "Acme's token at Globex: unknown there.") },
        DemoCall {
            options: "-s -o /dev/null -w '%{http_code}\\n' ",
            then: " | sort | uniq -c",
            ..DemoCall::to(globex, flood, "More calls than a minute admits: the last ones get 429.")
        },
    ]
}

/// Formats a command over several lines, continued by backslashes.
fn command(call: &DemoCall<'_>, certificate: &str, address: SocketAddr) -> String {
    let DemoCall { options, token, host, path, then, .. } = call;
    let port = address.port();
    let body =
        call.body.map(|body| format!("  -H 'Content-Type: application/json' -d '{body}' \\\n")).unwrap_or_default();
    let resolve = match address.ip() {
        // Names under `localhost` resolve to these addresses already.
        IpAddr::V4(Ipv4Addr::LOCALHOST | Ipv4Addr::UNSPECIFIED)
        | IpAddr::V6(Ipv6Addr::LOCALHOST | Ipv6Addr::UNSPECIFIED) => String::new(),
        elsewhere => format!("  --resolve {host}:{port}:{elsewhere} \\\n"),
    };
    let url = quoted(&format!("https://{host}:{port}/api/v1{path}")).into_owned();
    format!(
        "curl {options}--cacert {certificate} \\\n{resolve}  -H 'Authorization: Bearer {token}' \\\n{body}  {url}{then}"
    )
}

/// Quotes a word for a shell, only if it needs quotes.
fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-".contains(c);
    if word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")).into() }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_read_it_otherwise() {
        assert_eq!(quoted("/tmp/formgate-demo-x1.Y_z"), "/tmp/formgate-demo-x1.Y_z");
        assert_eq!(quoted("/me?call=[1-65]"), "'/me?call=[1-65]'");
        assert_eq!(quoted("/it's here"), r"'/it'\''s here'");
    }
}
