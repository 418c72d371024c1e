//! How URLs are parsed, and which are refused.

use super::*;

fn parse(text: &str) -> Result<PostgresServer, InvalidLocation> {
    super::parse(text, Omitted::FromEnvironment)
}

fn parsed(text: &str) -> String {
    parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).identity()
}

#[test]
fn the_identity_of_a_simple_url_is_that_of_the_parsed_one() {
    for text in [
        "postgres://app:secret@db.internal:5432/forms",
        "postgresql://app@10.0.0.1:6432/forms?sslmode=verify-full",
        "postgres://app:@[::1]:6432//forms",
        "postgres://app@db:6432/forms?sslmode=require&pooler=transaction",
        "postgres://app@db:6432/forms?schema=acme_1",
        "postgres://app@db:6432/forms?schema=Acme",
        "postgres://app@db:6432/forms?schema=public",
    ] {
        for omitted in [Omitted::FromEnvironment, Omitted::Fixed] {
            let server = super::parse(text, omitted).expect("a URL");
            assert_eq!(plain_identity(text, omitted), Some(server.identity()), "{text}");
        }
    }
    for text in [
        "postgres://app@db",
        "postgres://db/forms",
        "postgres://app:se%63ret@db/forms",
        "postgres://app@%2Frun%2Fpostgresql/forms",
        "postgres:///forms",
        "postgres://app@/forms",
        "postgres://app@db/forms?sslmode=maybe",
        "postgres://app@db/forms?host=other",
        "postgres://app@db/forms?sslmode=require&port=7",
        "postgres://app@db/forms?pooler=statement",
        "postgres://app@a,b/forms",
    ] {
        assert_eq!(plain_identity(text, Omitted::FromEnvironment), None, "{text}");
    }
}

#[test]
fn a_url_is_parsed_as_by_libpq() {
    for (text, identity) in [
        ("postgres://app@[::1]:6432/forms", "postgres ::1:6432/forms "),
        ("postgres://app@db:1/forms?schema=public", "postgres db:1/forms "),
        ("postgres://app@db:1/forms?schema=opt", "postgres db:1/forms  -c search_path=opt"),
        ("postgres://app@db:1/forms?options=-csearch_path%3DOpt", "postgres db:1/forms  -c search_path=opt"),
        ("postgres://app@db:1/forms?options[search_path]=%22Opt%22,%20b", "postgres db:1/forms  -c search_path=Opt,b"),
        ("postgres://app@[fe80::1%25eth0]:6432/forms", "postgres fe80::1%eth0:6432/forms "),
        ("postgres://app@[fe80::1%eth0]:6432/forms", "postgres fe80::1%eth0:6432/forms "),
        ("postgres://app@x:1/forms?hostaddr=::1&port=2&host=y", "postgres ::1:2/forms "),
        ("postgres://app@x:1/forms?host=[::1]", "postgres ::1:1/forms "),
        ("postgres:///forms?host=/run/postgresql&user=app&port=1", "postgres /run/postgresql:1/forms "),
        ("postgres://app@/forms?host=/run/postgresql&port=1", "postgres /run/postgresql:1/forms "),
        ("postgres://app:p%40ss@:1/forms?host=/run/postgresql", "postgres /run/postgresql:1/forms "),
        ("postgres://app@%2Frun%2Fpostgresql:1/forms", "postgres /run/postgresql:1/forms "),
        ("postgres://%2Frun%2Fpostgresql:1/forms", "postgres /run/postgresql:1/forms "),
        ("postgres://app@?host=/run/postgresql&port=1&dbname=forms", "postgres /run/postgresql:1/forms "),
        ("postgres://app@/forms?host=/cloudsql/p:r:i/&port=1", "postgres /cloudsql/p:r:i/:1/forms "),
        ("postgres://app@db:1/f%C3%BCr%20alle", "postgres db:1/für alle "),
        (
            "postgres://app@db:1/forms?options=-csearch_path%3Da endpoint%3Dep-x",
            "postgres db:1/forms endpoint=ep-x -c search_path=a",
        ),
        ("postgres://app@db:1/forms?options[search_path]=a", "postgres db:1/forms  -c search_path=a"),
    ] {
        assert_eq!(parsed(text), identity, "{text}");
    }
}

#[test]
fn the_user_and_the_password_are_decoded_and_a_socket_has_no_tls() {
    use sqlx::ConnectOptions as _;
    let server = parse("postgres://a%40b:p%2Fw+%25@/forms?host=/run/postgresql&sslmode=require").expect("a URL");
    let url = server.options().to_url_lossy();
    assert_eq!(server.options().get_username(), "a@b");
    assert_eq!(url.password(), Some("p%2Fw%2B%25"));
    assert!(url.query().expect("it has one").contains("sslmode=disable"), "{url}");
}

#[test]
fn the_application_name_is_taken_from_the_url() {
    let name = |parameters| {
        let server = parse(&format!("postgres://app@db/forms?{parameters}")).expect("a URL");
        server.options().get_application_name().map(str::to_owned)
    };
    assert_eq!(name("application_name=forms&fallback_application_name=other").as_deref(), Some("forms"));
    assert_eq!(name("fallback_application_name=other").as_deref(), Some("other"));
    assert_eq!(name("sslmode=prefer").as_deref(), Some("formgate"));
}

#[test]
fn parameters_that_providers_print_are_supported() {
    for parameters in [
        "sslmode=require&channel_binding=prefer&gssencmode=disable&connect_timeout=10",
        "target_session_attrs=read-write&sslnegotiation=postgres&load_balance_hosts=disable",
        "target_session_attrs=any&application_name=a&fallback_application_name=b&client_encoding=UTF8",
        "pgbouncer=true&pooler=session&statement-cache-capacity=0&sslcompression=0&sslsni=1",
        "ssl-mode=verify-full&ssl-ca=a&ssl-cert=b&ssl-key=c&hostaddr=::1&port=7&dbname=d&user=u&password=p",
        "sslrootcert=a&sslcert=b&sslkey=c&options[work_mem]=4MB&options=-c%20geqo%3Doff",
    ] {
        parsed(&format!("postgres://app@db/forms?{parameters}"));
    }
    for mode in SSL_MODES {
        parsed(&format!("postgres://app@db/forms?sslmode={mode}"));
    }
}

#[test]
fn unsupported_parameters_and_values_are_refused_by_name() {
    for (text, message) in [
        ("postgres://app@db/forms?sslmod=verify-full", "parameter 1 is unknown; there are: sslmode, "),
        ("postgres://app@db/forms?sslmode=require&conect_timeout=9", "parameter 2 is unknown; "),
        ("postgres://app@db/forms?options[work_mem=1", "parameter 1 is unknown; "),
        ("postgres://app@db/forms?=", "parameter 1 is unknown; "),
        ("postgres://app@db/forms?sslmode=full", "`sslmode`: expected disable, allow, "),
        ("postgres://app@db/forms?ssl-mode=", "`sslmode`: expected disable, allow, "),
        ("postgres://app@db/forms?port=65536", "`port`: expected a number up to 65535"),
        ("postgres://app@db/forms?hostaddr=db", "`hostaddr`: expected an IP address"),
        ("postgres://app@db/forms?host=d%20b", "`host`: expected a name, "),
        ("postgres://app@/forms?host=@abstract", "`host`: expected a name, "),
        ("postgres://app@db/forms?statement-cache-capacity=-1", "`statement-cache-capacity`: expected a number"),
        ("postgres://app@db/forms?channel_binding=require", "`channel_binding`: expected disable or prefer: "),
        ("postgres://app@db/forms?gssencmode=require", "`gssencmode`: expected disable or prefer: "),
        ("postgres://app@db/forms?sslnegotiation=direct", "`sslnegotiation`: expected postgres: "),
        ("postgres://app@db/forms?target_session_attrs=master", "`target_session_attrs`: expected any, "),
        ("postgres://app@db/forms?connect_timeout=soon", "`connect_timeout`: expected a number of seconds"),
        ("postgres://app@db/forms?pooler=statement", "`pooler`: expected transaction or session"),
        ("postgres://app@db/forms?pgbouncer=1", "`pgbouncer`: expected true or false"),
        ("postgres://app@db/forms?sslrootcert=system", "`sslrootcert`: expected the path of a PEM file"),
        ("postgres://app@db/forms?passfile=/x", "`passfile` is not supported: "),
        ("postgres://app@db/forms?service=x", "`service` is not supported: "),
        ("postgres://app@db/forms?keepalives_idle=30", "`keepalives_idle` is not supported: "),
        ("postgres://app@db/forms?connection_limit=1", "`connection_limit` is not supported: "),
        ("postgres://app@a,b/forms", "several hosts are not supported: "),
        ("postgres://app@a:1,b:2/forms", "several hosts are not supported: "),
        ("postgres://app@/forms?host=/a,/b", "several hosts are not supported: "),
        ("postgres://app@/forms?port=1,2", "several hosts are not supported: "),
        ("postgres://app:p@ss/w#?@db/forms", "not a Postgres URL"),
        ("postgres://app:p@ss/w@db/forms", "not a Postgres URL"),
        ("postgres://app:7#w@db/forms", "not a Postgres URL"),
        ("postgres://app:secret@db/forms#", "not a Postgres URL"),
        ("postgres://app:p/ss@db/forms", "not a Postgres URL"),
        ("postgres://app@db:65536/forms", "not a Postgres URL"),
        ("postgres://app@::1/forms", "not a Postgres URL"),
        ("postgres://app@[::1/forms", "not a Postgres URL"),
        ("postgres://app@[::1]x/forms", "not a Postgres URL"),
        ("postgres://app@[db]/forms", "not a Postgres URL"),
        ("postgres://app@db/%00", "not a Postgres URL"),
    ] {
        let error = parse(text).err().unwrap_or_else(|| panic!("{text} was taken")).to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
}
