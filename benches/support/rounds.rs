//! Medians over rounds, and the ratio of two of them.
//!
//! A shared machine is slow for seconds at a time. What is compared is therefore measured in turns within each round, a
//! ratio is taken within its round, and only then comes the median: what slows a round slows both of its sides.

/// One quantity, once a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    /// Adds a round.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The median.
    pub(crate) fn median(&self) -> f64 {
        median(self.0.clone())
    }

    /// The median of the ratios to another quantity, round by round.
    pub(crate) fn ratio_to(&self, floor: &Self) -> f64 {
        median(self.0.iter().zip(&floor.0).map(|(value, floor)| value / floor).collect())
    }

    /// How far apart the rounds are: the distance between the first and the last quarter, in percent of the median.
    pub(crate) fn spread(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let quarter = sorted.len() / 4;
        (sorted[sorted.len() - 1 - quarter] - sorted[quarter]) / self.median() * 100.0
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}
