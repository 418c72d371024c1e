//! What one statement costs: prepared, each its own transaction, one writer.

use crate::database::Databases;
use crate::rounds::Rounds;
use crate::statement::{INSERT_ANSWER, INSERT_LABEL, INSERT_SUBMISSION, UPDATE_ANSWER, UPDATE_SUBMISSION, prepared};

/// How often a statement runs before another database has its turn.
///
/// Larger: the machine changes between the turns of a round. Smaller: the kernel's count of CPU time lags behind by more
/// of a turn.
const STATEMENTS: i64 = 100;

/// Larger: the bench takes longer. Smaller: medians repeat less well. An odd number, so that a median is one of the rounds.
const ROUNDS: i64 = 9;

/// The row that the first statement inserts. Those of the other rounds follow.
const FIRST: i64 = 10_000;

/// The first one shows what a round trip costs in the other rows.
const COMPARED: [(&str, &str); 6] = [
    ("`SELECT` of a number", "SELECT {i}"),
    ("`INSERT` of a submission", INSERT_SUBMISSION),
    ("`INSERT` of an answer", INSERT_ANSWER),
    ("`INSERT` of a label", INSERT_LABEL),
    ("`UPDATE` of a submission", UPDATE_SUBMISSION),
    ("`UPDATE` of an answer", UPDATE_ANSWER),
];

pub(crate) async fn print(all: [&mut Databases; 2]) -> anyhow::Result<()> {
    println!("\nOne statement, µs of CPU:\n");
    println!("| database | statement | bare | noted | x bare | spread |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for databases in all {
        let engine = databases.engine;
        let mut figures = COMPARED.map(|_| [(); 2].map(|()| Rounds::default()));
        // The first round prepares the statements.
        for round in 0..=ROUNDS {
            let first = FIRST + round * STATEMENTS;
            for ((_, statement), figures) in COMPARED.iter().zip(&mut figures) {
                let statement = prepared(engine, statement);
                for (database, figures) in databases.each().into_iter().zip(figures) {
                    let began = database.writer.cpu()?;
                    for row in first..first + STATEMENTS {
                        database.writer.execute_prepared(&statement, row).await?;
                    }
                    let took = database.writer.cpu()?.saturating_sub(began);
                    if round > 0 {
                        figures.push(took.as_secs_f64() * 1e6 / STATEMENTS as f64);
                    }
                }
            }
        }
        for ((name, _), [bare, noted]) in COMPARED.iter().zip(&figures) {
            println!(
                "| {engine} | {name} | {:.0} | {:.0} | {:.2} | {:.0} % |",
                bare.median(),
                noted.median(),
                noted.ratio_to(bare),
                noted.spread()
            );
        }
    }
    Ok(())
}
