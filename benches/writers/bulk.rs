//! What one large transaction costs per row, and how long the first search after it takes to derive from its rows.
//!
//! The cost per row has to be the same at every size.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use formgate::store::filter::SubmissionFilter;
use formgate::store::{DatabaseLocation, PageRequest, Store, StoreError};

use crate::database::{Database, Databases, Engine, Triggers};
use crate::statement::{
    ELEMENTS, INSERT_ANSWER, INSERT_ANSWER_OF_PARENT, INSERT_LABEL, INSERT_SECOND_LABEL, INSERT_SUBMISSION, for_all,
    for_each,
};

/// How many rows a transaction writes.
///
/// Larger: the bench takes longer. Smaller: a cost that grows with the square shows less.
const SIZES: [i64; 3] = [1_000, 4_000, 16_000];
const SIZES_OF_ONE_SUBMISSION: [i64; 3] = [ELEMENTS / 4, ELEMENTS / 2, ELEMENTS];

/// The number of the first submission that these transactions insert.
const FIRST: i64 = 100_000;

/// A transaction, and the statements that prepare the rows for it.
struct Bulk {
    name: &'static str,
    sizes: [i64; 3],
    prepare: fn(Engine, &Range<i64>) -> String,
    run: fn(Engine, &Range<i64>) -> String,
}

const BULKS: [Bulk; 5] = [
    Bulk {
        name: "`INSERT` of submissions, each with an answer and a label",
        sizes: SIZES,
        prepare: |_, _| String::new(),
        run: |engine, rows| for_each(engine, &[INSERT_SUBMISSION, INSERT_ANSWER, INSERT_LABEL], rows),
    },
    Bulk {
        name: "`INSERT` of labels",
        sizes: SIZES,
        prepare: submissions,
        run: |engine, rows| for_each(engine, &[INSERT_SECOND_LABEL], rows),
    },
    Bulk {
        name: "`UPDATE forms SET graduated` with children of one parent",
        sizes: SIZES,
        prepare: |engine, rows| {
            submissions(engine, rows) + &format!("UPDATE submissions SET parent_id = 1 WHERE id >= {FIRST}")
        },
        run: |_, _| "UPDATE forms SET graduated = NOT graduated WHERE id = 2".to_owned(),
    },
    Bulk {
        name: "`DELETE` of submissions, each with an answer and a label",
        sizes: SIZES,
        prepare: submissions,
        run: |_, _| format!("DELETE FROM submissions WHERE id >= {FIRST}"),
    },
    Bulk {
        name: "`INSERT` of answers of one submission",
        sizes: SIZES_OF_ONE_SUBMISSION,
        prepare: |_, _| String::new(),
        run: |engine, rows| for_each(engine, &[INSERT_ANSWER_OF_PARENT], &(1..rows.end - rows.start + 1)),
    },
];

fn submissions(engine: Engine, rows: &Range<i64>) -> String {
    [INSERT_SUBMISSION, INSERT_ANSWER, INSERT_LABEL].iter().map(|insert| for_all(engine, insert, rows)).collect()
}

/// Removes the rows.
fn clean() -> String {
    format!(
        "DELETE FROM answers WHERE submission_id >= {FIRST} OR submission_id = 1; \
         DELETE FROM submission_labels WHERE submission_id >= {FIRST}; \
         DELETE FROM submissions WHERE id >= {FIRST}; \
         UPDATE forms SET graduated = FALSE WHERE id = 2"
    )
}

pub(crate) async fn print(all: [&mut Databases; 2]) -> anyhow::Result<()> {
    println!("\nOne transaction, µs of CPU per row; settling in µs by the clock per row:\n");
    println!("| database | transaction | rows | bare | noted | settling |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for databases in all {
        let engine = databases.engine;
        for bulk in &BULKS {
            for size in bulk.sizes {
                let rows = FIRST..FIRST + size;
                let per_row = |took: Duration| took.as_secs_f64() * 1e6 / size as f64;
                let (mut figures, mut settled) = (Vec::new(), Duration::ZERO);
                for database in databases.each() {
                    database.writer.execute(&(bulk.prepare)(engine, &rows)).await?;
                    settle(database).await?;
                    let took = database.writer.transaction(&(bulk.run)(engine, &rows)).await?;
                    figures.push(format!("{:.1}", per_row(took)));
                    settled += settle(database).await?;
                    database.writer.execute(&clean()).await?;
                }
                let (figures, settled) = (figures.join(" | "), per_row(settled));
                println!("| {engine} | {} | {size} | {figures} | {settled:.0} |", bulk.name);
            }
        }
    }
    Ok(())
}

/// How long the first search takes, where one is needed to derive from what was written.
async fn settle(database: &Database) -> anyhow::Result<Duration> {
    if database.triggers != Triggers::Noted {
        return Ok(Duration::ZERO);
    }
    let store = Store::open(&DatabaseLocation::parse(&database.url, Path::new("."))?, 2).await?;
    let (filter, page) = (SubmissionFilter::default(), PageRequest { number: 1.try_into()?, size: 20 });
    let began = Instant::now();
    // A search does not wait for a large backlog, but settling goes on.
    while let Err(error) = store.search(&filter, page).await {
        anyhow::ensure!(matches!(error, StoreError::Unsettled), error);
    }
    let took = began.elapsed();
    store.close().await;
    Ok(took)
}
