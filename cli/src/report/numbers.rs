//! Numbers for people: rates with a prefix, durations in the unit that fits.

use std::fmt;
use std::time::Duration;

/// A number with a decimal prefix and three significant digits or more: `12.3 M`, `999`, `1.00 k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Si(pub f64);

impl fmt::Display for Si {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = si(self.0);
        f.pad(&text)
    }
}

fn si(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let steps = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    // A value that rounds up to the next prefix takes it: 999 999 is 1.00 M.
    for (step, prefix) in steps {
        if value.abs() >= step * 0.9995 {
            return format!("{}{prefix}", three_digits(value / step));
        }
    }
    if value.fract() == 0.0 { format!("{value:.0}") } else { three_digits(value) }
}

/// At least three significant digits, none after the point from 100 on.
fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A duration in the unit that fits: `850 ns`, `12.3 µs`, `1.50 s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl Time {
    /// From nanoseconds.
    pub const fn nanos(nanos: u64) -> Time {
        Time(Duration::from_nanos(nanos))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos() as f64;
        let text = match nanos {
            n if n < 999.5 => format!("{n:.0} ns"),
            n if n < 999.5e3 => format!("{} µs", three_digits(n / 1e3)),
            n if n < 999.5e6 => format!("{} ms", three_digits(n / 1e6)),
            n => format!("{} s", three_digits(n / 1e9)),
        };
        f.pad(&text)
    }
}

/// A size in bytes as people write it: `64`, `1 KiB`, `1.5 KiB`; whole numbers only get a unit if that is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let exact = units.iter().find(|(shift, _)| self.0 >= 1 << shift && self.0.trailing_zeros() >= *shift);
        match exact {
            Some((shift, unit)) => f.pad(&format!("{} {unit}", self.0 >> shift)),
            None => f.pad(&format!("{} B", self.0)),
        }
    }
}

/// `1 packet`, `2 packets`.
pub fn plural(count: u64, thing: &str) -> String {
    if count == 1 { format!("{count} {thing}") } else { format!("{count} {thing}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_change_where_the_rounding_does() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.50"),
            (12.0, "12"),
            (999.0, "999"),
            (999.4, "999"),
            (1000.0, "1.00 k"),
            (999_400.0, "999 k"),
            (999_900.0, "1.00 M"),
            (12_345_678.0, "12.3 M"),
            (3.45e10, "34.5 G"),
            (-1500.0, "-1.50 k"),
            (9.996e3, "10.0 k"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(Si(value).to_string(), text, "{value}");
        }
        assert_eq!(format!("{:>8}|", Si(1000.0)), "  1.00 k|");
    }

    #[test]
    fn times() {
        for (nanos, text) in [
            (0, "0 ns"),
            (850, "850 ns"),
            (999, "999 ns"),
            (1000, "1.00 µs"),
            (12_345, "12.3 µs"),
            (999_600, "1.00 ms"),
            (1_500_000_000, "1.50 s"),
            (120_000_000_000, "120 s"),
        ] {
            assert_eq!(Time::nanos(nanos).to_string(), text);
        }
    }

    #[test]
    fn sizes_and_plurals() {
        assert_eq!(Bytes(64).to_string(), "64 B");
        assert_eq!(Bytes(1024).to_string(), "1 KiB");
        assert_eq!(Bytes(1500).to_string(), "1500 B");
        assert_eq!(Bytes(3 << 20).to_string(), "3 MiB");
        assert_eq!(plural(1, "packet"), "1 packet");
        assert_eq!(plural(0, "packet"), "0 packets");
    }
}
