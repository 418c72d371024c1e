//! Turns: who is measured, in rounds in which all take one, and what each turn cost whom.
//!
//! The order shifts by one each round, so that none always follows the same other. A figure is a median over the
//! rounds, and a ratio of two of them is taken round by round.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::generator;
use crate::order::{BEGUN, Order, Report};
use crate::process::{Process, bound_to_us, machine_busy};
use crate::redis_server::Server;
use crate::rounds::Rounds;
use crate::target::Target;

/// How long the machine rests between turns, so that what one leaves behind is not the next one's.
const REST: Duration = Duration::from_millis(200);

/// Whose CPU is told beside the generator's.
#[derive(Clone, Copy, Default)]
pub(crate) struct Watched<'a> {
    pub(crate) own: Option<&'a Process>,
    pub(crate) redis: Option<&'a Server>,
    pub(crate) postgres: Option<&'a Process>,
}

/// What a turn calls when its clock begins to run.
pub(crate) type Begin<'b> = &'b mut dyn FnMut() -> anyhow::Result<()>;

/// One of those that take turns.
pub(crate) struct Contender<'a> {
    pub(crate) name: String,
    pub(crate) watched: Watched<'a>,
    /// Runs one turn.
    pub(crate) run: Box<dyn Fn(Begin<'_>) -> anyhow::Result<Report> + 'a>,
}

/// What a contender showed. CPU is in microseconds a request.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) rate: Rounds,
    pub(crate) p50_ms: Rounds,
    pub(crate) p99_ms: Rounds,
    pub(crate) own: Rounds,
    pub(crate) redis: Rounds,
    pub(crate) postgres: Rounds,
    pub(crate) caller: Rounds,
    /// What part of the machine everything else took, in percent.
    pub(crate) others: Rounds,
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) failed: u64,
    pub(crate) failure: Option<String>,
}

/// Lets all of them take turns.
pub(crate) fn rounds(contenders: &[Contender<'_>], rounds: usize) -> anyhow::Result<Vec<Figures>> {
    let mut figures: Vec<_> =
        contenders.iter().map(|one| Figures { name: one.name.clone(), ..Figures::default() }).collect();
    // What is done once, as looking up a thousand tokens and opening connections to databases, is nobody's figure.
    for contender in contenders {
        (contender.run)(&mut || Ok(())).with_context(|| contender.name.clone())?;
    }
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            thread::sleep(REST);
            figures[at].turn(&contenders[at]).with_context(|| contenders[at].name.clone())?;
        }
    }
    Ok(figures)
}

/// CPU so far, in seconds: own, Redis, Postgres, machine.
fn cpu(watched: Watched<'_>) -> anyhow::Result<[f64; 4]> {
    let of = |process: Option<&Process>| process.map_or(Ok(Duration::ZERO), Process::cpu);
    let redis = watched.redis.map_or(Ok(Duration::ZERO), Server::cpu)?;
    Ok([of(watched.own)?, redis, of(watched.postgres)?, machine_busy()?].map(|time| time.as_secs_f64()))
}

impl Figures {
    fn turn(&mut self, contender: &Contender<'_>) -> anyhow::Result<()> {
        let mut before = None;
        let report = (contender.run)(&mut || {
            before = Some((Instant::now(), cpu(contender.watched)?));
            Ok(())
        })?;
        let (began, before) = before.context("the clock never began")?;
        let (after, took) = (cpu(contender.watched)?, began.elapsed().as_secs_f64());
        let spent: [f64; 4] = std::array::from_fn(|at| after[at] - before[at]);
        ensure!(report.requests > 0, "nothing was answered ({})", report.failure.unwrap_or_default());
        let statuses = &report.statuses;
        ensure!(statuses.keys().all(|status| *status < 500), "what was asked was not done: {statuses:?}");
        let requests = report.requests as f64;
        self.rate.push(requests / report.seconds);
        self.p50_ms.push(report.p50_ms);
        self.p99_ms.push(report.p99_ms);
        for (rounds, seconds) in
            [(&mut self.own, spent[0]), (&mut self.redis, spent[1]), (&mut self.postgres, spent[2])]
        {
            rounds.push(seconds * 1e6 / requests);
        }
        self.caller.push(report.caller_seconds * 1e6 / requests);
        let known = spent[..3].iter().sum::<f64>() + report.caller_seconds;
        let cores = thread::available_parallelism()?.get() as f64;
        self.others.push(((spent[3] - known) / took / cores * 100.0).max(0.0));
        for (status, count) in report.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.failed += report.failed;
        self.failure = self.failure.take().or(report.failure);
        Ok(())
    }

    /// What was answered, in words.
    pub(crate) fn answers(&self) -> String {
        let mut answers: Vec<_> = self.statuses.iter().map(|(status, count)| format!("{count} x {status}")).collect();
        if self.failed > 0 {
            answers.push(format!("{} failed ({})", self.failed, self.failure.as_deref().unwrap_or_default()));
        }
        answers.join(", ")
    }
}

/// A generator at work.
pub(crate) struct Generator {
    process: Process,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Generator {
    /// Gives the order.
    pub(crate) fn start(order: &Order) -> anyhow::Result<Self> {
        let mut command = bound_to_us(std::env::current_exe()?, "KILL");
        command.arg(generator::ROLE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command, "KILL")?;
        writeln!(process.pipes().stdin.as_mut().context("it is piped")?, "{}", serde_json::to_string(order)?)?;
        let lines = BufReader::new(process.pipes().stdout.take().context("it is piped")?).lines();
        Ok(Self { process, lines })
    }

    /// Waits until the clock runs, or until all connections that are to be held are open.
    pub(crate) fn begun(&mut self) -> anyhow::Result<()> {
        ensure!(self.line()? == BEGUN, "the generator says something else");
        Ok(())
    }

    /// Waits for the end of the turn; connections that are held are let go.
    pub(crate) fn finish(mut self) -> anyhow::Result<Report> {
        drop(self.process.pipes().stdin.take());
        Ok(serde_json::from_str(&self.line()?)?)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        Ok(self.lines.next().context("the generator has ended")??)
    }
}

/// An order for a target, as a contender.
pub(crate) fn against<'a>(
    target: &'a Target,
    redis: Option<&'a Server>,
    postgres: Option<&'a Process>,
    order: Order,
) -> Contender<'a> {
    let run = move |begin: Begin<'_>| {
        target.empty_log()?;
        ask(&order, begin)
    };
    let watched = Watched { own: Some(&target.process), redis, postgres };
    Contender { name: target.name.to_owned(), watched, run: Box::new(run) }
}

/// Runs an order to its end.
pub(crate) fn ask(order: &Order, begin: Begin<'_>) -> anyhow::Result<Report> {
    let mut generator = Generator::start(order)?;
    generator.begun()?;
    begin()?;
    generator.finish()
}
