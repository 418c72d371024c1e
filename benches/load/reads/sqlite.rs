//! A SQLite tenant's requests beside the statements that they need, bare.
//!
//! Bare means: written by hand for this one request, prepared once through the same driver and run one after another in
//! a process of their own, which looks at no row. They read the same file, and tell the total as the schema keeps it.
//! What is compared is the CPU of whole processes, so that the gateway's has TLS, token, limit, JSON and log in it.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use super::{FEW, KEYWORDS, LIMIT, MIDDLE};
use crate::bench::{Bench, WARM_UP};
use crate::data::{self, Folder};
use crate::gateway::{Gateway, Tenant};
use crate::generate;
use crate::order::{BEGUN, Order, Report, Request};
use crate::process::{Process, bound_to_us};
use crate::report::{self, Goal};
use crate::site::Site;
use crate::turns::{self, Begin, Contender, Watched};

/// The argument that makes this program run bare statements.
pub(crate) const ROLE: &str = "be-bare-statements";

/// How many times as much CPU a request may take as its statements.
const MOST: f64 = 1.5;

/// What is returned by itself, newest change first.
const LISTED: &str = "FROM listed_submissions WHERE true";
const NEWEST: &str = "ORDER BY updated_at DESC, id DESC LIMIT 20";

/// What a bare process is told to do.
#[derive(Serialize, Deserialize)]
struct Work {
    /// A file.
    database: String,
    /// The statements of each request, asked in turn.
    requests: Vec<Vec<Statement>>,
    /// Seconds of a turn.
    turn: f64,
}

#[derive(Serialize, Deserialize)]
struct Statement {
    text: String,
    value: Option<Value>,
}

#[derive(Clone, Serialize, Deserialize)]
enum Value {
    Integer(i64),
    Text(String),
}

struct Case {
    title: &'static str,
    requests: Vec<Request>,
    bare: Vec<Vec<Statement>>,
}

pub(super) fn measure(bench: &Bench, folder: &Folder) -> anyhow::Result<()> {
    let mut site = Site::make(0)?;
    let file = folder.path().join(format!("formgate_{MIDDLE}.db"));
    let url = format!("sqlite:{}", file.display());
    if file.exists() {
        data::migrated(&site, "kept", &url)?;
    } else {
        make(&site, &file)?;
    }
    let account = site.add("sqlite", &url)?;
    let tenant = Tenant { slug: account.slug.clone(), database: url.clone(), requests: LIMIT };
    let node =
        Gateway { name: "formgate", redis: None, window_seconds: 1, tenants: vec![tenant] }.start(&site.folder)?;

    let ids = listed(&url)?;
    let keyword = |word: &&str| account.ask("POST", "/submission").with(format!("{{\"search\":{word:?}}}"));
    let cases = [
        Case {
            title: "POST /submission, the first page",
            requests: vec![account.ask("POST", "/submission").with("{}")],
            bare: vec![vec![total(), page(&format!("SELECT * {LISTED} {NEWEST}"), None)]],
        },
        Case {
            title: "GET /submission/{id}",
            requests: ids.iter().map(|id| account.ask("GET", &format!("/submission/{id}"))).collect(),
            bare: ids.iter().map(|id| vec![one(*id)]).collect(),
        },
        Case {
            title: "POST /submission with a keyword",
            requests: KEYWORDS.iter().map(keyword).collect(),
            bare: KEYWORDS.iter().map(|word| with_keyword(word)).collect(),
        },
    ];
    for Case { title, requests, bare } in cases {
        let bare = Bare::start(&Work { database: url.clone(), requests: bare, turn: bench.turn })?;
        let order = Order { connections: FEW, ..bench.order(&node, requests) };
        let figures = turns::rounds(&[turns::against(&node, None, None, order), bare.contender()], bench.rounds)?;
        report::print(bench, &format!("{title}, {MIDDLE} submissions in SQLite"), &figures);
        let ratio = figures[0].own.ratio_to(&figures[1].own);
        report::print_goals(&[Goal::at_most(MOST, "own CPU, formgate : bare statements", ratio)]);
    }
    Ok(())
}

/// Makes the database, which gets its name once it is whole.
fn make(site: &Site, file: &Path) -> anyhow::Result<()> {
    let making = file.with_extension("making");
    for suffix in ["", "-wal", "-shm"] {
        let part = format!("{}{suffix}", making.display());
        if Path::new(&part).exists() {
            fs::remove_file(part)?;
        }
    }
    let config = data::migrated(site, "making", &format!("sqlite:{}", making.display()))?;
    let took = data::import(&config, "making", |out| generate::write(out, MIDDLE))?;
    println!("{}: imported in {:.0} s", file.display(), took.as_secs_f64());
    Ok(fs::rename(making, file)?)
}

/// Some submissions that it returns, here and there.
fn listed(url: &str) -> anyhow::Result<Vec<i64>> {
    let query = AssertSqlSafe(format!("SELECT id {LISTED} AND id % {} = 0", MIDDLE / 500));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connection = SqliteConnection::connect(url).await?;
        Ok(sqlx::query_scalar(query).fetch_all(&mut connection).await?)
    })
}

fn total() -> Statement {
    let text = "SELECT sum(listed) FROM listed_counts WHERE counted = 'form'";
    Statement { text: text.to_owned(), value: None }
}

/// What some submissions show.
fn page(submissions: &str, value: Option<Value>) -> Statement {
    let text = format!(
        "WITH page AS MATERIALIZED ({submissions}) \
         SELECT s.id, s.status, s.created_at, s.updated_at, e.gid, e.name, e.type, a.value, a.files, a.updated_at \
         FROM page s JOIN elements e ON e.form_id = s.form_id \
         LEFT JOIN answers a ON a.submission_id = s.id AND a.element_id = e.id \
         ORDER BY s.updated_at DESC, s.id DESC, e.position, e.id"
    );
    Statement { text, value }
}

fn one(id: i64) -> Statement {
    page(&format!("SELECT * {LISTED} AND id = $1"), Some(Value::Integer(id)))
}

fn with_keyword(word: &str) -> Vec<Statement> {
    let value = Some(Value::Text(format!("\"{word}\"")));
    let found = format!("{LISTED} AND id IN (SELECT rowid FROM listed_trigrams WHERE listed_trigrams MATCH $1)");
    let total = Statement { text: format!("SELECT count(*) {found}"), value: value.clone() };
    vec![total, page(&format!("SELECT * {found} {NEWEST}"), value)]
}

/// A process that runs statements, a turn whenever it is told to.
struct Bare {
    process: Process,
    pipes: RefCell<(ChildStdin, Lines<BufReader<ChildStdout>>)>,
}

impl Bare {
    fn start(work: &Work) -> anyhow::Result<Self> {
        let mut command = bound_to_us(std::env::current_exe()?, "KILL");
        command.arg(ROLE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command, "KILL")?;
        let mut stdin = process.pipes().stdin.take().context("it is piped")?;
        writeln!(stdin, "{}", serde_json::to_string(work)?)?;
        let stdout = process.pipes().stdout.take().context("it is piped")?;
        Ok(Self { process, pipes: RefCell::new((stdin, BufReader::new(stdout).lines())) })
    }

    fn contender(&self) -> Contender<'_> {
        let watched = Watched { own: Some(&self.process), ..Watched::default() };
        Contender { name: "bare statements".to_owned(), watched, run: Box::new(|begin| self.take_turn(begin)) }
    }

    fn take_turn(&self, begin: Begin<'_>) -> anyhow::Result<Report> {
        let (stdin, lines) = &mut *self.pipes.borrow_mut();
        writeln!(stdin)?;
        ensure!(lines.next().context("it has ended")?? == BEGUN, "it says something else");
        begin()?;
        Ok(serde_json::from_str(&lines.next().context("it has ended")??)?)
    }
}

/// Carries out the work on standard input, a turn a line that follows it.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let work: Work = serde_json::from_str(&lines.next().context("work")??)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut connection = runtime.block_on(SqliteConnection::connect(&work.database))?;
    let mut requests = work.requests.iter().cycle();
    let mut run_for = |seconds: f64| {
        let (began, length) = (Instant::now(), Duration::from_secs_f64(seconds));
        let mut times = Vec::new();
        while began.elapsed() < length {
            let from = Instant::now();
            runtime.block_on(ask(&mut connection, requests.next().context("there are some")?))?;
            times.push(from.elapsed());
        }
        anyhow::Ok((times, began.elapsed().as_secs_f64()))
    };
    for line in lines {
        line?;
        run_for(WARM_UP)?;
        println!("{BEGUN}");
        let (mut times, seconds) = run_for(work.turn)?;
        times.sort_unstable();
        let [p50_ms, p99_ms] = [50, 99].map(|percent| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3);
        let report = Report { requests: times.len() as u64, seconds, p50_ms, p99_ms, ..Report::default() };
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}

async fn ask(connection: &mut SqliteConnection, statements: &[Statement]) -> anyhow::Result<()> {
    for Statement { text, value } in statements {
        let query = sqlx::query(AssertSqlSafe(text.clone()));
        let query = match value {
            None => query,
            Some(Value::Integer(value)) => query.bind(value),
            Some(Value::Text(value)) => query.bind(value),
        };
        query.fetch_all(&mut *connection).await?;
    }
    Ok(())
}
