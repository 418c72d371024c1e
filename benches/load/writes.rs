//! What writing costs, compared with the least that the database can do it for.

mod groups;
mod imports;
mod triggers;

use crate::bench::Bench;
use crate::data::Folder;
use crate::postgres::Postgres;

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    let folder = Folder::open()?;
    let postgres = Postgres::start(folder.path())?;
    groups::measure(bench, &postgres)?;
    imports::measure(bench, &postgres)?;
    triggers::measure(bench, &postgres)
}
