//! The ways in which the one tenant's database breaks, and how each of them ends.

use crate::support::database::Database;
use crate::support::postgres::Postgres;

/// A way to break.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// Nothing: how far apart two turns are anyway.
    None,
    /// The server crashed.
    Down,
    /// The server's processes stand still; its port is open.
    Hung,
    /// Reading forms takes 3 seconds.
    Slow,
    /// Somebody keeps the table of forms locked.
    Locked,
    /// Groups can't be written.
    Full,
}

impl Trouble {
    pub(crate) const ALL: [Self; 6] = [Self::None, Self::Down, Self::Hung, Self::Slow, Self::Locked, Self::Full];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "no trouble",
            Self::Down => "the server is down",
            Self::Hung => "the server hangs",
            Self::Slow => "statements take 3 s",
            Self::Locked => "a table is locked",
            Self::Full => "the disk is full",
        }
    }
}

/// The server and the database that break.
pub(crate) struct Broken {
    server: Postgres,
    url: String,
    lock: Option<Database>,
}

impl Broken {
    pub(crate) async fn new(server: Postgres, url: &str) -> Self {
        let broken = Self { server, url: url.to_owned(), lock: None };
        let full = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
            $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$";
        broken.execute(full).await;
        broken
    }

    pub(crate) async fn begin(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::None => {}
            Trouble::Down => self.server.crash(),
            Trouble::Hung => self.server.hang(true),
            Trouble::Slow => {
                self.execute(
                    "ALTER TABLE forms RENAME TO forms_table; \
                     CREATE VIEW forms AS SELECT f.* FROM pg_sleep(3) s LEFT JOIN forms_table f ON true",
                )
                .await;
            }
            Trouble::Locked => {
                let database = Database::connect(&self.url).await;
                database.execute("BEGIN; LOCK TABLE forms").await;
                self.lock = Some(database);
            }
            Trouble::Full => {
                self.execute("CREATE TRIGGER full_disk BEFORE INSERT ON groups EXECUTE FUNCTION full_disk()").await;
            }
        }
    }

    pub(crate) async fn end(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::None => {}
            Trouble::Down => self.server.recover(),
            Trouble::Hung => self.server.hang(false),
            Trouble::Slow => self.execute("DROP VIEW forms; ALTER TABLE forms_table RENAME TO forms").await,
            Trouble::Locked => self.lock.take().expect("it was locked").close().await,
            Trouble::Full => self.execute("DROP TRIGGER full_disk ON groups").await,
        }
    }

    async fn execute(&self, statements: &str) {
        let database = Database::connect(&self.url).await;
        database.execute(statements).await;
        database.close().await;
    }
}
