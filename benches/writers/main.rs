//! The cost of the schema's triggers to programs that write forms and submissions by SQL.
//!
//! Two databases take turns, on Postgres and on SQLite: without triggers (`bare`), and with those of the schema, which only
//! note what was written (`noted`). Figures are CPU time of the database, except where a table says otherwise.

#![expect(clippy::print_stdout, reason = "the tables are the result")]

mod bulk;
mod database;
mod opening;
#[path = "../support/rounds.rs"]
mod rounds;
mod single;
mod statement;
mod writer;

/// The Postgres server of the tests.
#[path = "../../tests/it/support"]
#[allow(dead_code, reason = "the tests use all of it")]
mod support {
    pub(crate) mod child;
    pub(crate) mod folder;
    pub(crate) mod library;
    pub(crate) mod postgres;
}

use database::{Databases, Engine};

fn main() -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compare())
}

async fn compare() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut postgres = Databases::create(Engine::Postgres, folder.path()).await?;
    let mut sqlite = Databases::create(Engine::Sqlite, folder.path()).await?;
    opening::print(&mut postgres, &mut sqlite).await?;
    single::print([&mut postgres, &mut sqlite]).await?;
    bulk::print([&mut postgres, &mut sqlite]).await
}
