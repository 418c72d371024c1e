//! How many workers a load needs.

use std::time::Duration;

/// Of a core: a worker that takes so much of one has no time to spare. More, and bursts wait longer for another worker;
/// less, and one more is called that has little to do.
const FULL: f64 = 0.93;

/// Of a core: what it takes that work is shared with one more, and what more of it the callers bring who are answered
/// sooner. Where one more takes less, those before could have done it. If they could not, what they left undone shows.
const SHARING: f64 = 0.1;

/// Of a core: below that, a worker has time to spare.
const HALF: f64 = 0.5;

/// For how long those at work have no time to spare before more are called. Shorter, and chance does it.
const PATIENCE: Duration = Duration::from_millis(10);

/// The same where to call more has just been in vain, again and again: each time twice as long.
const MOST_PATIENCE: Duration = Duration::from_millis(320);

/// How long those that were called are tried.
const TRIAL: Duration = Duration::from_millis(40);

/// How long is looked at before one goes. Shorter, and chance does it.
const CALM: Duration = Duration::from_millis(100);

/// How many workers are at work, and what the load has been since that was decided.
#[derive(Debug)]
pub(super) struct Load {
    all: usize,
    at_work: usize,
    /// For how long those at work must have no time to spare.
    patience: Duration,
    /// For how long they have had none.
    full: Duration,
    /// How many there were before those who are tried were called.
    tried_beside: Option<usize>,
    looked: Duration,
    core_seconds: f64,
}

impl Load {
    /// With all workers at work.
    pub(super) fn new(all: usize) -> Self {
        let (full, looked) = (Duration::ZERO, Duration::ZERO);
        Self { all, at_work: all, patience: PATIENCE, full, tried_beside: None, looked, core_seconds: 0.0 }
    }

    /// How many workers are needed from now on, after so much time in which the process took so many cores.
    pub(super) fn observe(&mut self, wall: Duration, cores: f64) -> usize {
        self.full = if cores >= FULL * count(self.at_work) { self.full + wall } else { Duration::ZERO };
        self.looked += wall;
        self.core_seconds += cores * wall.as_secs_f64();
        match self.tried_beside {
            Some(before) if self.looked >= TRIAL => self.judge(before),
            None if self.full >= self.patience && self.at_work < self.all => self.call(),
            None if self.looked >= CALM => self.let_one_go(),
            _ => {}
        }
        self.at_work
    }

    /// Whether those at work could do much more.
    pub(super) fn has_time_to_spare(&self, cores: f64) -> bool {
        cores < HALF * count(self.at_work)
    }

    fn call(&mut self) {
        self.tried_beside = Some(self.at_work);
        self.at_work = self.all.min(2 * self.at_work);
        self.full = Duration::ZERO;
        self.look_anew();
    }

    /// Keeps as many of those who were called as had something to do.
    fn judge(&mut self, before: usize) {
        self.at_work = self.enough().clamp(before, self.at_work);
        self.patience = if self.at_work == before { MOST_PATIENCE.min(2 * self.patience) } else { PATIENCE };
        self.tried_beside = None;
        self.full = Duration::ZERO;
        self.look_anew();
    }

    fn let_one_go(&mut self) {
        if self.has_time_to_spare(self.mean()) {
            self.patience = PATIENCE;
        }
        if self.enough() < self.at_work {
            self.at_work -= 1;
            self.full = Duration::ZERO;
        }
        self.look_anew();
    }

    fn look_anew(&mut self) {
        (self.looked, self.core_seconds) = (Duration::ZERO, 0.0);
    }

    /// How many cores were taken in what was looked at.
    fn mean(&self) -> f64 {
        self.core_seconds / self.looked.as_secs_f64()
    }

    /// How many workers could have done that.
    fn enough(&self) -> usize {
        (1..self.all).find(|&fewer| self.mean() < FULL * count(fewer) + SHARING).unwrap_or(self.all)
    }
}

#[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 cores")]
fn count(workers: usize) -> f64 {
    workers as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(5);

    /// Looks for so long at a process whose cores depend on how many are at work, and tells the times of each change.
    fn run(load: &mut Load, milliseconds: u32, cores: impl Fn(usize) -> f64) -> Vec<(u32, usize)> {
        let (mut at_work, mut changes) = (load.at_work, Vec::new());
        for tick in 1..=milliseconds / 5 {
            let now = load.observe(TICK, cores(at_work));
            if now != at_work {
                changes.push((tick * 5, now));
                at_work = now;
            }
        }
        changes
    }

    #[test]
    fn without_a_load_one_is_left() {
        let mut load = Load::new(4);
        assert_eq!(run(&mut load, 1000, |_| 0.0), [(100, 3), (200, 2), (300, 1)]);
        assert_eq!(run(&mut load, 1000, |_| 0.9), []);
    }

    #[test]
    fn more_than_one_can_do_has_all_of_them_soon() {
        let mut load = Load::new(8);
        run(&mut load, 1000, |_| 0.1);
        assert_eq!(run(&mut load, 500, |at_work| count(at_work) * 0.99), [(10, 2), (60, 4), (110, 8)]);
    }

    #[test]
    fn those_who_were_called_and_had_little_to_do_go_again() {
        let mut load = Load::new(8);
        run(&mut load, 1000, |_| 0.1);
        // Work for two and a fifth, dearer by a twentieth with each that shares it.
        let changes = run(&mut load, 2000, |at_work| (2.2 * (0.95 + count(at_work) / 20.0)).min(count(at_work)));
        assert_eq!(changes.last().map(|change| change.1), Some(3));
    }

    #[test]
    fn what_one_can_just_do_is_left_to_one_and_more_are_tried_ever_less_often() {
        let mut load = Load::new(2);
        run(&mut load, 1000, |_| 0.1);
        // A load that waits for its answers is as much as whoever serves it can do.
        let changes = run(&mut load, 2000, |_| 0.98);
        let called: Vec<u32> = changes.iter().filter(|change| change.1 == 2).map(|change| change.0).collect();
        assert_eq!(called, [10, 70, 150, 270, 470, 830, 1190, 1550, 1910]);
        // Once there was time to spare, the next burst is served as soon as the first.
        run(&mut load, 200, |_| 0.1);
        assert_eq!(run(&mut load, 15, |_| 0.98), [(10, 2)]);
    }

    #[test]
    fn a_single_worker_is_always_at_work() {
        let mut load = Load::new(1);
        for cores in [0.0, 0.5, 1.0, 3.0] {
            assert_eq!(run(&mut load, 500, |_| cores), []);
        }
    }

    #[test]
    fn a_look_after_long_or_after_nothing_changes_no_more_than_one_step() {
        let mut load = Load::new(4);
        assert_eq!(load.observe(Duration::ZERO, 9.0), 4);
        assert_eq!(load.observe(Duration::from_secs(60), 0.0), 3);
        assert_eq!(load.observe(Duration::ZERO, 9.0), 3);
        assert_eq!(load.observe(Duration::from_secs(60), 9.0), 4);
    }
}
