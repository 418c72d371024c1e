//! The ways in which a URL names a Postgres server.

use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};
use crate::support::folder;
use crate::support::postgres::Postgres;

fn site(url: &str) -> Site {
    Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", url)).write()
}

#[tokio::test]
async fn an_ipv6_literal_and_a_socket_are_connected_to() {
    let sockets = folder::temporary("sockets");
    let folder = sockets.path().to_str().expect("the temporary folder has a UTF-8 name");
    std::fs::set_permissions(sockets.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    let sockets_are_in = format!("unix_socket_directories={folder}");
    let server = Postgres::start_with(&["listen_addresses=::1,127.0.0.1", &sockets_are_in]);
    let (port, encoded) = (server.port(), folder.replace('/', "%2F"));
    server.execute("CREATE DATABASE forms");
    for url in [
        format!("postgres://postgres@[::1]:{port}/forms"),
        format!("postgres://postgres@[0:0:0:0:0:0:0:1]:{port}/forms?sslmode=disable"),
        format!("postgres://postgres@nowhere.invalid:1/forms?hostaddr=::1&port={port}"),
        format!("postgres:///forms?host={folder}&port={port}&user=postgres"),
        format!("postgres://postgres@/forms?host={folder}&port={port}&sslmode=require"),
        format!("postgresql://postgres:secret@/forms?host={folder}&port={port}"),
        format!("postgres://postgres@:{port}/forms?host={folder}/"),
        format!("postgres://postgres@{encoded}:{port}/forms"),
        format!("postgres://postgres@{encoded}/forms?port={port}&connect_timeout=10&gssencmode=disable"),
        format!("postgres://postgres@localhost:{port}/forms?channel_binding=prefer&target_session_attrs=read-write"),
    ] {
        let migrated = site(&url).run(&["migrate"], b"");
        assert_eq!(migrated.code, 0, "{url}: {migrated:?}");
    }
}

#[tokio::test]
async fn a_server_without_the_wanted_attributes_is_refused() {
    let primary = Postgres::start_replicated();
    let database = primary.new_database();
    site(&database).migrate();
    let standby = primary.start_standby();
    let name = database.rsplit_once('/').expect("the URL of a database").1;
    let check = |server: &Postgres, wanted: &str| {
        let url = format!("{}?target_session_attrs={wanted}", server.url(name));
        site(&url).run(&["check"], b"")
    };
    for (wanted, on_primary, on_standby) in [
        ("any", 0, 0),
        ("read-write", 0, 1),
        ("primary", 0, 1),
        ("read-only", 1, 0),
        ("standby", 1, 0),
        ("prefer-standby", 0, 0),
    ] {
        assert_eq!(check(&primary, wanted).code, on_primary, "{wanted}");
        let checked = check(&standby, wanted);
        assert_eq!(checked.code, on_standby, "{wanted}: {checked:?}");
        if on_standby == 1 {
            let told = format!("target_session_attrs={wanted}");
            assert!(checked.stdout.contains(&told), "{checked:?}");
            assert!(checked.stdout.contains("name a server of that kind"), "{checked:?}");
        }
    }
}

#[tokio::test]
async fn a_session_has_the_application_name_of_the_url() {
    let database = Postgres::database();
    let site = site(&format!("{database}?application_name=forms&connect_timeout=3"));
    site.migrate();
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&site.token("acme", "tests"));
    assert_eq!(client.get("/api/v1/form").send().await.status, 200);
    let names = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database() \
        AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    assert_eq!(Database::connect(&database).await.texts(names).await, ["forms"]);
}

#[tokio::test]
async fn a_parameter_that_would_be_ignored_is_refused_by_its_name() {
    for (parameter, told) in [
        ("channel_binding=require", "`channel_binding`: expected disable or prefer"),
        ("keepalives_idle=30", "`keepalives_idle` is not supported"),
        ("passfile=/secret-3f1b", "`passfile` is not supported"),
        ("secret-3f1b=1", "parameter 1 is unknown"),
    ] {
        let checked = site(&format!("postgres://app:secret-3f1b@127.0.0.1:1/forms?{parameter}")).run(&["check"], b"");
        assert_eq!(checked.code, 1, "{checked:?}");
        assert!(checked.stdout.contains(told), "{checked:?}");
        assert!(!format!("{checked:?}").contains("secret-3f1b"), "{checked:?}");
    }
}
