//! A group of 50,000 members: the call, beside statements that write the same rows without looking at what is there.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection, SqliteConnection};

use crate::Bench;
use crate::data::{self, Engine};
use crate::gateway::{Gateway, Tenant};
use crate::order::{Order, Pace};
use crate::postgres::Postgres;
use crate::process;
use crate::report::{self, Goal};
use crate::rounds::Rounds;
use crate::site::{Account, Site};
use crate::target::Target;
use crate::turns::Generator;

const MEMBERS: usize = 50_000;

/// A database that the gateway writes, and one that statements write.
struct Pair {
    name: &'static str,
    account: Account,
    bare: Bare,
}

enum Bare {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

pub(super) fn measure(bench: &Bench, postgres: &Postgres) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut site = Site::make(0)?;
    let (mut pairs, mut tenants) = (Vec::new(), Vec::new());
    for engine in Engine::BOTH {
        let database = |name| -> anyhow::Result<String> {
            let url = engine.empty(postgres, &site, name)?;
            data::migrated(&site, "writing", &url)?;
            Ok(url)
        };
        let (ours, bare) = (database("load_ours")?, database("load_bare")?);
        let account = site.add(engine.name(), &ours)?;
        tenants.push(Tenant { slug: account.slug.clone(), database: ours, requests: 100_000 });
        pairs.push(Pair { name: engine.name(), account, bare: runtime.block_on(Bare::connect(&bare))? });
    }
    let node = Gateway { name: "formgate", redis: None, window_seconds: 1, tenants }.start(&site)?;
    println!("\nPUT /group of {MEMBERS} members, seconds (load {})\n", process::load());
    println!("| database | members | formgate | bare statements | ratio | spread |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    let mut goals = Vec::new();
    for pair in &mut pairs {
        let mut figures = [(); 2].map(|()| (Rounds::default(), Rounds::default()));
        // The first round is not counted: it makes people for the next one to replace its own with.
        for round in 0..=bench.rounds {
            for (again, (ours, bare)) in figures.iter_mut().enumerate() {
                let people = emails(round - again.min(round));
                let called = put(bench, &node, &pair.account, round, &people)?;
                let written = runtime.block_on(pair.bare.put(round, &people))?;
                if round > 0 {
                    ours.push(called);
                    bare.push(written.as_secs_f64());
                }
            }
        }
        for ((ours, bare), what) in figures.iter().zip(["all of them new", "all of them replaced"]) {
            let (ratio, spread) = (ours.ratio_to(bare), ours.spread());
            println!(
                "| {} | {what} | {:.2} | {:.2} | {ratio:.2} | {spread:.0} % |",
                pair.name,
                ours.median(),
                bare.median()
            );
            goals.push(Goal::at_most(3.0, format!("PUT /group : bare statements, {}, {what}", pair.name), ratio));
        }
    }
    report::print_goals(&goals);
    Ok(())
}

fn emails(round: usize) -> Vec<String> {
    (0..MEMBERS).map(|n| format!("person{n}.of{round}@mail.test")).collect()
}

/// Seconds of one call, over a connection of its own.
fn put(bench: &Bench, node: &Target, account: &Account, round: usize, people: &[String]) -> anyhow::Result<f64> {
    let members: Vec<_> = people.iter().map(|email| json!({"email": email, "name": "Person"})).collect();
    let body = json!({"external_id": format!("g{round}"), "name": format!("Group {round}"), "members": members});
    let request = account.ask("PUT", "/group").with(body.to_string());
    let order = Order { connections: 1, pace: Pace::Held, ..bench.order(node, vec![request]) };
    let mut generator = Generator::start(&order)?;
    generator.begun()?;
    let report = generator.finish()?;
    ensure!(report.statuses.keys().all(|status| [200, 201].contains(status)), "{:?}", report.statuses);
    Ok(report.p50_ms / 1e3)
}

impl Bare {
    async fn connect(url: &str) -> anyhow::Result<Self> {
        Ok(if url.starts_with("postgres:") {
            Self::Postgres(PgConnection::connect(url).await?)
        } else {
            let mut connection = SqliteConnection::connect(url).await?;
            connection.execute("PRAGMA synchronous = NORMAL").await?;
            Self::Sqlite(connection)
        })
    }

    /// Writes the rows that the call writes.
    async fn put(&mut self, round: usize, people: &[String]) -> anyhow::Result<Duration> {
        let (group, external_id) = (format!("Group {round}"), format!("g{round}"));
        let made = "INSERT INTO groups (name, external_id, managed) VALUES ($1, $2, true) ON CONFLICT (external_id) \
            WHERE external_id IS NOT NULL DO NOTHING";
        let gone = "DELETE FROM group_members WHERE group_id = (SELECT id FROM groups WHERE external_id = $1)";
        let began = Instant::now();
        match self {
            Self::Postgres(connection) => {
                let mut all = connection.begin().await?;
                sqlx::query(made).bind(&group).bind(&external_id).execute(&mut *all).await?;
                sqlx::query(gone).bind(&external_id).execute(&mut *all).await?;
                let users = "INSERT INTO users (email, name) \
                    SELECT email, 'Person' FROM unnest($1::text[]) AS p (email) \
                    ON CONFLICT (email_folded) DO NOTHING";
                sqlx::query(users).bind(people).execute(&mut *all).await?;
                let members = "INSERT INTO group_members SELECT g.id, u.id FROM groups g, users u \
                    WHERE g.external_id = $1 AND u.email_folded = ANY ($2)";
                sqlx::query(members).bind(&external_id).bind(people).execute(&mut *all).await?;
                all.commit().await?;
            }
            Self::Sqlite(connection) => {
                let people = serde_json::to_string(people)?;
                let mut all = connection.begin().await?;
                sqlx::query(made).bind(&group).bind(&external_id).execute(&mut *all).await?;
                sqlx::query(gone).bind(&external_id).execute(&mut *all).await?;
                let users = "INSERT INTO users (email, name, email_folded) \
                    SELECT value, 'Person', value FROM json_each($1) \
                    WHERE true ON CONFLICT (email_folded) DO NOTHING";
                sqlx::query(users).bind(&people).execute(&mut *all).await?;
                let members = "INSERT INTO group_members SELECT g.id, u.id FROM groups g, json_each($2) p, users u \
                    WHERE g.external_id = $1 AND u.email_folded = p.value";
                sqlx::query(members).bind(&external_id).bind(&people).execute(&mut *all).await?;
                all.commit().await?;
            }
        }
        Ok(began.elapsed())
    }
}
