//! Outcomes as text and as JSON.

mod json;
mod table;

pub use json::{Session, write};
pub use table::text;

/// A value with its unit, in three or four digits.
pub fn amount(value: f64, unit: &str) -> String {
    let (value, prefix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // Nanoseconds keep their unit: a kilo-nanosecond is nobody's.
    if unit == "ns" {
        let value = match prefix {
            "" => value,
            "k" => value * 1e3,
            "M" => value * 1e6,
            _ => value * 1e9,
        };
        let digits = if value < 100.0 { 1 } else { 0 };
        return format!("{value:.digits$} ns");
    }
    // What is counted in round trips or is a share needs its fractions.
    let digits = match prefix {
        "" if value == 0.0 || value.abs() >= 10.0 => 0,
        "" if value.abs() < 0.01 => 5,
        _ => 2,
    };
    format!("{value:.digits$} {prefix}{unit}")
}

#[cfg(test)]
mod tests {
    use super::amount;

    #[test]
    fn amounts() {
        assert_eq!(amount(12_345_678.0, "msg/s"), "12.35 Mmsg/s");
        assert_eq!(amount(912_000.0, "msg/s"), "912.00 kmsg/s");
        assert_eq!(amount(12.0, "msg/s"), "12 msg/s");
        assert_eq!(amount(1.125, "round trips"), "1.12 round trips");
        assert_eq!(amount(0.000_18, "of segments"), "0.00018 of segments");
        assert_eq!(amount(0.0, "of losses"), "0 of losses");
        assert_eq!(amount(1234.0, "ns"), "1234 ns");
        assert_eq!(amount(12_345.0, "ns"), "12345 ns");
        assert_eq!(amount(23.44, "ns"), "23.4 ns");
    }
}
