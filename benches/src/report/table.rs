//! Outcomes as tables for people.

use super::amount;
use crate::contest::{Entry, Outcome};
use crate::stats::Better;

/// One outcome, with a heading and a line per contestant.
pub fn text(outcome: &Outcome) -> String {
    let instructions = outcome.entries.iter().any(|e| e.instructions.is_some());
    let payload_rate = outcome.event.better == Better::Higher;
    let mut columns = vec!["", "median", "best"];
    if payload_rate {
        columns.push("Gbit/s");
    }
    columns.extend(["ratio", "quartiles", "of best"]);
    if instructions {
        columns.push("instructions");
    } else {
        columns.extend(["wanted", ""]);
    }
    let mut rows = vec![columns.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for entry in &outcome.entries {
        rows.push(row(outcome, entry, payload_rate, instructions));
    }
    let mut text = format!("{}\n", outcome.event.title);
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let mut line = String::new();
        for (i, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            match i {
                0 => line.push_str(&format!("  {cell:<width$}")),
                _ => line.push_str(&format!("  {cell:>width$}")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for entry in &outcome.entries {
        let failed = entry.runs.iter().filter(|run| run.is_none()).count();
        if let Some(failure) = entry.failure.as_ref().filter(|_| failed > 0) {
            let first = failure.lines().next().unwrap_or_default();
            text.push_str(&format!(
                "  {}: {failed} of {} runs failed: {first}\n",
                entry.name,
                entry.runs.len()
            ));
        }
    }
    text
}

fn row(outcome: &Outcome, entry: &Entry, payload_rate: bool, instructions: bool) -> Vec<String> {
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |v| amount(v, outcome.event.unit));
    let mut cells = vec![entry.name.to_owned(), shown(entry.median), shown(entry.best)];
    if payload_rate {
        let each = if outcome.event.unit == "bit/s" { 1.0 } else { outcome.event.size as f64 * 8.0 };
        let bits = entry.median.map(|rate| rate * each / 1e9);
        cells.push(bits.map_or("-".to_owned(), |bits| format!("{bits:.2}")));
    }
    match entry.comparison {
        Some(c) => {
            cells.extend([
                format!("{:.3}", c.ratio),
                format!("{:.3}–{:.3}", c.q1, c.q3),
                format!("{:.3}", c.best),
            ]);
        }
        None => cells.extend([String::new(), String::new(), String::new()]),
    }
    if instructions {
        cells.push(entry.instructions.map_or("-".to_owned(), |n| format!("{n:.1}")));
        return cells;
    }
    let sign = match outcome.event.better {
        Better::Higher => "≥",
        Better::Lower => "≤",
    };
    cells.push(entry.wanted.map_or(String::new(), |wanted| format!("{sign} {wanted:.2}")));
    cells.push(
        match entry.pass {
            None => "",
            Some(true) => "ok",
            Some(false) => "MISSED",
        }
        .to_owned(),
    );
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::Event;
    use crate::stats::Comparison;

    fn entry(name: &'static str, value: f64) -> Entry {
        Entry { runs: vec![Some(value)], median: Some(value), best: Some(value), ..Entry::new(name, None) }
    }

    #[test]
    fn a_table_says_what_passed() {
        let event = Event {
            figure: "ud",
            title: "raw UD, 64 B".into(),
            size: 64,
            unit: "msg/s",
            better: Better::Higher,
        };
        let comparison = Comparison { pairs: 1, ratio: 0.85, q1: 0.84, q3: 0.86, best: 0.9 };
        let worker = Entry {
            comparison: Some(comparison),
            wanted: Some(0.8),
            pass: Some(true),
            ..entry("worker inline", 8.5e6)
        };
        let lost = Entry {
            wanted: Some(0.6),
            pass: Some(false),
            runs: vec![None],
            failure: Some("no answer\nmore".into()),
            ..Entry::new("worker thread", None)
        };
        let outcome = Outcome { event, entries: vec![entry("bare loop", 1e7), worker, lost] };
        let text = text(&outcome);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "raw UD, 64 B");
        assert_eq!(lines[2], "  bare loop      10.00 Mmsg/s  10.00 Mmsg/s    5.12");
        assert_eq!(
            lines[3],
            "  worker inline   8.50 Mmsg/s   8.50 Mmsg/s    4.35  0.850  0.840–0.860    0.900  ≥ 0.80      ok"
        );
        assert!(lines[4].ends_with("≥ 0.60  MISSED"), "{text}");
        assert_eq!(lines[5], "  worker thread: 1 of 1 runs failed: no answer");
    }
}
