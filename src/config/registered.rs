//! A tenant of the registry: the text of one `[[tenant]]` table, read and checked by the code that reads files.
//!
//! So a key has the same name, default, range and message wherever it is. Relative paths start at the folder of the
//! main file, as in that file. Only `database` and `oidc.client_secret` take variables, and only those that
//! [`TenantVariables`](super::TenantVariables) allow: whoever writes a tenant need not be trusted with the environment of the nodes. [`json`] translates between this text and the objects of the operator
//! API.

pub mod json;

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use super::context::LoadContext;
use super::problem::{Problem, Problems, REGISTRY};
use super::secret::Environment;
use super::source::{SourceFile, SourceSpan};
use super::{GatewayConfig, RegistryConfig, TenantConfig, coverage, database, include, sections, unique};
use crate::host::HostName;

/// A tenant of the registry.
#[derive(Clone, Debug)]
pub struct RegisteredTenant {
    /// The tenant.
    pub config: Arc<TenantConfig>,
    /// Equal for two addresses of the same database; contains no password.
    pub database: String,
}

impl RegisteredTenant {
    /// A tenant of the registry that is served already.
    #[must_use]
    pub fn served(config: &Arc<TenantConfig>) -> Self {
        Self { config: Arc::clone(config), database: config.database_identity() }
    }

    /// The same tenant with further hosts, which were added as domains.
    #[must_use]
    pub fn with_domains(mut self, added: &[String]) -> Self {
        let added: Vec<_> = added.iter().filter_map(|host| HostName::parse(host).ok()).collect();
        if !added.is_empty() {
            let config = Arc::make_mut(&mut self.config);
            config.added_domains = added.len();
            config.domains = config.domains.iter().cloned().chain(added).collect();
        }
        self
    }

    /// Reads the text of a tenant of a registry. With `gateway`, also reads certificates and checks that they cover its hosts.
    ///
    /// # Errors
    /// Every fault of the text, at its line.
    pub fn read(
        slug: &str,
        text: &str,
        registry: &RegistryConfig,
        gateway: Option<&GatewayConfig>,
    ) -> Result<Self, Problems> {
        let environment = |name: &str| std::env::var(name).ok();
        Self::read_with(slug, text, registry, gateway, &environment)
    }

    fn read_with(
        slug: &str,
        text: &str,
        registry: &RegistryConfig,
        gateway: Option<&GatewayConfig>,
        environment: Environment<'_>,
    ) -> Result<Self, Problems> {
        let context = LoadContext::of_registry(environment, &registry.variables);
        let keys = include::key::KEYS;
        let file = SourceFile::elsewhere(Path::new(REGISTRY), &registry.folder, text.to_owned(), keys);
        let top = SourceSpan::new(&file, 0..0);
        let tenants = include::read_file(&file, &context, |root| {
            for key in [&include::key::gateway, &include::key::include] {
                root.refuse(key, "the registry holds one `[[tenant]]` table for each tenant, and nothing else");
            }
        });
        unique::check(&tenants, &context);
        if let Some(gateway) = gateway {
            coverage::check_registered(gateway, &tenants, &context);
        }
        let problems = context.take_problems();
        if problems.is_empty() && tenants.len() != 1 {
            context.report(Problem::at(&top, "expected one `[[tenant]]` table"));
        }
        let mut tenants = tenants.into_iter().filter_map(|tenant| tenant.config);
        let config = tenants.next();
        if let Some(config) = config.as_ref().filter(|config| *config.slug != *slug) {
            let title = format!("the table has the slug `{}`, and the tenant is registered as `{slug}`", config.slug);
            context.report(Problem::at(&top, title));
        }
        Problems::none_of(problems.into_iter().chain(context.take_problems()).collect())?;
        let config = config.expect("without a fault there is one tenant");
        let database = database::identity(&config.database, &context);
        Ok(Self { config, database })
    }
}

/// The texts of the tenants in a file, with their slugs; together they are the text of the file. Text before the first
/// tenant belongs to it.
///
/// # Errors
/// Every fault of the file, and of each tenant.
pub fn split(path: &Path, text: &str, registry: &RegistryConfig) -> Result<Vec<(String, String)>, Problems> {
    let environment = |name: &str| std::env::var(name).ok();
    let context = LoadContext::of_registry(&environment, &registry.variables);
    let file = SourceFile::elsewhere(path, &registry.folder, text.to_owned(), include::key::KEYS);
    let tenants = include::read_file(&file, &context, |root| {
        for key in [&include::key::gateway, &include::key::include] {
            root.refuse(key, "only `[[tenant]]` tables can be imported");
        }
    });
    unique::check(&tenants, &context);
    Problems::none_of(context.take_problems())?;
    let slugs: Vec<_> = tenants.into_iter().filter_map(|tenant| Some(tenant.slug?.value)).collect();
    let sections = sections::tenants(text);
    let ends = sections.iter().skip(1).map(|section| section.start).chain([text.len()]);
    let starts = std::iter::once(0).chain(sections.iter().skip(1).map(|section| section.start));
    let texts: Vec<_> = starts.zip(ends).map(|(start, end)| text[start..end].to_owned()).collect();
    if sections.len() != slugs.len() || !texts.iter().zip(&slugs).all(|(text, slug)| is_of(text, slug)) {
        let problem = Problem::at(&SourceSpan::new(&file, 0..0), "the headers of the tenants do not separate them");
        return Err(Problems::of(problem.help("write each as a `[[tenant]]` table of its own")));
    }
    Ok(slugs.into_iter().zip(texts).collect())
}

/// Whether a text is a table of its own, of this tenant.
fn is_of(text: &str, slug: &str) -> bool {
    json::from_text(text).is_some_and(|tenant| tenant.get("slug").is_some_and(|it| it == slug))
}

/// Cuts a tenant out of the text of a file: its section, and the rest of the file. None if it has no section of its
/// own.
#[must_use]
pub fn cut(text: &str, slug: &str) -> Option<(String, String)> {
    let section = sections::tenants(text).into_iter().find(|section| is_of(&text[section.clone()], slug))?;
    let rest = format!("{}{}", &text[..section.start], &text[section.end..]);
    Some((text[section].to_owned(), rest))
}

/// The `database` of a tenant's text, as it is written there. None if the text can't be parsed.
#[must_use]
pub fn database_of(text: &str) -> Option<String> {
    Some(spanned_database(text)?.into_inner())
}

/// The text of a tenant with another database. All else stays as it is. None if the text can't be parsed.
#[must_use]
pub fn with_database(text: &str, database: &str) -> Option<String> {
    let span = spanned_database(text)?.span();
    let value = toml::Value::String(database.to_owned());
    Some(format!("{}{value}{}", &text[..span.start], &text[span.end..]))
}

fn spanned_database(text: &str) -> Option<Spanned<String>> {
    #[derive(Deserialize)]
    struct Document {
        tenant: Vec<Tenant>,
    }
    #[derive(Deserialize)]
    struct Tenant {
        database: Spanned<String>,
    }
    toml::from_str::<Document>(text).ok()?.tenant.pop().map(|tenant| tenant.database)
}

/// The address of a database as it was written, without the password.
#[must_use]
pub fn without_password(database: &str) -> String {
    let Some((scheme, rest)) = database.split_once("://").filter(|(scheme, _)| scheme.starts_with("postgres")) else {
        return database.to_owned();
    };
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
    let user = user.map(|user| format!("{}@", user.split(':').next().unwrap_or_default())).unwrap_or_default();
    let is_public = |parameter: &&str| !parameter.to_ascii_lowercase().starts_with("password");
    let query: Vec<_> = query.into_iter().flat_map(|query| query.split('&')).filter(is_public).collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    format!("{scheme}://{user}{place}{query}")
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;
    use crate::config::TenantVariables;
    use crate::store::DatabaseLocation;

    const ACME: &str = "[[tenant]]\nslug = \"acme\"\nname = \"Acme\"\naddress = \"acme.example.com\"\n\
        domains = [\"forms.acme.org\"]\ndatabase = \"sqlite:data/acme.db\"\ntimezone = \"UTC\"\n";

    #[test]
    fn a_text_gets_another_database_and_stays_the_same_otherwise() {
        let text = format!("# of 2024\n{ACME}\n[tenant.oidc] # see below\n");
        let moved = with_database(&text, "postgres://a:\"b\"@db/acme").expect("it can be parsed");
        let expected = text.replace("\"sqlite:data/acme.db\"", "'postgres://a:\"b\"@db/acme'");
        assert_eq!(moved, expected);
        assert_eq!(database_of(&moved).as_deref(), Some("postgres://a:\"b\"@db/acme"));
        assert_eq!(with_database("[[tenant]", "sqlite:x.db"), None);
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (database, shown) in [
            ("sqlite:data/acme.db", "sqlite:data/acme.db"),
            ("postgres://acme:secret@db:5432/acme", "postgres://acme@db:5432/acme"),
            ("postgres://acme:${FORMGATE_TENANT_ACME}@db/acme?schema=a", "postgres://acme@db/acme?schema=a"),
            ("postgresql://acme:a@b@db/acme?password=secret&schema=a", "postgresql://acme@db/acme?schema=a"),
            ("postgres:///acme?host=/run&user=acme&password=secret", "postgres:///acme?host=/run&user=acme"),
        ] {
            assert_eq!(without_password(database), shown);
        }
    }

    /// A registry whose folder is `/etc/formgate`.
    fn registry() -> RegistryConfig {
        let folder = Path::new("/etc/formgate");
        let location = |file: &str| DatabaseLocation::parse(&format!("sqlite:{file}"), folder).unwrap();
        let (database, snapshot) = (location("registry.db"), location("snapshot.db"));
        RegistryConfig {
            database,
            snapshot,
            folder: folder.to_owned(),
            variables: TenantVariables::default(),
            is_written: true,
        }
    }

    fn faults(slug: &str, text: &str) -> Vec<String> {
        let read = RegisteredTenant::read(slug, text, &registry(), None);
        let located = |problem: &Problem| {
            let (line, column) = problem.line_and_column().unwrap();
            format!("{}:{line}:{column} {}", problem.path().display(), problem.title())
        };
        read.err().map(|problems| problems.iter().map(located).collect()).unwrap_or_default()
    }

    #[test]
    fn a_text_is_a_tenant_whose_paths_start_at_the_folder() {
        let read = RegisteredTenant::read("acme", ACME, &registry(), None).unwrap();
        assert_eq!(read.config.database.file(), Some(Path::new("/etc/formgate/data/acme.db")));
        assert_eq!(read.database, "sqlite /etc/formgate/data/acme.db");
        assert!(read.config.origin.is_registered());
    }

    const OIDC: &str = "[tenant.oidc]\nissuer = \"https://login.example.com\"\nclient_id = \"${FORMGATE_TENANT_ID}\"\n\
        client_secret = \"${FORMGATE_TENANT_SECRET}$${\"\nrole_claim = \"groups\"\nadmin_values = [\"$${x}\"]\n";

    /// The environment has every variable but those of the driver: the value is the name in small letters.
    fn read_with_variables(text: &str) -> Result<RegisteredTenant, Problems> {
        let environment = |name: &str| (!name.starts_with("PG")).then(|| name.to_lowercase());
        RegisteredTenant::read_with("acme", text, &registry(), None, &environment)
    }

    #[test]
    fn only_the_database_and_the_client_secret_take_variables() {
        let text = ACME
            .replace("\"Acme\"", "\"Cash ${More} $${USER} ${\"")
            .replace("sqlite:data/acme.db", "postgres://u:${FORMGATE_TENANT_DB}@db/${FORMGATE_TENANT_NAME}");
        let config = read_with_variables(&format!("{text}{OIDC}")).unwrap().config;
        assert_eq!(&*config.name, "Cash ${More} $${USER} ${");
        assert_eq!(config.database.identity(), "postgres db:5432/formgate_tenant_name ");
        let oidc = config.oidc.as_ref().unwrap();
        assert_eq!(oidc.client_secret.expose_secret(), "formgate_tenant_secret${");
        assert_eq!((&*oidc.client_id, &*oidc.admin_values[0]), ("${FORMGATE_TENANT_ID}", "$${x}"));
    }

    #[test]
    fn a_url_says_whose_database_it_is_and_on_which_host() {
        let read = |url: &str, set: &str| {
            let environment = |name: &str| (name == set).then(|| "x".to_owned());
            let text = ACME.replace("sqlite:data/acme.db", url);
            RegisteredTenant::read_with("acme", &text, &registry(), None, &environment)
        };
        for url in [
            "postgres://db/x",
            "postgres://:p@db/x",
            "postgres:///x",
            "postgres://u@/x",
            "postgres://u@/x?port=1",
            "postgres://db/x?user=",
            "postgres://u@/x?host=",
            "postgres:///?dbname=x",
        ] {
            let report = read(url, "").unwrap_err().to_string();
            assert!(report.contains("a Postgres URL without a user or a host"), "{url}: {report}");
        }
        for (url, identity) in [
            ("postgres://u@db", "postgres db:5432/u "),
            ("postgres://db?user=u", "postgres db:5432/u "),
            ("postgres://u@/x?host=/run/postgresql", "postgres /run/postgresql:5432/x "),
            ("postgres://u@?hostaddr=::1&dbname=x", "postgres ::1:5432/x "),
        ] {
            for set in ["", "PGHOST", "PGUSER", "PGPORT", "PGDATABASE", "PGPASSWORD", "PGPASSFILE", "PGSSLMODE"] {
                assert_eq!(read(url, set).unwrap().database, identity, "{url} {set}");
            }
            for set in ["PGOPTIONS", "PGSSLCERT", "PGSSLKEY"] {
                let report = read(url, set).unwrap_err().to_string();
                assert!(report.contains(&format!("`{set}` of this node would apply")), "{url}: {report}");
            }
        }
        read("sqlite:data/acme.db", "PGOPTIONS").unwrap();
    }

    #[test]
    fn a_variable_that_tenants_may_not_use_is_a_fault_that_names_the_key_to_set() {
        for (from, to, key) in [
            ("sqlite:data/acme.db", "postgres://u:${SEAL_KEY}@db/x", "database"),
            ("sqlite:data/acme.db", "sqlite:${SEAL_KEY}/x.db", "database"),
            ("${FORMGATE_TENANT_SECRET}", "${SEAL_KEY}", "oidc.client_secret"),
        ] {
            let text = format!("{ACME}{OIDC}").replace(from, to);
            let problems = read_with_variables(&text).unwrap_err();
            let faults = json::by_key(&problems, &text);
            let title = "tenants of the registry may not use the environment variable `SEAL_KEY`";
            assert!(faults.len() == 1 && faults[key].len() == 1 && faults[key][0].starts_with(title), "{faults:?}");
            for text in [&faults[key][0], &problems.to_string()] {
                assert!(text.contains("`tenant_variables` in `[gateway]`") && !text.contains("seal_key"), "{text}");
            }
        }
        for (key, value) in [
            ("address", "${SEAL_KEY}"),
            ("timezone", "${SEAL_KEY}"),
            ("slug", "${SEAL_KEY}"),
            ("domains", "${SEAL_KEY}"),
        ] {
            let value = if key == "domains" { format!("[\"{value}\"]") } else { format!("\"{value}\"") };
            let lines = ACME.lines().map(|line| match line.starts_with(key) {
                true => format!("{key} = {value}\n"),
                false => format!("{line}\n"),
            });
            let report = read_with_variables(&lines.collect::<String>()).unwrap_err().to_string();
            assert!(!report.contains("seal_key"), "{report}");
        }
    }

    #[test]
    fn faults_have_the_words_of_files_and_are_all_reported() {
        let text = ACME.replace("\"UTC\"", "\"Mars/Base\"").replace("forms.acme.org", "https://forms");
        assert_eq!(faults("acme", &text), ["registry:5:12 not a host name", "registry:7:12 unknown time zone"]);
        assert_eq!(faults("acme", "[[tenant]]\n").len(), 4, "a missing key each");
        assert_eq!(faults("acme", &ACME.replace("forms.acme.org", "acme.example.com")).len(), 1);
        for (slug, text, fault) in [
            ("other", ACME.to_owned(), "the table has the slug `acme`, and the tenant is registered as `other`"),
            ("acme", format!("{ACME}[gateway]\n"), "the registry holds one `[[tenant]]` table for each tenant"),
            ("acme", String::new(), "expected one `[[tenant]]` table"),
            ("acme", format!("{ACME}\n{}", ACME.replace("acme", "globex")), "expected one `[[tenant]]` table"),
            ("acme", "[[tenant]\n".to_owned(), ""),
        ] {
            let faults = faults(slug, &text);
            assert!(faults.len() == 1 && faults[0].contains(fault), "{text}: {faults:?}");
        }
    }

    #[test]
    fn the_parts_of_a_file_are_its_text() {
        let globex = ACME.replace("acme", "globex");
        let text = format!("# All of them.\n\n{ACME}\n# The second.\n{globex}\n# The end.\n");
        let parts = split(Path::new("tenants.d/all.toml"), &text, &registry()).unwrap();
        assert_eq!(parts.iter().map(|(slug, _)| slug.as_str()).collect::<Vec<_>>(), ["acme", "globex"]);
        assert_eq!(parts.iter().map(|(_, text)| text.as_str()).collect::<String>(), text);
        assert!(parts.iter().all(|(slug, text)| faults(slug, text).is_empty()), "{parts:?}");
        let twice = format!("{ACME}{ACME}");
        assert!(split(Path::new("all.toml"), &twice, &registry()).is_err());
        let (acme_text, rest) = cut(&text, "acme").unwrap();
        assert_eq!((acme_text.len() + rest.len(), acme_text.contains("globex")), (text.len(), false));
        assert!(rest.contains("globex") && !rest.contains("acme.db"), "{rest}");
        assert_eq!(cut(&text, "other"), None);
        let inline = "tenant = [{ slug = \"acme\", name = \"Acme\", address = \"a.example\", \
            database = \"sqlite:a.db\", timezone = \"UTC\" }]\n";
        assert!(split(Path::new("all.toml"), inline, &registry()).is_err());
    }
}
