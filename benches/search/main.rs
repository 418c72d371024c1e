//! How the cost of each search grows with what is stored: the same searches on a small and on a large database of one
//! kind, in turns, without the edge and the gate.
//!
//! Both databases are named in the environment, `SMALL` and `LARGE`, and are filled by the lines that `GENERATE=n` makes
//! this print (see the README beside).

#![expect(clippy::print_stdout, reason = "the table, or the lines, are the result")]

mod generate;
#[path = "../support/rounds.rs"]
mod rounds;

use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use formgate::store::filter::{Keyword, SortBy, SortDirection, Status, SubmissionFilter, Term};
use formgate::store::{DatabaseLocation, PageRequest, Store};
use rounds::Rounds;

/// How long a search is repeated in a round, at least three times. Shorter, and one pause of the machine shows.
const TURN: Duration = Duration::from_millis(150);

/// An odd number, so that a median is a round that was.
const ROUNDS: usize = 5;

/// A search of the table: what it asks for, and which page of how many. Both sizes show a full page: where that would not
/// be the same, the nearest that is.
struct Search {
    name: &'static str,
    filter: SubmissionFilter,
    page: fn(u64) -> u64,
}

/// The page of a large database that stands in the middle of a small one: as far from both ends as it gets there.
fn page_1000(last: u64) -> u64 {
    (last / 2).min(1000)
}

/// The last page may be short; the one before it is not.
fn last_full_page(last: u64) -> u64 {
    last - 1
}

fn searches() -> Vec<Search> {
    let all = SubmissionFilter::default;
    let keyword = |text| SubmissionFilter { search: Keyword::new(text), ..all() };
    let term = |element, answer: &str| SubmissionFilter {
        terms: vec![Term { element: Some(element), answers: vec![answer.to_owned()] }],
        ..all()
    };
    let by_created = || SubmissionFilter { sort_by: SortBy::CreatedAt, ..all() };
    let at = |text: &str| Some(text.parse().expect("an instant"));
    let first = |name, filter| Search { name, filter, page: |_| 1 };
    let form = || SubmissionFilter { forms: vec![1], ..all() };
    let recent = || SubmissionFilter { start: at("2025-12-01T00:00:00Z"), ..all() };
    let month = || SubmissionFilter { start: at("2024-03-01T05:00:00Z"), end: at("2024-04-01T03:59:59Z"), ..all() };
    vec![
        first("everything", all()),
        first("everything, oldest first", SubmissionFilter { sort_direction: SortDirection::Ascending, ..all() }),
        Search { name: "page 1,000 (small: the middle one)", filter: all(), page: page_1000 },
        Search { name: "page 1,000 by creation", filter: by_created(), page: page_1000 },
        Search { name: "the middle page", filter: all(), page: |last| last / 2 },
        Search { name: "the last full page", filter: all(), page: last_full_page },
        first("a form with 20 %", form()),
        first("a form with 0.3 %", SubmissionFilter { forms: vec![50], ..all() }),
        first("a form with 20 %, a status with 1 %", SubmissionFilter { statuses: vec![Status::Escalate], ..form() }),
        first("a status with 1 %", SubmissionFilter { statuses: vec![Status::Escalate], ..all() }),
        first("a status with 70 %", SubmissionFilter { statuses: vec![Status::Pending], ..all() }),
        first("the last month, by change", recent()),
        first("the last month, by creation", SubmissionFilter { sort_by: SortBy::CreatedAt, ..recent() }),
        first("an earlier month, by creation", SubmissionFilter { sort_by: SortBy::CreatedAt, ..month() }),
        first("a label", SubmissionFilter { labels: vec![3], ..all() }),
        first("a submitter", SubmissionFilter { submitters: vec![77], ..all() }),
        first("keyword of 2, 20 matches", keyword("jq")),
        first("keyword of 3, 20 matches", keyword("zqv")),
        first("keyword of 8, 20 matches", keyword("wxqzkjvb")),
        first("term, 20 matches", term(102, "rare answer")),
        first("= linear: an earlier month, by change", month()),
        first("= linear: three forms by creation", SubmissionFilter { forms: vec![3, 7, 50], ..by_created() }),
        first("= linear: keyword of 8, 1 %", keyword("delivery")),
        first("= linear: keyword of 8, 10 %", keyword("complete")),
        first("= linear: keyword of 3, most", keyword("ing")),
        first("= linear: keyword of 2, most", keyword("an")),
        first("= linear: term, 8 %", term(103, "standard")),
        first(
            "= few: form, label, keyword of 3 in most",
            SubmissionFilter { labels: vec![3], search: Keyword::new("ing"), ..form() },
        ),
        first("= few: label, keyword of 2 in most", SubmissionFilter { labels: vec![3], ..keyword("an") }),
        first("= few: a month, keyword of 8 in 10 %", SubmissionFilter { search: Keyword::new("complete"), ..month() }),
        first("= few: form, keyword of 3 in 20", SubmissionFilter { search: Keyword::new("zqv"), ..form() }),
        first(
            "= few: form, label, keyword of 3 in 20",
            SubmissionFilter { labels: vec![3], search: Keyword::new("zqv"), ..form() },
        ),
    ]
}

fn main() -> anyhow::Result<()> {
    if let Ok(submissions) = env::var("GENERATE") {
        return Ok(generate::write(&mut std::io::stdout().lock(), submissions.parse()?)?);
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(compare())
}

async fn compare() -> anyhow::Result<()> {
    let (small, large) = (open("SMALL").await?, open("LARGE").await?);
    let only = env::var("ONLY").unwrap_or_default();
    println!("| search | matches | small ms | large ms | large : small | spread |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for search in searches().iter().filter(|search| search.name.contains(&only)) {
        let (mut at_small, mut at_large, mut matches) = (Rounds::default(), Rounds::default(), 0);
        for _ in 0..ROUNDS {
            at_small.push(turn(&small, search).await?.0);
            let (took, total) = turn(&large, search).await?;
            at_large.push(took);
            matches = total;
        }
        let (small, large, ratio) = (at_small.median(), at_large.median(), at_large.ratio_to(&at_small));
        let spread = at_large.spread();
        println!("| {} | {matches} | {small:.2} | {large:.2} | {ratio:.2} | {spread:.0} % |", search.name);
    }
    Ok(())
}

async fn open(name: &str) -> anyhow::Result<Store> {
    let url = env::var(name).with_context(|| format!("{name} is not set: the URL of a filled database"))?;
    Ok(Store::open(&DatabaseLocation::parse(&url, Path::new("."))?, 2).await?)
}

/// Milliseconds a search, and its total.
async fn turn(store: &Store, search: &Search) -> anyhow::Result<(f64, u64)> {
    let page = |number: u64| PageRequest { number: number.max(1).try_into().expect("not 0"), size: 20 };
    let total = store.search(&search.filter, page(1)).await?.total;
    let page = page((search.page)(total.div_ceil(20)));
    let (start, mut runs) = (Instant::now(), 0);
    while runs < 3 || (start.elapsed() < TURN && runs < 1000) {
        let found = store.search(&search.filter, page).await?;
        found.submissions.read()?;
        runs += 1;
    }
    Ok((start.elapsed().as_secs_f64() * 1000.0 / f64::from(runs), total))
}
