//! The tables, as NOTEBOOK.md shows them.

#![expect(clippy::print_stdout, reason = "the tables are the result")]

use crate::candidate::{Candidate, PACKED_LOG};
use crate::long;
use crate::measure::{Cost, Fill};
use crate::rounds::Rounds;

/// What one candidate showed at one fill.
pub(crate) struct Figures {
    candidate: Candidate,
    memory: u64,
    admit: Rounds,
    refuse: Rounds,
    admit_rate: Rounds,
    refuse_rate: Rounds,
}

/// What one admission sends to a replica.
pub(crate) struct Replication {
    pub(crate) limit: u32,
    pub(crate) name: &'static str,
    pub(crate) writes: f64,
    pub(crate) bytes: f64,
}

impl Figures {
    pub(crate) fn new(candidate: Candidate, memory: u64) -> Self {
        let [admit, refuse, admit_rate, refuse_rate] = [(); 4].map(|()| Rounds::default());
        Self { candidate, memory, admit, refuse, admit_rate, refuse_rate }
    }

    /// Adds a round.
    pub(crate) fn push(&mut self, admit: Cost, refuse: Cost) {
        self.admit.push(admit.cpu);
        self.refuse.push(refuse.cpu);
        self.admit_rate.push(admit.rate);
        self.refuse_rate.push(refuse.rate);
    }
}

/// CPU, rates and memory of all candidates at one fill, beside the first of them. What is no window has one row of
/// figures for both outcomes.
pub(crate) fn cost(figures: &[Figures]) {
    let floor = &figures[0];
    println!(
        "| script | admit µs | x `INCR` | spread | admitted/s | refuse µs | x `INCR` | spread | refused/s | bytes |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for one in figures {
        print!("| {}", one.candidate.name);
        outcome(&one.admit, &floor.admit, &one.admit_rate);
        if one.candidate.is_window() {
            outcome(&one.refuse, &floor.refuse, &one.refuse_rate);
        } else {
            print!(" | | | |");
        }
        println!(" | {} |", one.memory);
    }
}

fn outcome(cpu: &Rounds, floor: &Rounds, rate: &Rounds) {
    print!(" | {:.2} | {:.1} | {:.0} %", cpu.median(), cpu.ratio_to(floor), cpu.spread());
    print!(" | {:.0} k", rate.median() / 1e3);
}

/// How the windows do at each fill, beside the packed log at the same.
pub(crate) fn fills(fills: &[Fill], figures: &[Vec<Figures>]) {
    println!("\n| held of limit | script | admit µs | x packed | refuse µs | x packed | bytes | x packed |");
    println!("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (Fill { held, limit }, figures) in fills.iter().zip(figures) {
        let windows = || figures.iter().filter(|one| one.candidate.is_window());
        let packed = windows().find(|one| one.candidate.name == PACKED_LOG.name).expect("it is one of the windows");
        for one in windows() {
            print!("| {held} of {limit} | {}", one.candidate.name);
            print!(" | {:.2} | {:.2}", one.admit.median(), one.admit.ratio_to(&packed.admit));
            print!(" | {:.2} | {:.2}", one.refuse.median(), one.refuse.ratio_to(&packed.refuse));
            println!(" | {} | {:.1} |", one.memory, one.memory as f64 / packed.memory as f64);
        }
    }
}

/// What an admission replicates.
pub(crate) fn replication(rows: &[Replication]) {
    println!("\n| limit | script | writes replicated an admission | bytes |");
    println!("| ---: | --- | ---: | ---: |");
    for row in rows {
        println!("| {} | {} | {:.1} | {:.0} |", row.limit, row.name, row.writes, row.bytes);
    }
}

/// What the largest limit costs Redis.
pub(crate) fn long(rounds: &[[Rounds; 2]; 3]) {
    println!("\n| operation | µs at 60 | µs at 100,000 | x 60 |");
    println!("| --- | ---: | ---: | ---: |");
    for ((name, ..), [short, long]) in long::KINDS.iter().zip(rounds) {
        println!("| {name} | {:.1} | {:.1} | {:.2} |", short.median(), long.median(), long.ratio_to(short));
    }
}
