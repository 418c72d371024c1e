//! Tables of figures, and goals beside what was measured.

use crate::bench::Bench;
use crate::process;
use crate::results::{Measured, Scenario};
use crate::rounds::Rounds;
use crate::turns::Figures;

/// A column that not every table has.
type Column = (&'static str, fn(&Figures) -> &Rounds);

/// What a ratio should be.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

/// A goal and how near it is.
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) wanted: Wanted,
    pub(crate) found: f64,
}

impl Goal {
    pub(crate) fn at_least(wanted: f64, what: impl Into<String>, found: f64) -> Self {
        Self { what: what.into(), wanted: Wanted::AtLeast(wanted), found }
    }

    pub(crate) fn at_most(wanted: f64, what: impl Into<String>, found: f64) -> Self {
        Self { what: what.into(), wanted: Wanted::AtMost(wanted), found }
    }
}

/// Prints what all contenders showed, and adds it to the results. The factors are to the first of them.
pub(crate) fn print(bench: &Bench, title: &str, figures: &[Figures]) {
    let columns: [Column; 3] =
        [("own µs", |one| &one.own), ("Redis µs", |one| &one.redis), ("Postgres µs", |one| &one.postgres)];
    // A column of zeros says nothing.
    let is_used = |of: fn(&Figures) -> &Rounds| figures.iter().any(|one| of(one).median() > 0.05);
    let columns: Vec<_> = columns.into_iter().filter(|(_, of)| is_used(*of)).collect();
    let heads: String = columns.iter().map(|(head, _)| format!(" {head} |")).collect();
    println!("\n{title} (load {})\n", process::load());
    println!("| target | requests/s | x first | spread | p50 ms | p99 ms |{heads} caller µs | others | answers |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |{} ---: | ---: | --- |", " ---: |".repeat(columns.len()));
    for one in figures {
        let (rate, factor, spread) = (one.rate.median(), one.rate.ratio_to(&figures[0].rate), one.rate.spread());
        let (half, tail) = (one.p50_ms.median(), one.p99_ms.median());
        let cells: String = columns.iter().map(|(_, of)| format!(" {:.1} |", of(one).median())).collect();
        let (caller, others) = (one.caller.median(), one.others.median());
        println!(
            "| {} | {rate:.0} | {factor:.2} | {spread:.0} % | {half:.2} | {tail:.2} |{cells} {caller:.1} \
             | {others:.0} % | {} |",
            one.name,
            one.answers()
        );
    }
    let measured = |one: &Figures| Measured {
        name: one.name.clone(),
        requests_per_second: one.rate.median(),
        own_us: one.own.median(),
        store_us: one.redis.median() + one.postgres.median(),
    };
    let targets = figures.iter().map(measured).collect();
    bench.results.borrow_mut().push(Scenario { title: title.to_owned(), source: bench.source.clone(), targets });
}

/// Prints goals.
pub(crate) fn print_goals(goals: &[Goal]) {
    println!("\n| goal | wanted | found | met |\n| --- | ---: | ---: | --- |");
    for Goal { what, wanted, found } in goals {
        let (sign, wanted, met) = match *wanted {
            Wanted::AtLeast(wanted) => ("at least", wanted, *found >= wanted),
            Wanted::AtMost(wanted) => ("at most", wanted, *found <= wanted),
        };
        println!("| {what} | {sign} {wanted} | {found:.2} | {} |", if met { "yes" } else { "**no**" });
    }
}
