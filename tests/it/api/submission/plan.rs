//! Each filter is looked up, not read for: the plans of both databases name the index.

use std::time::{Duration, Instant};

use formgate::store::filter::{Keyword, SortBy, SortDirection, Status, SubmissionFilter, Term};
use formgate::store::{
    DatabaseLocation, Durability, GroupWrite, PageRequest, PageStart, Position, Report, Store, StoreError, SyncedBy,
    WriteMode,
};
use jiff::Timestamp;
use tokio::sync::OnceCell;

use crate::api::account::{Account, account_with};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::folder;

/// How many submissions there are: so many that reading all of them never looks cheap, and that a keyword in most of them
/// is in more than are looked up whatever else is asked for.
const SUBMISSIONS: i64 = 22_000;

/// The URL of a copy of the filled database.
pub(crate) async fn filled_database(engine: Engine) -> String {
    static FILLED: [OnceCell<String>; 2] = [const { OnceCell::const_new() }; 2];
    let filled = FILLED[usize::from(engine == Engine::Postgres)].get_or_init(|| fill(engine)).await;
    engine.copy(filled, folder::of_this_run(), &format!("filled-{:x}", rand::random::<u64>()))
}

/// An account with a copy of the filled database.
async fn filled(engine: Engine) -> (Account, Store) {
    let copy = filled_database(engine).await;
    let account = account_with(engine, "", |tenant| tenant.set("database", copy));
    // On a new connection, which has prepared nothing yet.
    let store = open(account.database_url()).await;
    (account, store)
}

async fn open(url: &str) -> Store {
    Store::open(&DatabaseLocation::parse(url, "/".as_ref()).unwrap(), 1).await.unwrap()
}

/// Fills a database by SQL: 20 forms, 1,000 users, 20 labels, one answer a submission, a minute between them.
async fn fill(engine: Engine) -> String {
    let url = engine.database(folder::of_this_run(), "filled");
    let database = Database::connect(&url).await;
    let numbers = |to: i64| match engine {
        Engine::Postgres | Engine::PostgresOn(_) => format!("generate_series(1, {to}) AS n (i)"),
        Engine::Sqlite => format!(
            "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {to}) SELECT i FROM n) AS n"
        ),
    };
    let at = match engine {
        Engine::Postgres | Engine::PostgresOn(_) => "timestamptz '2024-01-01T00:00:00Z' + i * interval '1 minute'",
        Engine::Sqlite => "1704067200000000 + i * 60000000",
    };
    let statuses = "CASE WHEN i % 100 = 0 THEN 'escalate' ELSE 'pending' END";
    let value = "CASE WHEN i % 1000 = 7 THEN 'Rare jq answer' ELSE 'One of many, case ' || i END";
    for statement in [
        format!("INSERT INTO users (id, email) SELECT i, 'u' || i || '@example.com' FROM {}", numbers(1000)),
        format!("INSERT INTO labels (id, name) SELECT i, 'Label ' || i FROM {}", numbers(20)),
        format!("INSERT INTO forms (id, name) SELECT i, 'Form ' || i FROM {}", numbers(20)),
        format!(
            "INSERT INTO elements (id, form_id, position, gid, name, type) SELECT i * 10, i, 1, 'g', 'N', 'text' FROM {}",
            numbers(20)
        ),
        format!("INSERT INTO flow_steps (id, form_id, name) SELECT i, 1, 'Step ' || i FROM {}", numbers(2000)),
        format!(
            "INSERT INTO submissions (id, form_id, status, submitter_id, created_at, updated_at) SELECT i, 1 + i % 20, {statuses}, 1 + i % 1000, {at}, {at} FROM {}",
            numbers(SUBMISSIONS)
        ),
        format!(
            "INSERT INTO answers (submission_id, element_id, value, updated_at) SELECT i, 10 * (1 + i % 20), {value}, {at} FROM {}",
            numbers(SUBMISSIONS)
        ),
        format!(
            "INSERT INTO submission_labels (submission_id, label_id) SELECT i, 1 + i % 20 FROM {}",
            numbers(SUBMISSIONS)
        ),
        format!(
            "INSERT INTO submission_pending (submission_id, user_id) SELECT i, 1 + i % 1000 FROM {}",
            numbers(SUBMISSIONS)
        ),
        format!(
            "INSERT INTO submission_participants (submission_id, user_id) SELECT i, 1 + i % 1000 FROM {}",
            numbers(SUBMISSIONS)
        ),
        format!(
            "INSERT INTO submission_flow_steps (submission_id, flow_step_id) SELECT i, 1 + i % 2000 FROM {}",
            numbers(SUBMISSIONS)
        ),
    ] {
        database.execute(&statement).await;
    }
    let store = open(&url).await;
    settle(&store).await;
    store.close().await;
    // As autovacuum does in time: an index-only scan needs pages that are known to be visible to all.
    database.execute(if engine == Engine::Postgres { "VACUUM ANALYZE" } else { "ANALYZE" }).await;
    database.close().await;
    url
}

/// Searches until everything that was written has been derived from: a search waits for a few seconds of it.
async fn settle(store: &Store) {
    let since = Instant::now();
    let page = PageRequest { number: 1.try_into().unwrap(), size: 1 };
    while let Err(error) = store.search(&everything(), page).await {
        assert!(matches!(error, StoreError::Unsettled), "{error:?}");
        assert!(since.elapsed() < Duration::from_secs(600), "it goes on in the background");
    }
}

fn everything() -> SubmissionFilter {
    SubmissionFilter::default()
}

fn keyword(text: &str) -> SubmissionFilter {
    SubmissionFilter { search: Keyword::new(text), ..everything() }
}

/// What a plan must name: an index of Postgres, one of SQLite.
struct Plan {
    filter: SubmissionFilter,
    page: u64,
    postgres: &'static str,
    sqlite: &'static str,
}

fn plans() -> Vec<Plan> {
    let first = |filter, postgres, sqlite| Plan { filter, page: 1, postgres, sqlite };
    let both = |filter, index| first(filter, index, index);
    let at = |text: &str| Some(text.parse().unwrap());
    let span =
        || SubmissionFilter { start: at("2024-01-05T12:00:00Z"), end: at("2024-01-06T11:00:00Z"), ..everything() };
    let by_created = |filter| SubmissionFilter { sort_by: SortBy::CreatedAt, ..filter };
    let oldest_first = |filter| SubmissionFilter { sort_direction: SortDirection::Ascending, ..filter };
    let terms = vec![Term { element: Some(80), answers: vec!["rare jq answer".to_owned()] }];
    let forms = || SubmissionFilter { forms: vec![1], ..everything() };
    let statuses = || vec![Status::Escalate];
    let of_a_few = |text| SubmissionFilter { pending: vec![77], ..keyword(text) };
    vec![
        both(everything(), "listed_updated"),
        both(oldest_first(everything()), "listed_updated"),
        both(by_created(everything()), "listed_created"),
        Plan { page: 400, ..both(everything(), "listed_updated") },
        Plan { page: 1000, ..both(everything(), "listed_updated") },
        Plan { page: 600, ..both(by_created(oldest_first(everything())), "listed_created") },
        both(forms(), "listed_form_updated"),
        both(SubmissionFilter { statuses: statuses(), ..everything() }, "listed_status_updated"),
        both(SubmissionFilter { statuses: vec![Status::Pending], ..forms() }, "listed_form_status_updated"),
        both(by_created(span()), "listed_created"),
        both(span(), "listed_created"),
        both(SubmissionFilter { labels: vec![3], ..everything() }, "listed_by_label"),
        both(SubmissionFilter { shared_labels: vec![3], ..everything() }, "listed_by_label"),
        both(SubmissionFilter { submitters: vec![77], ..everything() }, "listed_submitter"),
        both(SubmissionFilter { pending: vec![77], ..everything() }, "submission_pending_user"),
        both(SubmissionFilter { participants: vec![77], ..everything() }, "submission_participants_user"),
        both(SubmissionFilter { flows: vec![77], ..everything() }, "submission_flow_steps_step"),
        first(
            SubmissionFilter { terms, ..everything() },
            "listed_terms_term",
            "listed_terms USING PRIMARY KEY (term=?",
        ),
        first(keyword("JQ"), "listed_documents_pairs", "listed_trigrams VIRTUAL TABLE INDEX"),
        // In nearly every document.
        first(keyword("an"), "listed_documents_pairs", "listed_trigrams VIRTUAL TABLE INDEX"),
        first(keyword("rare jq"), "listed_documents_trigrams", "listed_trigrams VIRTUAL TABLE INDEX"),
        first(of_a_few("rare jq"), "listed_documents_trigrams", "listed_trigrams VIRTUAL TABLE INDEX"),
        // Beside a common keyword, the documents of what other filters leave are looked through, by their ids.
        first(of_a_few("an"), "listed_documents_pairs", "listed_trigrams VIRTUAL TABLE INDEX"),
        both(of_a_few("an"), "listed_documents_shown_in"),
        first(of_a_few("an"), "submission_pending_user", "submission_pending_user"),
    ]
}

/// The tables that hold a row a submission.
const LARGE: [&str; 7] = [
    "submissions",
    "answers",
    "submission_labels",
    "listed_submissions",
    "listed_documents",
    "listed_terms",
    "listed_by_label",
];

on_both_databases! {
    async fn each_filter_is_served_by_an_index(engine: Engine) {
        let (_account, store) = filled(engine).await;
        for Plan { filter, page, postgres, sqlite } in plans() {
            let page = PageRequest { number: page.try_into().unwrap(), size: 20 };
            // In the middle of all.
            let position = Position { at: "2024-01-08T16:00:00Z".parse().unwrap(), id: 11_040 };
            let behind = |position| PageStart::Behind { position, size: 100 };
            for start in [page.into(), behind(None), behind(Some(position))] {
                let plan = store.explain_search(&filter, start).await.unwrap().join("\n");
                let index = if engine == Engine::Postgres { postgres } else { sqlite };
                assert!(plan.contains(index), "{index} is not in the plan of {filter:?} {start:?}:\n{plan}");
                for table in LARGE {
                    let scan = format!("Seq Scan on {table} ");
                    assert!(!plan.contains(&scan), "{table} is read whole for {filter:?} {start:?}:\n{plan}");
                }
                // A subquery of the name is read from its own index.
                let scans = plan.lines().any(|line| line == "SCAN s" || line == "SCAN m") && !plan.contains("CO-ROUTINE s");
                assert!(!scans, "submissions are read whole for {filter:?} {start:?}:\n{plan}");
            }
        }
        store.close().await;
    }

    async fn a_position_is_sought_by_its_instant_and_its_id(engine: Engine) {
        let (_account, store) = filled(engine).await;
        let position = Position { at: "2024-01-08T16:00:00Z".parse().unwrap(), id: 11_040 };
        for (sort_by, sort_direction) in [
            (SortBy::UpdatedAt, SortDirection::Descending),
            (SortBy::UpdatedAt, SortDirection::Ascending),
            (SortBy::CreatedAt, SortDirection::Descending),
            (SortBy::CreatedAt, SortDirection::Ascending),
        ] {
            let column = if sort_by == SortBy::UpdatedAt { "updated_at" } else { "created_at" };
            let than = if sort_direction == SortDirection::Ascending { ">" } else { "<" };
            let start: Option<Timestamp> = Some("2024-01-05T12:00:00Z".parse().unwrap());
            let mut filters = vec![everything(), SubmissionFilter { start, ..everything() }];
            if sort_by == SortBy::UpdatedAt {
                filters.push(SubmissionFilter { forms: vec![1, 2], ..everything() });
                filters.push(SubmissionFilter { statuses: vec![Status::Pending, Status::Escalate], ..everything() });
                filters.push(SubmissionFilter { forms: vec![1, 2], statuses: vec![Status::Pending], ..everything() });
                filters.push(SubmissionFilter { labels: vec![3], ..everything() });
            }
            for filter in filters {
                let is_label = !filter.labels.is_empty();
                let filter = SubmissionFilter { sort_by, sort_direction, ..filter };
                let start = PageStart::Behind { position: Some(position), size: 20 };
                let plan = store.explain_search(&filter, start).await.unwrap().join("\n").replace("s.", "");
                // SQLite seeks both columns in a table of its own key, and else the rest of an instant and what follows it.
                let seeks = match engine {
                    Engine::Sqlite if is_label => vec![format!("(updated_at,submission_id){than}(?,?)")],
                    Engine::Sqlite => vec![format!("{column}=? AND id{than}?"), format!("{column}{than}?")],
                    Engine::Postgres | Engine::PostgresOn(_) if is_label => vec![format!("(ROW(updated_at, submission_id) {than} ROW(")],
                    Engine::Postgres | Engine::PostgresOn(_) => vec![format!("(ROW({column}, id) {than} ROW(")],
                };
                for seek in seeks {
                    let line = plan.lines().find(|line| line.contains(&seek));
                    let line = line.unwrap_or_else(|| panic!("{seek} is not in the plan of {filter:?}:\n{plan}"));
                    assert!(line.contains("Index Cond:") || line.contains("SEARCH"), "{filter:?}:\n{plan}");
                }
            }
        }
        store.close().await;
    }

    async fn a_plan_does_not_grow_with_what_a_caller_sends(engine: Engine) {
        let (_account, store) = filled(engine).await;
        let page = PageRequest { number: 1.try_into().unwrap(), size: 20 };
        let terms = |keys: i64, answers: usize| SubmissionFilter {
            terms: (1..=keys)
                .map(|key| Term { element: Some(key), answers: (0..answers).map(|answer| format!("case {answer}")).collect() })
                .collect(),
            ..keyword("case")
        };
        let lists = |values: i64| {
            let ids = || (1..=values).collect::<Vec<_>>();
            let many = SubmissionFilter { forms: ids(), submitters: ids(), pending: ids(), ..everything() };
            [
                SubmissionFilter { forms: ids(), ..everything() },
                SubmissionFilter { participants: ids(), labels: ids(), shared_labels: ids(), flows: ids(), ..keyword("case") },
                SubmissionFilter { statuses: Status::ALL.iter().copied().cycle().take(ids().len()).collect(), ..many },
            ]
        };
        for (few, many) in [(terms(2, 1), terms(50, 20)), (terms(3, 1), terms(400, 2)), (terms(3, 1), terms(3, 300))]
            .into_iter()
            .chain(lists(7).into_iter().zip(lists(1000)))
        {
            let few = store.explain_search(&few, page).await.unwrap();
            let many = store.explain_search(&many, page).await.unwrap();
            // The planner may choose otherwise, but has no more to choose from.
            assert!(many.len() <= few.len() + 10, "{} and {} steps:\n{}", few.len(), many.len(), many.join("\n"));
            let bytes = |plan: &[String]| plan.iter().map(|line| line.split("ANY (").next().unwrap().len()).sum::<usize>();
            assert!(bytes(&many) < 2 * bytes(&few), "{}", many.join("\n"));
        }
        store.close().await;
    }

    async fn a_keyword_with_other_filters_finds_the_same_in_either_plan(engine: Engine) {
        let (account, store) = filled(engine).await;
        let database = account.database().await;
        // Those of form 1, which are those with label 1 too, have the keywords in their children alone: every third one.
        for statement in [
            "UPDATE answers SET value = 'Nothing' WHERE submission_id % 20 = 0",
            "UPDATE forms SET graduated = true WHERE id = 1",
            "INSERT INTO submissions (id, form_id, parent_id, status, draft, created_at, updated_at) \
             SELECT 100000 + id, 2, id, 'info', id % 60 = 20, created_at, updated_at FROM submissions \
             WHERE id % 60 IN (0, 20)",
            "INSERT INTO answers (submission_id, element_id, value, updated_at) \
             SELECT id, 20, 'In a case of its own', updated_at FROM submissions WHERE parent_id IS NOT NULL",
        ] {
            database.execute(statement).await;
        }
        let has_case = |id: &i64| if id % 20 == 0 { id % 60 == 0 } else { id % 1000 != 7 };
        let is_rare = |id: &i64| id % 1000 == 7;
        settle(&store).await;
        let all = || everything();
        let label = |id| SubmissionFilter { labels: vec![id], ..all() };
        let pending = || SubmissionFilter { statuses: vec![Status::Pending], ..all() };
        let mixed = || SubmissionFilter { forms: vec![1, 2], ..label(1) };
        type Holds<'h> = &'h dyn Fn(&i64) -> bool;
        let cases: [(&str, SubmissionFilter, Holds<'_>); 12] = [
            // A few are looked through, by what is common.
            ("case", label(1), &|id| id % 20 == 0 && has_case(id)),
            ("ca", label(1), &|id| id % 20 == 0 && has_case(id)),
            ("case", label(8), &|id| id % 20 == 7 && has_case(id)),
            ("ca", label(8), &|id| id % 20 == 7 && has_case(id)),
            ("CASE", mixed(), &|id| id % 20 == 0 && has_case(id)),
            // What is common is looked up among many.
            ("case", pending(), &|id| id % 100 != 0 && has_case(id)),
            ("ca", pending(), &|id| id % 100 != 0 && has_case(id)),
            // What is rare is looked up, whatever else is asked for.
            ("rare jq", label(8), &|id| id % 20 == 7 && is_rare(id)),
            ("jq", label(8), &|id| id % 20 == 7 && is_rare(id)),
            ("rare jq", pending(), &is_rare),
            ("own", label(1), &|id| id % 60 == 0),
            ("jq", label(1), &|_| false),
        ];
        for (text, filter, holds) in cases {
            let filter = SubmissionFilter { search: Keyword::new(text), ..filter };
            let expected: Vec<i64> = (1..=SUBMISSIONS).rev().filter(|id| holds(id)).collect();
            let last = expected.len().div_ceil(20).max(1);
            for number in [1, last / 2 + 1, last] {
                let page = PageRequest { number: (number as u64).try_into().unwrap(), size: 20 };
                let found = store.search(&filter, page).await.unwrap();
                assert_eq!(found.total, expected.len() as u64, "{filter:?}");
                let shown: Vec<i64> = found.submissions.read().unwrap().unwrap().submissions.iter().map(|found| found.id).collect();
                assert_eq!(shown, expected.chunks(20).nth(number - 1).unwrap_or_default(), "page {number} of {filter:?}");
            }
        }
        store.close().await;
    }

    async fn late_pages_contain_the_right_rows(engine: Engine) {
        let (account, store) = filled(engine).await;
        // Every seventh changed long ago, so that the two orders differ and a day of one is none of the other.
        let earlier = match account.database().await {
            Database::Postgres(_) => "updated_at - interval '400 days'",
            Database::Sqlite(_) => "updated_at - 400 * 86400000000",
        };
        let database = account.database().await;
        database.execute(&format!("UPDATE submissions SET updated_at = {earlier} WHERE id % 7 = 0")).await;
        database.execute("UPDATE submissions SET draft = true WHERE id % 11 = 0").await;
        database.execute("DELETE FROM submissions WHERE id % 13 = 0").await;
        settle(&store).await;

        let mut ids: Vec<i64> = (1..=SUBMISSIONS).filter(|id| id % 11 != 0 && id % 13 != 0).collect();
        for by in [SortBy::CreatedAt, SortBy::UpdatedAt] {
            ids.sort_by_key(|id| (by == SortBy::UpdatedAt && id % 7 != 0, *id));
            for sort_direction in [SortDirection::Ascending, SortDirection::Descending] {
                let filter = SubmissionFilter { sort_by: by, sort_direction, ..everything() };
                let last = ids.len().div_ceil(20);
                for number in [2, 99, 101, 150, 250, last / 2, last / 2 + 1, last - 250, last - 101, last - 1, last] {
                    let page = PageRequest { number: (number as u64).try_into().unwrap(), size: 20 };
                    let found = store.search(&filter, page).await.unwrap();
                    assert_eq!(found.total, ids.len() as u64);
                    let shown: Vec<i64> = found.submissions.read().unwrap().unwrap().submissions.iter().map(|found| found.id).collect();
                    assert_eq!(shown, ids.chunks(20).nth(number - 1).unwrap(), "page {number} of {filter:?}");
                }
                ids.reverse();
            }
            ids.sort_unstable();
        }
        store.close().await;
    }
}

/// Postgres says how often it used a kept plan of a statement, and how often it made one, only to the connection that the
/// statement was prepared on; so a trigger asks there.
const NOTE_PLANS: &str = "
    CREATE TABLE plans (anew boolean, kept bigint, made bigint);
    CREATE FUNCTION note_plans() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO plans SELECT statement LIKE '%LIMIT CASE%', generic_plans, custom_plans
            FROM pg_prepared_statements WHERE statement LIKE '%submissions%';
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_plans AFTER INSERT ON groups EXECUTE FUNCTION note_plans()";

#[tokio::test]
async fn postgres_keeps_a_plan_only_where_it_is_right_for_all_values() {
    let (account, store) = filled(Engine::Postgres).await;
    let database = account.database().await;
    database.execute(NOTE_PLANS).await;
    let page = |number: u64, size| PageRequest { number: number.try_into().unwrap(), size };

    // A plan may be kept from the sixth time on.
    for round in 1..=12 {
        store.submission(round).await.unwrap();
        store.search(&everything(), page(1, 20)).await.unwrap();
        // The shortest list of ids, which a plan for its length alone would find for less.
        store.search(&everything(), page(8000 + round.unsigned_abs(), 1)).await.unwrap();
        store.search(&SubmissionFilter { labels: vec![round], ..everything() }, page(1, 20)).await.unwrap();

        store.search(&everything(), page(400 + round.unsigned_abs(), 20)).await.unwrap();
        store.search(&SubmissionFilter { forms: vec![round], ..everything() }, page(1, 20)).await.unwrap();
        store.search(&keyword(&format!("case {round}")), page(1, 20)).await.unwrap();
    }
    let write = GroupWrite { name: "Any".to_owned(), external_id: None, members: None };
    let mode = WriteMode { guard: None, durability: Durability::Commit, report: Report::Counts };
    store.write_group(&write, mode, &SyncedBy { name: "plans".into(), token: None }).await.unwrap();

    let figures = "SELECT count(*), min(kept), max(kept), max(made) FROM plans WHERE ";
    let [statements, least_kept, _, most_made] =
        database.integers(&format!("{figures} NOT anew AND kept + made >= 12")).await;
    assert!(statements == 4 && least_kept >= 7 && most_made <= 5, "{statements} {least_kept} {most_made}");
    let [statements, _, most_kept, _] = database.integers(&format!("{figures} anew")).await;
    assert_eq!((statements, most_kept), (3, 0));
    store.close().await;
}
