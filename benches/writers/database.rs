//! The databases that are compared: one engine, with and without triggers, the same rows.

use std::fmt;
use std::path::Path;

use formgate::store::{self, DatabaseLocation, Reach};

use crate::statement::{
    ELEMENT, ELEMENTS, FORMS, INSERT_ANSWER, INSERT_LABEL, INSERT_SUBMISSION, PARENT, SEEDED, for_all,
};
use crate::support::postgres::Postgres;
use crate::writer::Writer;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Postgres,
    Sqlite,
}

impl fmt::Display for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Postgres => "Postgres",
            Self::Sqlite => "SQLite",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Triggers {
    /// There are none.
    Bare,
    /// They append the ids of submissions to `intake`.
    Noted,
}

pub(crate) struct Database {
    pub(crate) triggers: Triggers,
    pub(crate) url: String,
    pub(crate) writer: Writer,
}

pub(crate) struct Databases {
    pub(crate) engine: Engine,
    pub(crate) bare: Database,
    pub(crate) noted: Database,
}

/// Returns the statements that drop all triggers except those of foreign keys.
const DROP_TRIGGERS_OF_POSTGRES: &str = "SELECT string_agg(format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass), ';') \
    FROM pg_trigger WHERE NOT tgisinternal";
const DROP_TRIGGERS_OF_SQLITE: &str =
    "SELECT group_concat('DROP TRIGGER ' || name, ';') FROM sqlite_schema WHERE type = 'trigger'";

impl Databases {
    pub(crate) async fn create(engine: Engine, folder: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            engine,
            bare: Database::create(engine, Triggers::Bare, folder).await?,
            noted: Database::create(engine, Triggers::Noted, folder).await?,
        })
    }

    pub(crate) fn each(&mut self) -> [&mut Database; 2] {
        [&mut self.bare, &mut self.noted]
    }
}

impl Database {
    async fn create(engine: Engine, triggers: Triggers, folder: &Path) -> anyhow::Result<Self> {
        let (url, drop_triggers) = match engine {
            Engine::Postgres => (Postgres::database(), DROP_TRIGGERS_OF_POSTGRES),
            Engine::Sqlite => {
                let file = folder.join(format!("{triggers:?}.db"));
                (format!("sqlite:{}", file.display()), DROP_TRIGGERS_OF_SQLITE)
            }
        };
        store::migrate(&DatabaseLocation::parse(&url, folder)?, Reach::Newest).await?;
        let mut writer = Writer::connect(&url).await?;
        if triggers == Triggers::Bare {
            let drop = writer.text(drop_triggers).await?;
            writer.execute(&drop).await?;
        }
        let mut rows = FORMS.to_owned() + ";" + &for_all(engine, ELEMENT, &(1..ELEMENTS + 1));
        rows += &for_all(engine, PARENT, &(1..2));
        for statement in [INSERT_SUBMISSION, INSERT_ANSWER, INSERT_LABEL] {
            rows += &for_all(engine, statement, &SEEDED);
        }
        writer.execute(&rows).await?;
        Ok(Self { triggers, url, writer })
    }
}
