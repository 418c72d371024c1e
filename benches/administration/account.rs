//! The account: its rows, and administrators who are signed in.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::Sizes;
use crate::postgres_server::Postgres;
use crate::world::{FILES, PLAIN, PROGRAM, World};

/// How many sessions there are. Larger: nothing. Smaller: a session opens more pages than it may.
pub(crate) const SESSIONS: usize = 100;

/// How many tokens are active in each hour.
const ACTIVE: usize = 50;

const DATABASE: &str = "administration";

impl World {
    pub(crate) fn on_sqlite() -> anyhow::Result<Self> {
        Self::of(FILES)
    }

    pub(crate) fn on_postgres(server: &Postgres) -> anyhow::Result<Self> {
        server.execute("postgres", &[&format!("CREATE DATABASE {DATABASE}0")])?;
        Self::of([&server.url(DATABASE), ""])
    }

    fn of(url: [&str; 2]) -> anyhow::Result<Self> {
        let world = Self::new(Path::new(PROGRAM), 1, url)?;
        let tenant = world.tenants(1, "timezone = \"Europe/Berlin\"\n");
        world.write(&world.config(), &format!("{PLAIN}[gateway.administration]\n"), &tenant)?;
        world.formgate(&["migrate"])?;
        Ok(world)
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.is_sqlite() { "SQLite" } else { "Postgres" }
    }

    /// Inserts the rows, by the database itself.
    pub(crate) async fn fill(&self, sizes: &Sizes) -> anyhow::Result<()> {
        let now = jiff::Timestamp::now().as_second();
        let hour = now - now % 3600;
        // An instant, of seconds since 1970.
        let at = |seconds: &str| match self.is_sqlite() {
            true => format!("({seconds}) * 1000000"),
            false => format!("to_timestamp({seconds})"),
        };
        let join = if self.is_sqlite() { "group_concat" } else { "string_agg" };
        let digest = if self.is_sqlite() { "randomblob(32)" } else { "sha256(n::text::bytea)" };
        let numbers = |name: &str, count: usize| {
            format!("{name}(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM {name} WHERE n < {count})")
        };
        let mut statements = vec![
            format!(
                "WITH RECURSIVE {} INSERT INTO tokens (name, prefix, digest, created_at, last_used_at, created_by) \
                 SELECT 'Token ' || n, 'fg_' || n, {digest}, {}, {}, 'ana@example.com' FROM numbers",
                numbers("numbers", sizes.tokens),
                at("1700000000"),
                at(&format!("{hour} - n * 600")),
            ),
            // Other tokens in each hour, but for ten that are always active.
            format!(
                "WITH RECURSIVE {}, {} INSERT INTO token_hours (hour, counts) \
                 SELECT {}, '[' || {join}('[' || CASE WHEN tokens.n <= 10 THEN tokens.n ELSE (hours.n * 13 + tokens.n) % {} + 11 END \
                 || ',' || ((hours.n * 7 + tokens.n * 31) % 300 + 1) || ',' || ((hours.n + tokens.n) % 40 / 39) || ']', ',') || ']' \
                 FROM hours, tokens GROUP BY hours.n",
                numbers("hours", sizes.days * 24),
                numbers("tokens", ACTIVE),
                at(&format!("{hour} - (hours.n - 1) * 3600")),
                sizes.tokens - 11,
            ),
            format!(
                "WITH RECURSIVE {} INSERT INTO audit_log (id, at, actor, source, network, action, subject, details, digest) \
                 SELECT n, {}, 'ana@example.com', 'administration', '192.0.2.0/24', 'token.create', 'token ' || n, \
                 '{{\"name\":\"Token\",\"prefix\":\"fg_12345\"}}', {digest} FROM numbers",
                numbers("numbers", sizes.audit),
                at("1700000000 + n * 60"),
            ),
        ];
        for session in 0..SESSIONS {
            let digest: String = Sha256::digest(secret(session)).iter().map(|byte| format!("{byte:02x}")).collect();
            let digest = if self.is_sqlite() { format!("X'{digest}'") } else { format!("'\\x{digest}'") };
            let (now, end) = (at(&now.to_string()), at(&(now + 36_000).to_string()));
            statements.push(format!(
                "INSERT INTO admin_sessions (digest, email, role, created_at, last_seen_at, expires_at, network, user_agent) \
                 VALUES ({digest}, 'ana@example.com', 'admin', {now}, {now}, {end}, '192.0.2.0/24', 'bench')"
            ));
        }
        // As autovacuum does in time on a server that runs all day.
        statements.push("ANALYZE".to_owned());
        self.execute(&statements).await
    }

    async fn execute(&self, statements: &[String]) -> anyhow::Result<()> {
        if self.is_sqlite() {
            let options = SqliteConnectOptions::new().filename(self.file(0));
            let mut connection: SqliteConnection = options.connect().await?;
            for statement in statements {
                sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut connection).await?;
            }
            connection.close().await?;
        } else {
            let mut connection = PgConnection::connect(&self.database_url(0)).await?;
            for statement in statements {
                sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut connection).await?;
            }
            connection.close().await?;
        }
        Ok(())
    }

    /// A request for a page, of one of the administrators.
    pub(crate) fn request(&self, page: &str, session: usize) -> String {
        let cookie = URL_SAFE_NO_PAD.encode(secret(session));
        format!("GET {page} HTTP/1.1\r\nhost: t0.example.com\r\ncookie: __Host-formgate={cookie}\r\n\r\n")
    }

    fn is_sqlite(&self) -> bool {
        self.database_url(0).starts_with("sqlite:")
    }
}

/// The secret in the cookie of a session.
fn secret(session: usize) -> [u8; 32] {
    Sha256::digest(session.to_string()).into()
}
