//! The load generator: one thread in a process of its own, so that its CPU is told from what it measures.
//!
//! It takes one [`Order`] from standard input, and prints a line when the clock begins and the [`Report`] at the end.
//! Of an answer only the status and the length are read. Whatever the server's certificate says is believed: checking
//! it would cost this side more than serving it costs the other.

mod http1;
mod http2;
mod tls;

use std::cell::{Cell, RefCell};
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::{LocalSet, spawn_local};

use crate::order::{BEGUN, Order, Pace, Protocol, Report};
use http1::Http1;
use http2::Http2;
use tls::Dialer;

/// The argument that makes this program the load generator.
pub(crate) const ROLE: &str = "be-the-generator";

/// How many connections that are to be held are opened at once.
const OPENED_AT_ONCE: usize = 16;

/// How long a caller rests after a failure: without it, a server that is down is asked as often as a loop turns.
const REST: Duration = Duration::from_millis(20);

/// What all callers of a turn share.
struct Turn {
    order: Order,
    dialer: Dialer,
    /// Which request is next.
    next: Cell<usize>,
    /// When the load began, and from when until when answers count.
    began: Instant,
    counted: Cell<Option<(Instant, Instant)>>,
    /// In microseconds.
    times: RefCell<Vec<u32>>,
    report: RefCell<Report>,
}

/// What sends a request and takes its answer, of which it tells the status.
trait Caller {
    /// Opens a connection where there is none.
    async fn ask(&mut self, turn: &Turn, request: usize) -> anyhow::Result<u16>;

    /// Closes the connection, for the others who share it too.
    fn close(&mut self);
}

/// Carries out the order on standard input.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line).context("an order")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = LocalSet::new().block_on(&runtime, carry_out(order))?;
    say(&serde_json::to_string(&report)?)
}

async fn carry_out(order: Order) -> anyhow::Result<Report> {
    let (warm_up, length) = (Duration::from_secs_f64(order.warm_up), Duration::from_secs_f64(order.turn));
    let turn = Rc::new(Turn {
        dialer: Dialer::new(&order)?,
        next: Cell::new(0),
        began: Instant::now(),
        counted: Cell::new(None),
        times: RefCell::default(),
        report: RefCell::default(),
        order,
    });
    if let Pace::Held = turn.order.pace {
        return hold(&turn).await;
    }
    let callers: Vec<_> = (0..turn.order.connections).flat_map(|_| callers(&turn)).collect();
    tokio::time::sleep(warm_up).await;
    let (begin, cpu) = (Instant::now(), own_cpu()?);
    turn.counted.set(Some((begin, begin + length)));
    say(BEGUN)?;
    tokio::time::sleep(length).await;
    let caller_seconds = own_cpu()? - cpu;
    for caller in callers {
        caller.abort();
    }
    Ok(turn.sum_up(length.as_secs_f64(), caller_seconds))
}

/// The callers of one connection.
fn callers(turn: &Rc<Turn>) -> Vec<tokio::task::JoinHandle<()>> {
    match turn.order.protocol {
        Protocol::Http1 => vec![spawn_local(go_on(Rc::clone(turn), Http1::default()))],
        Protocol::Http2 => {
            let connection = Http2::default();
            (0..turn.order.streams).map(|_| spawn_local(go_on(Rc::clone(turn), connection.clone()))).collect()
        }
    }
}

async fn go_on(turn: Rc<Turn>, mut caller: impl Caller) {
    loop {
        let number = turn.next.get();
        turn.next.set(number + 1);
        let from = match turn.order.pace {
            Pace::Due(rate) => {
                let due = turn.began + Duration::from_secs_f64(number as f64 / rate);
                tokio::time::sleep_until(due.into()).await;
                due
            }
            Pace::Answered | Pace::Held => Instant::now(),
        };
        if turn.order.fresh {
            caller.close();
        }
        let answer = caller.ask(&turn, number % turn.order.requests.len()).await;
        let failed = answer.is_err();
        turn.note(from, answer);
        if failed {
            caller.close();
            tokio::time::sleep(REST).await;
        }
    }
}

impl Turn {
    fn note(&self, from: Instant, answer: anyhow::Result<u16>) {
        let now = Instant::now();
        if !self.counted.get().is_some_and(|(begin, end)| begin <= now && now < end) {
            return;
        }
        match answer {
            Ok(status) => self.add(now - from, status),
            Err(error) => {
                let mut report = self.report.borrow_mut();
                report.failed += 1;
                report.failure.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    fn add(&self, took: Duration, status: u16) {
        self.times.borrow_mut().push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        *self.report.borrow_mut().statuses.entry(status).or_default() += 1;
    }

    fn sum_up(&self, seconds: f64, caller_seconds: f64) -> Report {
        let mut times = self.times.take();
        times.sort_unstable();
        let percentile = |percent| times.get(times.len().saturating_sub(1) * percent / 100).copied().unwrap_or(0);
        let [p50_ms, p99_ms] = [50, 99].map(|percent| f64::from(percentile(percent)) / 1e3);
        let report = self.report.take();
        Report { requests: times.len() as u64, seconds, p50_ms, p99_ms, caller_seconds, ..report }
    }
}

/// Opens all connections, and holds them until standard input is closed.
async fn hold(turn: &Rc<Turn>) -> anyhow::Result<Report> {
    let opened = Rc::new(RefCell::new(Vec::new()));
    let openers: Vec<_> = (0..OPENED_AT_ONCE)
        .map(|opener| {
            let (turn, opened) = (Rc::clone(turn), Rc::clone(&opened));
            spawn_local(async move {
                for number in (opener..turn.order.connections).step_by(OPENED_AT_ONCE) {
                    let (mut caller, from) = (Http1::default(), Instant::now());
                    let status = caller.ask(&turn, number % turn.order.requests.len()).await?;
                    turn.add(from.elapsed(), status);
                    opened.borrow_mut().push(caller);
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for opener in openers {
        opener.await??;
    }
    say(BEGUN)?;
    tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new())).await??;
    Ok(turn.sum_up(turn.began.elapsed().as_secs_f64(), own_cpu()?))
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// How many seconds this thread, which does all the work, has run so far.
fn own_cpu() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let run = text.split(' ').next().context("the first number is the time on a CPU")?;
    Ok(run.parse::<f64>()? / 1e9)
}
