//! Postgres alone: statements that nobody but `pgbench` asks for.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use crate::order::Report;
use crate::postgres::Postgres;
use crate::process;
use crate::process::checked;
use crate::site::Site;
use crate::turns::{Begin, Contender, Watched};

pub(crate) struct Pgbench<'a> {
    name: &'static str,
    postgres: &'a Postgres,
    database: &'a str,
    clients: usize,
    script: PathBuf,
}

impl<'a> Pgbench<'a> {
    /// Statements, one a line, that together are a request.
    pub(crate) fn new(
        site: &Site,
        postgres: &'a Postgres,
        database: &'a str,
        name: &'static str,
        clients: usize,
        statements: &str,
    ) -> anyhow::Result<Self> {
        let script = site.folder.path().join(format!("{}.pgbench", name.replace([' ', ','], "-")));
        fs::write(&script, statements)?;
        Ok(Self { name, postgres, database, clients, script })
    }

    pub(crate) fn contender(&'a self, turn: f64) -> Contender<'a> {
        let watched = Watched { postgres: Some(&self.postgres.process), ..Watched::default() };
        Contender { name: self.name.to_owned(), watched, run: Box::new(move |begin| self.run(turn, begin)) }
    }

    /// It knows an average alone, which stands for the half here.
    fn run(&self, turn: f64, begin: Begin<'_>) -> anyhow::Result<Report> {
        let mut command = self.postgres.program("pgbench");
        command.args(["--no-vacuum", "--protocol=prepared", "--jobs=1"]);
        command.arg(format!("--client={}", self.clients)).arg(format!("--time={:.0}", turn.max(1.0)));
        command.arg("--file").arg(&self.script).arg(self.postgres.url(self.database));
        begin()?;
        let before = process::ended_children_cpu()?;
        let said = checked(&mut command)?;
        let number = |head: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(head));
            let word = line.and_then(|line| line.split_whitespace().next()).with_context(|| said.clone());
            anyhow::Ok(word?.parse::<f64>()?)
        };
        Ok(Report {
            requests: number("number of transactions actually processed:")? as u64,
            seconds: turn.round(),
            p50_ms: number("latency average =")?,
            caller_seconds: (process::ended_children_cpu()? - before).as_secs_f64(),
            ..Report::default()
        })
    }
}
