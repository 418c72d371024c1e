//! Searches by forms include the sub-forms at any depth, whatever the tree looks like: the answers are those of a walk
//! over the tree.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::NOTHING_WRONG;
use crate::api::account::{Account, account};
use crate::api::world::STATUSES;
use crate::support::database::Database;
use crate::support::fixture::on_all_databases;

struct Submission {
    id: usize,
    form: usize,
    status: &'static str,
    /// In minutes; two submissions can share one.
    created: usize,
    updated: usize,
}

/// An account's forms, with ids from 1 on, and its submissions.
struct Tree {
    parents: Vec<Option<usize>>,
    submissions: Vec<Submission>,
    random: StdRng,
}

impl Tree {
    fn new(seed: u64, parents: Vec<Option<usize>>) -> Self {
        Self { parents, submissions: Vec::new(), random: StdRng::seed_from_u64(seed) }
    }

    /// Adds a submission of a form.
    fn submit(&mut self, form: usize) {
        let (id, random) = (self.submissions.len() + 1, &mut self.random);
        let [created, updated] = [(); 2].map(|()| random.random_range(0..5_000));
        let status = STATUSES.choose(random).expect("there are some");
        self.submissions.push(Submission { id, form, status, created, updated });
    }

    /// Gives every form another parent or none, which makes cycles too.
    fn move_all(&mut self) {
        let count = self.parents.len();
        for form in 1..=count {
            let parent = self.random.random_range(1..=count);
            self.parents[form - 1] = (parent != form && self.random.random_bool(0.8)).then_some(parent);
        }
    }

    /// Whether a form is one of these or below one.
    fn is_covered(&self, form: usize, wanted: &HashSet<usize>) -> bool {
        let (mut at, mut seen) = (Some(form), HashSet::new());
        while let Some(form) = at.filter(|form| seen.insert(*form)) {
            if wanted.contains(&form) {
                return true;
            }
            at = self.parents[form - 1];
        }
        false
    }

    /// A search by forms of which one is among `among`, and the ids that it finds.
    fn search(&mut self, among: &[usize]) -> (Value, Vec<String>) {
        let random = &mut self.random;
        let mut forms = vec![*among.choose(random).expect("there are some")];
        forms.extend((0..random.random_range(0..3)).map(|_| random.random_range(1..=self.parents.len() + 3)));
        let statuses: Vec<_> = STATUSES.iter().filter(|_| random.random_bool(0.2)).copied().collect();
        let [sort, direction] =
            [["updated_at", "created_at"], ["desc", "asc"]].map(|way| way[random.random_range(0..2)]);
        let wanted: HashSet<usize> = forms.iter().copied().collect();
        let mut found: Vec<(usize, usize)> = self
            .submissions
            .iter()
            .filter(|one| statuses.is_empty() || statuses.contains(&one.status))
            .filter(|one| self.is_covered(one.form, &wanted))
            .map(|one| (if sort == "updated_at" { one.updated } else { one.created }, one.id))
            .collect();
        found.sort_unstable();
        if direction == "desc" {
            found.reverse();
        }
        let filter = json!({"forms": forms, "statuses": statuses, "sortBy": sort, "sortDirection": direction});
        (filter, found.into_iter().map(|(_, id)| format!("sub_{id}")).collect())
    }

    fn parent(&self, form: usize) -> String {
        self.parents[form - 1].map_or("NULL".to_owned(), |parent| parent.to_string())
    }

    async fn write_forms(&self, database: &Database) {
        let row = |id| format!("({id}, 'Form {id}', {})", self.parent(id));
        let rows: Vec<String> = (1..=self.parents.len()).map(row).collect();
        database.execute(&format!("INSERT INTO forms (id, name, parent_id) VALUES {}", rows.join(", "))).await;
    }

    async fn write_parents(&self, database: &Database) {
        for id in 1..=self.parents.len() {
            database.execute(&format!("UPDATE forms SET parent_id = {} WHERE id = {id}", self.parent(id))).await;
        }
    }

    async fn write_submissions(&self, database: &Database) {
        let at = |minute: &usize| match database {
            Database::Postgres(_) => format!("timestamptz '2024-01-01T00:00:00Z' + {minute} * interval '1 minute'"),
            Database::Sqlite(_) => format!("1704067200000000 + {minute} * 60000000"),
        };
        let row = |one: &Submission| {
            let Submission { id, form, status, created, updated } = one;
            format!("({id}, {form}, '{status}', {}, {})", at(created), at(updated))
        };
        let rows: Vec<_> = self.submissions.iter().map(row).collect();
        let into = "INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES";
        database.execute(&format!("{into} {}", rows.join(", "))).await;
    }

    /// Searches by forms among these, and expects what the walk finds.
    async fn assert_found(&mut self, account: &Account, among: &[usize], searches: usize) {
        for _ in 0..searches {
            let (filter, expected) = self.search(among);
            let last = expected.len().div_ceil(20).max(1);
            let page = self.random.random_range(1..=last);
            let answer = account.search(&format!("?page={page}"), &filter).await;
            assert_eq!(answer["meta"]["total"], expected.len(), "{filter}");
            let shown: Option<Vec<_>> =
                answer["data"].as_array().expect("a list").iter().map(|one| one["id"].as_str()).collect();
            assert_eq!(
                shown.expect("ids"),
                expected.chunks(20).nth(page - 1).unwrap_or_default(),
                "page {page} of {filter}"
            );
        }
    }
}

on_all_databases! {
    async fn a_search_by_forms_follows_forms_that_move_also_in_circles(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        let mut tree = Tree::new(1, vec![None; 60]);
        tree.write_forms(&database).await;
        for _ in 0..250 {
            let form = tree.random.random_range(1..=40);
            tree.submit(form);
        }
        tree.write_submissions(&database).await;
        let all: Vec<usize> = (1..=60).collect();
        for _ in 0..8 {
            tree.move_all();
            tree.write_parents(&database).await;
            tree.assert_found(&account, &all, 12).await;
        }
        assert_eq!(account.reindex(), NOTHING_WRONG);
    }

    async fn of_thousands_of_sub_forms_those_that_have_submissions_are_found(engine: Engine) {
        // Form 1 has 3,000 sub-forms, form 2 has 300, and a chain begins below the last of those. There are a
        // chain and a circle of their own, too.
        let parents = (1..=4_000).map(|form| match form {
            1 | 2 | 3_900 => None,
            3..=3_002 => Some(1),
            3_003..=3_302 => Some(2),
            3_950 => Some(4_000),
            _ => Some(form - 1),
        });
        let mut tree = Tree::new(2, parents.collect());
        let account = account(engine, "");
        let database = account.database().await;
        tree.write_forms(&database).await;
        for form in [1, 2, 3, 3_002, 3_002, 3_002, 3_303, 3_310, 3_899, 3_900, 3_949] {
            tree.submit(form);
        }
        for form in 3_003..=3_302 {
            tree.submit(form);
        }
        for _ in 0..30 {
            let form = tree.random.random_range(3..=3_002);
            tree.submit(form);
        }
        tree.write_submissions(&database).await;
        tree.assert_found(&account, &[1, 2, 3_302, 3_500, 3_900, 3_950, 3_970, 4_000], 60).await;
    }

    async fn sub_forms_and_submissions_that_are_both_many_are_found(engine: Engine) {
        // Forms 1 and 2 have 20,000 sub-forms, and the last of them begins a chain, all of which have submissions, as has a
        // circle of three.
        let (wide, deep) = (20_000, 250);
        let circle = wide + deep + 1;
        let parents = (1..=circle + 2).map(|form| match form {
            1 | 2 => None,
            form if form == circle => Some(circle + 2),
            form if form <= wide => Some(if form % 10 == 0 { 2 } else { 1 }),
            form => Some(form - 1),
        });
        let mut tree = Tree::new(3, parents.collect());
        let account = account(engine, "");
        let database = account.database().await;
        tree.write_forms(&database).await;
        for form in wide..=circle + 2 {
            tree.submit(form);
        }
        for _ in 0..800 {
            let form = tree.random.random_range(1..=wide);
            tree.submit(form);
        }
        tree.write_submissions(&database).await;
        tree.assert_found(&account, &[1, 2, wide + deep / 2, circle + 1], 40).await;
    }
}
