//! Bars of requests, stacked by token, and the same numbers as a table.
//!
//! Knows numbers and names, and no database. The six tokens with the most requests have a colour of their own. Heights
//! and places are attributes of the SVG: the content security policy forbids styles in a page.

use std::collections::{BTreeMap, HashMap};

use super::texts::{ChartTexts, NumbersTexts};
use crate::store::RequestCounts;

/// How many tokens are named. Larger: colours are hard to tell apart. Smaller: more requests are those of other tokens.
const NAMED: usize = 6;

/// The height of the drawing, in its own unit.
const HEIGHT: u16 = 100;

/// The place that a bar has. It is a little narrower itself.
const PLACE: usize = 10;

/// The least height of a part that is not empty: a single refusal among thousands of requests is seen.
const LEAST: f64 = 1.5;

/// Requests of a token in a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// The bar.
    pub(super) bar: usize,
    /// The row of the table. A bar may have several.
    pub(super) row: i64,
    pub(super) token: i64,
    pub(super) counts: RequestCounts,
}

/// What one chart says about itself.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    pub(super) id: &'static str,
    pub(super) heading: &'static str,
    /// What the first column of the table has.
    pub(super) row: &'static str,
    pub(super) empty: &'static str,
    pub(super) note: Option<&'static str>,
    /// What all charts say.
    pub(super) text: &'static ChartTexts,
    pub(super) numbers: &'static NumbersTexts,
}

/// The name of a period: for programs, and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) exact: String,
    pub(super) shown: String,
}

/// A chart as the template needs it.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) labels: Labels,
    pub(super) bars: Vec<Bar>,
    pub(super) width: usize,
    /// The periods of the first bar, the one in the middle, and the last one.
    pub(super) periods: [String; 3],
    /// The requests in the highest bar.
    pub(super) most: i64,
    /// The number at the upper end of the axis.
    top: i64,
    pub(super) series: Vec<Series>,
    pub(super) total: RequestCounts,
    pub(super) rows: Vec<Row>,
}

/// A bar that is not empty.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) title: String,
    pub(super) parts: Vec<Part>,
}

/// A rectangle.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) class: &'static str,
    pub(super) x: usize,
    pub(super) y: String,
    pub(super) height: String,
}

/// Admitted requests of a token or of all others, or what was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Series {
    pub(super) class: &'static str,
    pub(super) name: String,
    /// The token, if it is one.
    pub(super) token: Option<i64>,
    pub(super) total: i64,
}

/// A row of the table: a number for each series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) period: Period,
    pub(super) numbers: Vec<i64>,
}

/// The tokens that are named, those with the most requests first.
#[derive(Debug)]
pub(super) struct NamedTokens {
    pub(super) tokens: Vec<i64>,
    has_others: bool,
}

impl NamedTokens {
    /// Finds them. `others` is no token.
    pub(super) fn of(points: &[Point], others: i64) -> Self {
        let mut totals: HashMap<i64, i64> = HashMap::new();
        // Points come in runs: the rows of a period, or of a token.
        points.iter().for_each(|point| *totals.entry(point.token).or_default() += point.counts.total());
        let mut tokens: Vec<(i64, i64)> = totals.into_iter().filter(|(token, _)| *token != others).collect();
        tokens.sort_unstable_by_key(|(token, total)| (std::cmp::Reverse(*total), *token));
        let named: Vec<i64> = tokens.iter().take(NAMED).map(|(token, _)| *token).collect();
        let has_others = tokens.len() > NAMED || points.iter().any(|point| point.token == others);
        Self { tokens: named, has_others }
    }

    /// Where a token's requests are added; the last but one is that of all others.
    fn place(&self, token: i64) -> usize {
        self.tokens.iter().position(|named| *named == token).unwrap_or(self.tokens.len())
    }

    /// How many numbers a period has: one a token, the others, what was refused.
    fn numbers(&self) -> usize {
        self.tokens.len() + 2
    }
}

impl Chart {
    /// Draws points. `names` has the names of the named tokens.
    pub(super) fn draw(
        labels: Labels,
        named: &NamedTokens,
        names: &HashMap<i64, String>,
        points: &[Point],
        bars: &[Period],
        row: impl Fn(i64) -> Period,
    ) -> Self {
        let text = labels.text;
        let (others, refused) = (named.tokens.len(), named.tokens.len() + 1);
        let empty = || vec![0; named.numbers()];
        let mut by_bar = vec![empty(); bars.len()];
        let mut by_row: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        let mut total = RequestCounts::default();
        // With dozens of tokens, a row is looked up once and not for each.
        for run in points.chunk_by(|point, next| point.row == next.row) {
            let of_row = by_row.entry(run[0].row).or_insert_with(empty);
            for point in run {
                let place = named.place(point.token);
                for numbers in [&mut by_bar[point.bar], &mut *of_row] {
                    numbers[place] += point.counts.admitted;
                    numbers[refused] += point.counts.refused;
                }
                total.add(point.counts);
            }
        }
        let sum = |place: usize| by_bar.iter().map(|numbers| numbers[place]).sum::<i64>();
        let mut series: Vec<Series> = Vec::new();
        for (place, token) in named.tokens.iter().enumerate() {
            let name = names.get(token).cloned().unwrap_or_else(|| text.token.with("number", token));
            series.push(Series { class: CLASSES[place], name, token: Some(*token), total: sum(place) });
        }
        let rest = [("s0", &text.others, others), ("refused", &text.refused, refused)];
        let shown: Vec<usize> = (0..named.numbers()).filter(|place| *place != others || named.has_others).collect();
        for (class, name, place) in rest.into_iter().filter(|(_, _, place)| shown.contains(place)) {
            series.push(Series { class, name: name.to_string(), token: None, total: sum(place) });
        }
        let label_of = |at: Option<&Period>| at.map(|period| period.shown.clone()).unwrap_or_default();
        let most = by_bar.iter().map(|numbers| numbers.iter().sum::<i64>()).max().unwrap_or(0);
        let top = top_of(most);
        let class = |place: usize| match place {
            _ if place == refused => "refused",
            _ if place == others => "s0",
            _ => CLASSES[place],
        };
        let drawn = by_bar.iter().enumerate().filter(|(_, numbers)| numbers.iter().any(|number| *number > 0));
        let drawn = drawn.map(|(at, numbers)| Bar {
            title: title(&labels, &bars[at].shown, numbers.iter().sum::<i64>() - numbers[refused], numbers[refused]),
            parts: stack(at, numbers, top, class),
        });
        let chosen = |numbers: &[i64]| shown.iter().map(|place| numbers[*place]).collect();
        let rows = by_row.iter().map(|(at, numbers)| Row { period: row(*at), numbers: chosen(numbers) });
        Self {
            bars: drawn.collect(),
            width: bars.len() * PLACE,
            periods: [bars.first(), bars.get(bars.len() / 2), bars.last()].map(label_of),
            most,
            top,
            series,
            total,
            rows: rows.collect(),
            labels,
        }
    }

    /// All requests in the chart, and the highest bar.
    pub(super) fn totals(&self) -> String {
        let numbers = [self.total.admitted, self.total.refused, self.most];
        let [admitted, refused, most] = numbers.map(|number| self.labels.numbers.show(number));
        self.labels.text.totals.fill(&[("admitted", &admitted), ("refused", &refused), ("most", &most)])
    }

    /// What the drawing shows, in words.
    pub(super) fn summary(&self) -> String {
        title(&self.labels, self.labels.heading, self.total.admitted, self.total.refused)
    }

    /// The numbers on the axis, from its upper end to 0.
    pub(super) fn ticks(&self) -> Vec<String> {
        let ticks = if self.top == 1 { vec![1, 0] } else { vec![self.top, self.top / 2, 0] };
        ticks.into_iter().map(|tick| self.labels.numbers.show(tick)).collect()
    }

    /// The path of the lines at these numbers; the one at 0 is the edge of the drawing.
    pub(super) fn grid(&self) -> String {
        let lines = self.ticks().len() - 1;
        let heights = (0..lines).map(|line| usize::from(HEIGHT) * line / lines);
        heights.map(|height| format!("M0 {height}H{}", self.width)).collect()
    }
}

/// The classes of the named tokens.
const CLASSES: [&str; NAMED] = ["s1", "s2", "s3", "s4", "s5", "s6"];

fn title(labels: &Labels, period: &str, admitted: i64, refused: i64) -> String {
    let [admitted, refused] = [admitted, refused].map(|number| labels.numbers.show(number));
    labels.text.period.fill(&[("period", &period), ("admitted", &admitted), ("refused", &refused)])
}

/// The number at the upper end of the axis: the next round one, whose half is a whole number too, unless it is 1.
fn top_of(most: i64) -> i64 {
    let mut power: i64 = 1;
    loop {
        let mut round = [1, 2, 4, 6, 8].into_iter().map(|digit: i64| digit.saturating_mul(power));
        if let Some(top) = round.find(|top| *top >= most) {
            return top;
        }
        power = power.saturating_mul(10);
    }
}

/// The parts of a bar, from the bottom to the top.
fn stack(at: usize, numbers: &[i64], axis: i64, class: impl Fn(usize) -> &'static str) -> Vec<Part> {
    let mut top = f64::from(HEIGHT);
    let parts = numbers.iter().enumerate().filter(|(_, number)| **number > 0);
    let parts = parts.map(|(place, number)| {
        #[expect(clippy::cast_precision_loss, reason = "a drawing has no more than a few hundred dots")]
        let height = (*number as f64 * f64::from(HEIGHT) / axis as f64).max(LEAST).min(top.max(0.0));
        top -= height;
        Part { class: class(place), x: at * PLACE + 1, y: format!("{top:.1}"), height: format!("{height:.1}") }
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::administration::texts::Texts;
    use crate::config::Language;

    fn draw(points: &[Point]) -> Chart {
        let Texts { chart: text, numbers, .. } = Texts::of(Language::English);
        let labels = Labels { id: "hour", heading: "An hour", row: "Minute", empty: "", note: None, text, numbers };
        let period = |at: i64| Period { exact: at.to_string(), shown: format!("minute {at}") };
        let bars: Vec<Period> = (0..3).map(period).collect();
        let named = NamedTokens::of(points, 0);
        let names = HashMap::from([(1, "one".to_owned())]);
        Chart::draw(labels, &named, &names, points, &bars, period)
    }

    fn point(bar: usize, token: i64, admitted: i64, refused: i64) -> Point {
        let row = i64::try_from(bar).unwrap();
        Point { bar, row, token, counts: RequestCounts { admitted, refused } }
    }

    #[test]
    fn the_six_with_the_most_requests_are_named_and_all_sums_hold() {
        let mut points: Vec<Point> = (1..=8).map(|token| point(1, token, 10 * token, 1)).collect();
        points.push(point(2, 1, 500, 0));
        let chart = draw(&points);
        let names: Vec<_> = chart.series.iter().map(|series| (&*series.name, series.class, series.total)).collect();
        assert_eq!(names[0], ("one", "s1", 510));
        assert_eq!(names[1], ("Token 8", "s2", 80));
        assert_eq!(names[6..], [("Other tokens", "s0", 20 + 30), ("Refused", "refused", 8)]);
        assert_eq!(chart.summary(), "An hour: 860 admitted, 8 refused");
        let sums: Vec<i64> = chart.rows.iter().map(|row| row.numbers.iter().sum()).collect();
        assert_eq!((sums, chart.rows[0].numbers.len()), (vec![368, 500], 8));
    }

    #[test]
    fn bars_are_stacked_without_gaps_and_within_the_drawing() {
        let chart = draw(&[point(0, 1, 60, 0), point(0, 2, 30, 10), point(2, 2, 0, 1)]);
        let [full, single] = &chart.bars[..] else { panic!("two bars") };
        assert_eq!((&*full.title, chart.most, chart.width), ("minute 0: 90 admitted, 10 refused", 100, 30));
        let parts: Vec<_> = full.parts.iter().map(|part| (part.class, part.x, &*part.y, &*part.height)).collect();
        assert_eq!(parts, [("s1", 1, "40.0", "60.0"), ("s2", 1, "10.0", "30.0"), ("refused", 1, "0.0", "10.0")]);
        assert_eq!((single.parts[0].x, &*single.parts[0].height), (21, "1.5"), "it is seen");
    }

    #[test]
    fn the_axis_ends_at_a_round_number_and_numbers_have_separators() {
        for (most, expected) in [
            (1, 1),
            (2, 2),
            (3, 4),
            (5, 6),
            (7, 8),
            (9, 10),
            (11, 20),
            (100, 100),
            (1_234, 2_000),
            (i64::MAX, i64::MAX),
        ] {
            assert_eq!(top_of(most), expected, "{most}");
        }
        let chart = draw(&[point(0, 1, 12_000, 1_500), point(2, 1, 1, 0)]);
        assert_eq!(
            (chart.ticks(), &*chart.grid()),
            (["20,000", "10,000", "0"].map(str::to_owned).into(), "M0 0H30M0 50H30")
        );
        assert_eq!(chart.periods, ["minute 0", "minute 1", "minute 2"]);
        assert_eq!(chart.bars[0].title, "minute 0: 12,000 admitted, 1,500 refused");
        assert_eq!(chart.bars[0].parts[0].height, "60.0");
        assert!(chart.totals().starts_with("12,001 admitted, 1,500 refused"), "{}", chart.totals());
        let single = draw(&[point(0, 1, 1, 0)]);
        assert_eq!((single.ticks(), &*single.grid()), (["1", "0"].map(str::to_owned).into(), "M0 0H30"));
    }

    #[test]
    fn a_chart_without_requests_has_no_bars() {
        let chart = draw(&[]);
        assert!(chart.bars.is_empty() && chart.rows.is_empty() && chart.most == 0);
    }
}
