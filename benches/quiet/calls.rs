//! The calls of the mix, and which account is called.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::accounts::SUBMISSIONS;
use crate::world::host;

/// The exponent of Zipf's law: the account at rank `k` is called in proportion to `1 / k^EXPONENT`.
const EXPONENT: f64 = 0.9;

/// The budget of an account.
const BUDGET: usize = 60;
const WINDOW: Duration = Duration::from_secs(61);

/// The calls, with their shares in percent.
const MIX: [(Call, u32); 5] =
    [(Call::FirstPage, 60), (Call::Submission, 20), (Call::Forms, 10), (Call::Me, 5), (Call::WriteGroup, 5)];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    FirstPage,
    Submission,
    Forms,
    Me,
    WriteGroup,
}

impl Call {
    pub(crate) const ALL: [Self; 5] = [MIX[0].0, MIX[1].0, MIX[2].0, MIX[3].0, MIX[4].0];

    pub(crate) fn of_the_mix(random: &mut SmallRng) -> Self {
        let mut at = random.random_range(0..100);
        for (call, share) in MIX {
            if at < share {
                return call;
            }
            at -= share;
        }
        unreachable!("the shares are of a hundred")
    }

    /// The request.
    pub(crate) fn request(self, token: &str, account: usize, random: &mut SmallRng) -> String {
        let (line, body) = match self {
            Self::FirstPage => ("POST /api/v1/submission".to_owned(), "{}".to_owned()),
            Self::Submission => {
                (format!("GET /api/v1/submission/sub_{}", random.random_range(1..=SUBMISSIONS)), String::new())
            }
            Self::Forms => ("GET /api/v1/form".to_owned(), String::new()),
            Self::Me => ("GET /api/v1/me".to_owned(), String::new()),
            Self::WriteGroup => {
                let member = random.random_range(1..=20);
                let body = format!(
                    r#"{{"name":"Staff","external_id":"staff","members":[{{"email":"u{member}@example.com"}}]}}"#
                );
                ("PUT /api/v1/group".to_owned(), body)
            }
        };
        format!(
            "{line} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            host(account),
            token,
            body.len()
        )
    }
}

/// Chooses accounts by Zipf's law, within their budgets.
pub(crate) struct Accounts {
    /// The sums of the weights up to each account.
    sums: Vec<f64>,
    recent: Vec<VecDeque<Instant>>,
}

impl Accounts {
    pub(crate) fn new(accounts: usize) -> Self {
        let weights = (1..=accounts).map(|rank| (rank as f64).powf(-EXPONENT));
        let sums = weights
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        Self { sums, recent: vec![VecDeque::new(); accounts] }
    }

    /// The next one to call.
    pub(crate) fn choose(&mut self, random: &mut SmallRng, now: Instant) -> usize {
        loop {
            let at = random.random_range(0.0..*self.sums.last().expect("there are accounts"));
            let account = self.sums.partition_point(|sum| *sum <= at).min(self.sums.len() - 1);
            let recent = &mut self.recent[account];
            while recent.front().is_some_and(|call| now.duration_since(*call) > WINDOW) {
                recent.pop_front();
            }
            if recent.len() < BUDGET {
                recent.push_back(now);
                return account;
            }
        }
    }
}
