//! A group of 50,000 members: the call, beside statements that write the same rows without looking at what is there.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection, SqliteConnection};
use tokio::runtime::Runtime;

use crate::account::Account;
use crate::bench::Bench;
use crate::data::{self, Engine};
use crate::gateway::{Gateway, Tenant};
use crate::order::{Order, Pace, Request};
use crate::postgres::Postgres;
use crate::process;
use crate::report::{self, Goal};
use crate::rounds::Rounds;
use crate::site::Site;
use crate::target::Target;
use crate::turns::Generator;

const MEMBERS: usize = 50_000;

/// The small groups that a node writes before a directory's first list, which is often enough for Postgres to keep the plans
/// of what it looks up for a foreign key.
const SMALL_GROUPS: usize = 8;

/// How many members SCIM adds with each call, as directories do for a large group.
const MEMBERS_OF_PATCH: usize = 1_000;

/// What a call took in each round, beside what the statements took.
struct Row {
    database: &'static str,
    members: &'static str,
    called: Rounds,
    written: Rounds,
}

impl Row {
    fn new(engine: Engine, members: &'static str) -> Self {
        Self { database: engine.name(), members, called: Rounds::default(), written: Rounds::default() }
    }
}

pub(super) fn measure(bench: &Bench, postgres: &Postgres) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for engine in Engine::BOTH {
        rows.push(first_lists(bench, postgres, engine)?);
        rows.extend(lists(bench, postgres, engine)?);
    }
    println!("\nPUT /group of {MEMBERS} members, seconds (load {})\n", process::load());
    println!("| database | members | formgate | bare statements | ratio | spread |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    let mut goals = Vec::new();
    for Row { database, members, called, written } in &rows {
        let (ratio, spread) = (called.ratio_to(written), called.spread());
        let (took, least) = (called.median(), written.median());
        println!("| {database} | {members} | {took:.2} | {least:.2} | {ratio:.2} | {spread:.0} % |");
        goals.push(Goal::at_most(3.0, format!("PUT /group : bare statements, {database}, {members}"), ratio));
    }
    println!(
        "\n{MEMBERS} members that are users, by SCIM in calls of {MEMBERS_OF_PATCH}, seconds (load {})\n",
        process::load()
    );
    println!("| database | SCIM | PUT /group | ratio | spread |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for engine in Engine::BOTH {
        let [scim, put] = by_scim(bench, postgres, engine)?;
        let (name, ratio, spread) = (engine.name(), scim.ratio_to(&put), scim.spread());
        println!("| {name} | {:.2} | {:.2} | {ratio:.2} | {spread:.0} % |", scim.median(), put.median());
        goals.push(Goal::at_most(1.5, format!("members by SCIM : by one PUT /group, {name}"), ratio));
    }
    report::print_goals(&goals);
    Ok(())
}

/// The same members, who are users already: of a group of SCIM in calls of a thousand, and of another group in one `PUT /group`.
fn by_scim(bench: &Bench, postgres: &Postgres, engine: Engine) -> anyhow::Result<[Rounds; 2]> {
    let mut pair = Pair::make(postgres, engine, None)?;
    let (people, mut rows) = (emails(0), [Rounds::default(), Rounds::default()]);
    pair.call(bench, 0, &people)?;
    for round in 1..=bench.rounds {
        let users = pair.begin_group_of_scim(round)?;
        ensure!(users.len() == MEMBERS, "there are {} users", users.len());
        let mut took = 0.0;
        for users in users.chunks(MEMBERS_OF_PATCH) {
            let members: Vec<_> = users.iter().map(|id| json!({"value": format!("usr_{id}")})).collect();
            let operations = json!([{"op": "Add", "path": "members", "value": members}]);
            let body = json!({"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": operations});
            let path = format!("/scim/v2/Groups/grp_{}", group_of_scim(round));
            let request = Request { path, ..pair.account.ask("PATCH", "").with(body.to_string()) };
            took += pair.ask(bench, request, &[204])?;
        }
        rows[0].push(took);
        rows[1].push(pair.call(bench, round, &people)?);
    }
    Ok(rows)
}

/// The id of the group that SCIM fills in a round.
fn group_of_scim(round: usize) -> usize {
    1_000_000 + round
}

/// A list of new users, and then the same group with others in their place, who are there.
fn lists(bench: &Bench, postgres: &Postgres, engine: Engine) -> anyhow::Result<[Row; 2]> {
    let mut rows = ["all of them new", "all of them replaced"].map(|members| Row::new(engine, members));
    let mut pair = Pair::make(postgres, engine, None)?;
    // The first round is not counted: it makes people for the next one to replace its own with.
    for round in 0..=bench.rounds {
        for (again, row) in rows.iter_mut().enumerate() {
            let people = emails(round - again.min(round));
            let called = pair.call(bench, round, &people)?;
            let written = pair.write(round, &people)?;
            if round > 0 {
                row.called.push(called);
                row.written.push(written);
            }
        }
    }
    Ok(rows)
}

/// The first list of a directory, where an import counted a few users and nobody has counted since: each round in a database
/// of its own.
fn first_lists(bench: &Bench, postgres: &Postgres, engine: Engine) -> anyhow::Result<Row> {
    let mut row = Row::new(engine, "all of them new, where few were expected");
    let few: String =
        (1..=8).map(|id| format!("{{\"type\":\"user\",\"id\":{id},\"email\":\"few{id}@mail.test\"}}\n")).collect();
    for _ in 0..bench.rounds {
        let mut pair = Pair::make(postgres, engine, Some(&few))?;
        for at in 1..=SMALL_GROUPS {
            pair.call(bench, at, &emails(at)[..3])?;
        }
        let people = emails(0);
        row.called.push(pair.call(bench, 0, &people)?);
        row.written.push(pair.write(0, &people)?);
    }
    Ok(row)
}

fn emails(round: usize) -> Vec<String> {
    (0..MEMBERS).map(|n| format!("person{n}.of{round}@mail.test")).collect()
}

/// A database that a node writes, and one that statements write.
struct Pair {
    account: Account,
    ours: String,
    node: Target,
    bare: Bare,
    runtime: Runtime,
    _site: Site,
}

impl Pair {
    /// Makes both, and imports the same lines into them.
    fn make(postgres: &Postgres, engine: Engine, lines: Option<&str>) -> anyhow::Result<Self> {
        let (runtime, mut site) = (Runtime::new()?, Site::make(0)?);
        let database = |name| -> anyhow::Result<String> {
            let url = engine.empty(postgres, &site, name)?;
            let config = data::migrated(&site, "writing", &url)?;
            if let Some(lines) = lines {
                data::import(&config, "writing", |out| out.write_all(lines.as_bytes()))?;
            }
            Ok(url)
        };
        let (ours, bare) = (database("load_ours")?, database("load_bare")?);
        let account = site.add(engine.name(), &ours)?;
        let tenants = vec![Tenant { slug: account.slug.clone(), database: ours.clone(), requests: 100_000 }];
        let node = Gateway { name: "formgate", redis: None, window_seconds: 1, tenants }.start(&site.folder)?;
        let bare = runtime.block_on(Bare::connect(&bare))?;
        Ok(Self { account, ours, node, bare, runtime, _site: site })
    }

    /// Seconds of one call, over a connection of its own.
    fn call(&self, bench: &Bench, group: usize, people: &[String]) -> anyhow::Result<f64> {
        let members: Vec<_> = people.iter().map(|email| json!({"email": email, "name": "Person"})).collect();
        let body = json!({"external_id": format!("g{group}"), "name": format!("Group {group}"), "members": members});
        self.ask(bench, self.account.ask("PUT", "/group").with(body.to_string()), &[200, 201])
    }

    /// Creates a group without members that belongs to SCIM. Returns the ids of all users.
    fn begin_group_of_scim(&mut self, round: usize) -> anyhow::Result<Vec<i64>> {
        let id = group_of_scim(round);
        let statements = |now| {
            format!(
                "INSERT INTO groups (id, name, managed) VALUES ({id}, 'Group {id}', TRUE);
                 INSERT INTO directory_groups (group_id, created_at, updated_at) VALUES ({id}, {now}, {now})"
            )
        };
        let users = "SELECT id FROM users ORDER BY id";
        self.runtime.block_on(async {
            Ok(match Bare::connect(&self.ours).await? {
                Bare::Postgres(mut connection) => {
                    connection.execute(sqlx::AssertSqlSafe(statements("now()"))).await?;
                    sqlx::query_scalar(users).fetch_all(&mut connection).await?
                }
                Bare::Sqlite(mut connection) => {
                    connection.execute(sqlx::AssertSqlSafe(statements("1"))).await?;
                    sqlx::query_scalar(users).fetch_all(&mut connection).await?
                }
            })
        })
    }

    /// Seconds of one request, over a connection of its own.
    fn ask(&self, bench: &Bench, request: Request, expected: &[u16]) -> anyhow::Result<f64> {
        let order = Order { connections: 1, pace: Pace::Held, ..bench.order(&self.node, vec![request]) };
        let mut generator = Generator::start(&order)?;
        generator.begun()?;
        let report = generator.finish()?;
        ensure!(report.statuses.keys().all(|status| expected.contains(status)), "{:?}", report.statuses);
        Ok(report.p50_ms / 1e3)
    }

    /// Seconds of the statements that write the rows of that call.
    fn write(&mut self, group: usize, people: &[String]) -> anyhow::Result<f64> {
        Ok(self.runtime.block_on(self.bare.put(group, people))?.as_secs_f64())
    }
}

enum Bare {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
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
                // In this order: with few users expected, it would read all people for each of them.
                let members = "INSERT INTO group_members SELECT g.id, u.id FROM groups g \
                    CROSS JOIN json_each($2) p CROSS JOIN users u ON u.email_folded = p.value WHERE g.external_id = $1";
                sqlx::query(members).bind(&external_id).bind(&people).execute(&mut *all).await?;
                all.commit().await?;
            }
        }
        Ok(began.elapsed())
    }
}
