//! Requests by token: the charts of the overview, and the requests of a token in the last 24 hours.
//!
//! What is stored lacks the last hour or two. Pages add what this node has not written yet, and take the minutes of the
//! last hour from all nodes if Redis is there.

use std::collections::{BTreeMap, HashMap};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use super::chart::{Chart, Labels, NamedTokens, Period, Point};
use super::texts::{ChartTexts, NumbersTexts, Texts};
use super::times::exact;
use super::visit::Member;
use crate::store::{RequestCounts, StoreError};
use crate::tenant::usage::minutes::NodesIncluded;
use crate::tenant::usage::{MINUTES, MinuteUsage, OTHERS};

const SECONDS_A_MINUTE: i64 = 60;

/// Days of the longer chart, today included. Larger: reading takes longer. Smaller: a month can't be seen.
const DAYS: i32 = 30;

/// The charts of the overview.
pub(super) async fn charts(member: &Member<'_>) -> Result<[Chart; 2], StoreError> {
    let zone = &member.visit.tenant.timezone;
    let (minutes, reach) = member.visit.gate.minutes.last_hour(member.visit.tenant, member.now).await;
    let hour = of_minutes(&minutes, member.now);
    let first_day = member.now.to_zoned(zone.clone()).date().saturating_sub((DAYS - 1).days());
    let since = first_day.to_zoned(zone.clone()).map_or(member.now, |start| start.timestamp());
    // The hour in which the day begins, where the zone is not a whole number of hours from UTC.
    let since = since - SignedDuration::from_secs(since.as_second().rem_euclid(3600));
    let usage = &member.visit.tenant.tokens.usage;
    let (stored, unwritten) = usage.with_unwritten(member.store.list_token_hours(since)).await;
    let hours = stored?.into_iter().chain(unwritten.into_iter().filter(|hour| hour.hour >= since));
    let mut day = DayOfHour { zone, first: first_day, last: None };
    let month: Vec<Point> = hours
        .map(|hour| Point {
            bar: day.of(hour.hour),
            row: hour.hour.as_second(),
            token: hour.token,
            counts: hour.counts,
        })
        .collect();

    let named = [NamedTokens::of(&hour, OTHERS), NamedTokens::of(&month, OTHERS)];
    let tokens: Vec<i64> = named.iter().flat_map(|named| named.tokens.iter().copied()).collect();
    let names: HashMap<i64, String> = member.store.list_token_names(&tokens).await?.into_iter().collect();
    let first = first_minute(member.now) * SECONDS_A_MINUTE;
    let Texts { chart: text, dates, numbers, .. } = member.area.texts;
    let minute = |at| period(at, zone, &dates.minute);
    let bars: Vec<Period> = (0..MINUTES).map(|at| minute(first + at * SECONDS_A_MINUTE)).collect();
    let hour = Chart::draw(labels_of_hour(text, numbers, reach), &named[0], &names, &hour, &bars, minute);
    let bars: Vec<Period> = (0..DAYS)
        .map(|at| first_day.saturating_add(at.days()))
        .map(|day| Period { exact: day.to_string(), shown: day.strftime(dates.day.as_bytes()).to_string() })
        .collect();
    let by_hour = |at| period(at, zone, &dates.hour);
    let month = Chart::draw(labels_of_month(text, numbers, reach), &named[1], &names, &month, &bars, by_hour);
    Ok([hour, month])
}

/// The requests of some tokens in the last 24 hours; tokens without requests are left out.
pub(super) async fn of_last_day(
    member: &Member<'_>,
    tokens: &[i64],
) -> Result<BTreeMap<i64, RequestCounts>, StoreError> {
    let now = member.now.as_second();
    // The current hour and the 23 before.
    let since = now - now.rem_euclid(3600) - 23 * 3600;
    let since = Timestamp::from_second(since).unwrap_or(Timestamp::UNIX_EPOCH);
    let usage = &member.visit.tenant.tokens.usage;
    let (stored, unwritten) = usage.with_unwritten(member.store.count_token_requests(tokens, since)).await;
    let mut counts = stored?;
    for hour in unwritten.into_iter().filter(|hour| hour.hour >= since && tokens.contains(&hour.token)) {
        counts.entry(hour.token).or_default().add(hour.counts);
    }
    Ok(counts)
}

fn labels_of_hour(text: &'static ChartTexts, numbers: &'static NumbersTexts, nodes: NodesIncluded) -> Labels {
    Labels {
        id: "last-hour",
        heading: &text.hour,
        row: &text.by_minute,
        empty: &text.empty,
        note: match nodes {
            NodesIncluded::AllNodes => None,
            NodesIncluded::ThisNode => Some(&text.this_node),
            NodesIncluded::ThisNodeForNow => Some(&text.this_node_for_now),
        },
        text,
        numbers,
    }
}

fn labels_of_month(text: &'static ChartTexts, numbers: &'static NumbersTexts, nodes: NodesIncluded) -> Labels {
    Labels {
        id: "last-days",
        heading: &text.days,
        row: &text.by_hour,
        empty: &text.empty,
        note: match nodes {
            NodesIncluded::AllNodes | NodesIncluded::ThisNodeForNow => Some(&text.late),
            NodesIncluded::ThisNode => None,
        },
        text,
        numbers,
    }
}

/// The first minute of the last hour.
fn first_minute(now: Timestamp) -> i64 {
    now.as_second().div_euclid(SECONDS_A_MINUTE) - MINUTES + 1
}

fn of_minutes(minutes: &[MinuteUsage], now: Timestamp) -> Vec<Point> {
    let first = first_minute(now);
    // A request may have been counted after `now`, in the next minute.
    let bar = |minute: i64| usize::try_from(Some(minute - first).filter(|bar| *bar < MINUTES)?).ok();
    let points = minutes.iter().filter_map(|usage| Some((usage, bar(usage.minute)?)));
    let points = points.flat_map(|(usage, bar)| {
        let row = usage.minute * SECONDS_A_MINUTE;
        usage.tokens.iter().map(move |(token, counts)| Point { bar, row, token: *token, counts: *counts })
    });
    points.collect()
}

fn period(second: i64, zone: &TimeZone, format: &str) -> Period {
    let at = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
    Period { exact: exact(at), shown: at.to_zoned(zone.clone()).strftime(format).to_string() }
}

/// Finds the day of an hour. Hours come in runs, and a time zone takes a while.
struct DayOfHour<'z> {
    zone: &'z TimeZone,
    first: Date,
    last: Option<(Timestamp, usize)>,
}

impl DayOfHour<'_> {
    fn of(&mut self, hour: Timestamp) -> usize {
        if let Some((last, day)) = self.last
            && last == hour
        {
            return day;
        }
        let date = hour.to_zoned(self.zone.clone()).date();
        let days = date.since(self.first).map_or(0, |span| span.get_days()).clamp(0, DAYS - 1);
        let day = usize::try_from(days).expect("it is not negative");
        self.last = Some((hour, day));
        day
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_belongs_to_its_day_in_the_zone_of_the_account() {
        let zone = TimeZone::get("Asia/Kolkata").unwrap();
        let mut day = DayOfHour { zone: &zone, first: "2026-07-01".parse().unwrap(), last: None };
        for (hour, expected) in [
            ("2026-06-30T18:00:00Z", 0),
            ("2026-07-01T18:00:00Z", 0),
            ("2026-07-01T19:00:00Z", 1),
            ("2026-07-30T18:00:00Z", 29),
            ("2026-07-31T00:00:00Z", 29),
        ] {
            assert_eq!(day.of(hour.parse().unwrap()), expected, "{hour}");
        }
    }

    #[test]
    fn a_minute_outside_of_the_last_hour_is_not_drawn() {
        let now: Timestamp = "2026-07-04T22:05:59Z".parse().unwrap();
        let minute = now.as_second() / 60;
        let usage = |minute| MinuteUsage { minute, tokens: vec![(1, RequestCounts { admitted: 1, refused: 0 })] };
        let points = of_minutes(&[minute - 60, minute - 59, minute, minute + 1].map(usage), now);
        assert_eq!(points.iter().map(|point| point.bar).collect::<Vec<_>>(), [0, 59]);
    }
}
