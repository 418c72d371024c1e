//! What reading costs, and one small write: the gateway, the peer that a team would build, and Postgres alone; and what
//! it costs on SQLite.
//!
//! Gateway and peer have their windows in Redis, of a second each, since one account is asked as often here as a
//! thousand are elsewhere.

mod sqlite;

pub(crate) use sqlite::{ROLE as BARE_ROLE, run as run_bare};

use crate::account::Account;
use crate::bench::{Bench, number};
use crate::data::{self, Folder};
use crate::fastify;
use crate::gateway::{self, Gateway, Tenant};
use crate::order::{Order, Request};
use crate::pgbench::Pgbench;
use crate::postgres::Postgres;
use crate::report::{self, Goal};
use crate::site::Site;
use crate::target::Target;
use crate::turns::{self, Contender, Figures};

/// How many submissions the databases have: goals stand for all three.
const SIZES: [i64; 3] = [10_000, 100_000, 1_000_000];

/// The size at which everything but the first page is read.
const MIDDLE: i64 = 100_000;

/// The keywords that are searched for: two in 20 submissions, one in 1 %.
const KEYWORDS: [&str; 3] = ["wxqzkjvb", "delivery", "zqv"];

/// Requests at once for what is short, more than either side has connections to a database.
const MANY: usize = 32;

/// Requests at once for what takes the database longer, as many as either side has connections to it.
const FEW: usize = 8;

/// Above what either side answers.
const LIMIT: u32 = 100_000;

struct World {
    // In the order in which they end: the servers before what they read from.
    gateway: Target,
    peer: Target,
    /// Another build of the program.
    before: Option<Target>,
    postgres: Postgres,
    site: Site,
    sizes: Vec<Size>,
}

struct Size {
    submissions: i64,
    account: Account,
    /// Submissions that it has.
    listed: Vec<i64>,
    /// The peer's database.
    plain: String,
}

pub(crate) fn run(bench: &Bench) -> anyhow::Result<()> {
    let folder = Folder::open()?;
    let largest = number("LARGEST", SIZES[2])?;
    let world = World::make(&folder, SIZES.into_iter().filter(|size| *size <= largest))?;
    for size in &world.sizes {
        world.first_page(bench, size)?;
    }
    if let Some(size) = world.sizes.iter().find(|size| size.submissions == MIDDLE) {
        world.the_rest(bench, size)?;
        sqlite::measure(bench, &folder)?;
    }
    Ok(())
}

impl World {
    fn make(folder: &Folder, sizes: impl Iterator<Item = i64>) -> anyhow::Result<Self> {
        let mut site = Site::make(0)?;
        let postgres = Postgres::start(folder.path())?;
        let (mut tenants, mut peers, mut made) = (Vec::new(), Vec::new(), Vec::new());
        for submissions in sizes {
            let (ours, theirs) = data::databases(&postgres, &site, submissions)?;
            let account = site.add(&format!("t{submissions}"), &postgres.url(&ours))?;
            tenants.push(Tenant { slug: account.slug.clone(), database: postgres.url(&ours), requests: LIMIT });
            peers.push((account.clone(), postgres.url(&theirs)));
            made.push(Size { submissions, account, listed: data::listed(&postgres, &ours)?, plain: theirs });
        }
        let node = |name, tenants| Gateway { name, redis: Some(site.redis_url()), window_seconds: 1, tenants };
        let before = gateway::before()
            .map(|program| node("before", tenants.clone()).start_from(&program, &site.folder))
            .transpose()?;
        let (gateway, peer) =
            (node("formgate", tenants).start(&site.folder)?, fastify::start(&site, &peers, LIMIT, 1000)?);
        Ok(Self { site, postgres, gateway, peer, before, sizes: made })
    }

    fn first_page(&self, bench: &Bench, size: &Size) -> anyhow::Result<()> {
        let script = |name, text: String| Pgbench::new(&self.site, &self.postgres, &size.plain, name, FEW, &text);
        let alone = script("pgbench, page alone", format!("{};\n", page_statement()))?;
        let count = "SELECT count(*) FROM submissions s WHERE NOT s.draft;\n";
        let both = script("pgbench, page and count", format!("{};\n{count}", page_statement()))?;
        let request = vec![size.account.ask("POST", "/submission").with("{}")];
        let mut contenders = self.contenders(bench, FEW, &request);
        contenders.splice(2..2, [alone.contender(bench.turn), both.contender(bench.turn)]);
        let figures = turns::rounds(&contenders, bench.rounds)?;
        let submissions = size.submissions;
        report::print(bench, &format!("POST /submission, the first page of {submissions}, exact total"), &figures);
        let [gateway, peer, alone, ..] = &figures[..] else { unreachable!("as many as there are contenders") };
        let times = match submissions {
            10_000 => 1.7,
            100_000 => 8.0,
            _ => 60.0,
        };
        report::print_goals(&[
            Goal::at_least(times, "requests/s, formgate : Fastify", gateway.rate.ratio_to(&peer.rate)),
            Goal::at_most(
                1.1,
                "CPU of Postgres, formgate : pgbench's page alone",
                gateway.postgres.ratio_to(&alone.postgres),
            ),
            Goal::at_most(150.0, "own CPU of formgate, µs a request", gateway.own.median()),
        ]);
        Ok(())
    }

    fn the_rest(&self, bench: &Bench, size: &Size) -> anyhow::Result<()> {
        let one = |id: &i64| size.account.ask("GET", &format!("/submission/{id}"));
        let keyword = |word: &&str| size.account.ask("POST", "/submission").with(format!("{{\"search\":{word:?}}}"));
        let cases = [
            ("GET /form, 50 forms", MANY, vec![size.account.ask("GET", "/form")]),
            ("GET /submission/{id}", MANY, size.listed.iter().map(one).collect()),
            (
                "POST /submission with a keyword, 8 and 3 characters, 20 or 1 % match",
                FEW,
                KEYWORDS.iter().map(keyword).collect(),
            ),
            ("PUT /group with 50 members, 5 of them replaced", FEW, (0..400).map(|n| self.group(size, n)).collect()),
        ];
        for (title, connections, requests) in cases {
            let figures = turns::rounds(&self.contenders(bench, connections, &requests), bench.rounds)?;
            report::print(
                bench,
                &format!("{title}, {} submissions, {connections} connections", size.submissions),
                &figures,
            );
            report::print_goals(&against_peer(&figures));
        }
        Ok(())
    }

    /// Two hundred groups, of which each is sent twice: with 50 people, then with 5 of them replaced.
    fn group(&self, size: &Size, n: i64) -> Request {
        let (group, version) = (n % 200, n / 200);
        let email = |member: i64| format!("user{}@mail.test", (group * 50 + member + version * 5) % 5000 + 1);
        let members: Vec<_> = (0..50).map(|n| serde_json::json!({"email": email(n), "name": "User"})).collect();
        let (external_id, name) = (format!("g{group}"), format!("Group {group}"));
        let body = serde_json::json!({"external_id": external_id, "name": name, "members": members});
        size.account.ask("PUT", "/group").with(body.to_string())
    }

    /// The gateway, the peer, and then the other build of the program.
    fn contenders(&self, bench: &Bench, connections: usize, requests: &[Request]) -> Vec<Contender<'_>> {
        let targets = [&self.gateway, &self.peer].into_iter().chain(&self.before);
        let contender = |target| {
            let order = Order { connections, ..bench.order(target, requests.to_vec()) };
            turns::against(target, Some(&self.site.redis), Some(&self.postgres.process), order)
        };
        targets.map(contender).collect()
    }
}

fn against_peer(figures: &[Figures]) -> [Goal; 2] {
    let (gateway, peer) = (&figures[0], &figures[1]);
    [
        Goal::at_most(0.333, "own CPU, formgate : Fastify", gateway.own.ratio_to(&peer.own)),
        Goal::at_most(1.0, "CPU of Postgres, formgate : Fastify", gateway.postgres.ratio_to(&peer.postgres)),
    ]
}

/// The first page as the peer asks for it.
fn page_statement() -> String {
    format!(
        "WITH page AS MATERIALIZED (SELECT s.id FROM submissions s WHERE NOT s.draft \
         ORDER BY s.updated_at DESC, s.id DESC LIMIT 20 OFFSET 0) \
         SELECT coalesce(json_agg({} ORDER BY s.updated_at DESC, s.id DESC), '[]') \
         FROM page JOIN submissions s ON s.id = page.id",
        include_str!("fastify/submission.sql").split_whitespace().collect::<Vec<_>>().join(" ")
    )
}
