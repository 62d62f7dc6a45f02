//! How sizes, rates, durations and numbers are written on the command line.
//!
//! Every function returns a message that says what was expected, for clap to print.

use roce_proto::types::{PKey, Psn, QKey, Qpn};
use std::time::Duration;

/// A rate asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Payload bits per second.
    BitsPerSecond(f64),
    /// Messages per second.
    MessagesPerSecond(f64),
}

/// A number with a decimal prefix (`k`, `M`, `G`, `T`) taken off, and the factor of the prefix.
fn split_prefix(text: &str) -> (&str, f64, bool) {
    let Some(last) = text.chars().next_back() else { return (text, 1.0, false) };
    let power = match last.to_ascii_lowercase() {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        't' => 4,
        _ => return (text, 1.0, false),
    };
    (&text[..text.len() - 1], 1000f64.powi(power), true)
}

/// A plain non-negative decimal number, fractions allowed; no sign, no exponent, no `inf`.
fn decimal(text: &str) -> Option<f64> {
    let plain =
        text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// A size in bytes: `64`, `4k`, `4KiB`, `1.5M`, `1MB`.
///
/// As GNU tools have it: `K`, `M`, `G`, `T` and `KiB` … are powers of 1024, `KB` … of 1000; case does not matter.
pub fn size(text: &str) -> Result<u64, String> {
    let expected = || format!("`{text}` is no size: write 64, 4k (4096), 4KiB or 1MB (1000000)");
    let lower = text.trim().to_ascii_lowercase();
    let (rest, base) = if let Some(rest) = lower.strip_suffix("ib") {
        (rest, 1024f64)
    } else if let Some(rest) = lower.strip_suffix('b') {
        (rest, 1000f64)
    } else {
        (lower.as_str(), 1024f64)
    };
    let (digits, factor, prefixed) = split_prefix(rest);
    if lower.ends_with("ib") && !prefixed {
        return Err(expected());
    }
    // The exponent of the decimal factor is that of the binary one too.
    let power = (factor.log10() / 3.0).round() as i32;
    let bytes = decimal(digits).ok_or_else(expected)? * base.powi(power);
    if bytes.fract() != 0.0 || bytes >= u64::MAX as f64 {
        return Err(expected());
    }
    Ok(bytes as u64)
}

/// A count: `1000`, `10k`, `2.5M` (powers of 1000).
pub fn count(text: &str) -> Result<u64, String> {
    let expected = || format!("`{text}` is no count: write 1000, 10k or 2.5M");
    let (digits, factor, _) = split_prefix(text.trim());
    let n = decimal(digits).ok_or_else(expected)? * factor;
    if n.fract() != 0.0 || n >= u64::MAX as f64 {
        return Err(expected());
    }
    Ok(n as u64)
}

/// A count that a field of 16 or 32 bits holds: `128`, `4k`, or in hex with `0x`.
pub fn how_many<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let n = match text.trim().starts_with("0x") {
        true => u64::from(number(text, 32, "count")?),
        false => count(text)?,
    };
    T::try_from(n).map_err(|_| format!("`{text}` is too many: less than 2^{}", 8 * size_of::<T>()))
}

/// A rate: `10g`, `2.5Gbps`, `100Mbit` in bits per second, or `1Mpps`, `500kmsg` in messages per second.
pub fn rate(text: &str) -> Result<Rate, String> {
    let expected =
        || format!("`{text}` is no rate: write 10g or 2.5Gbps (bits), or 1Mpps (messages per second)");
    let lower = text.trim().to_ascii_lowercase();
    let strip = |suffixes: &[&str]| suffixes.iter().find_map(|s| lower.strip_suffix(s)).map(str::trim_end);
    let (rest, messages) = if let Some(rest) = strip(&["pps", "msg/s", "msgs", "msg"]) {
        (rest, true)
    } else if let Some(rest) = strip(&["bit/s", "b/s", "bps", "bit"]) {
        (rest, false)
    } else {
        (lower.as_str(), false)
    };
    let (digits, factor, _) = split_prefix(rest);
    let n = decimal(digits.trim_end()).ok_or_else(expected)? * factor;
    if n <= 0.0 || !n.is_finite() {
        return Err(format!("`{text}`: a rate is above zero; leave it out for no limit"));
    }
    Ok(if messages { Rate::MessagesPerSecond(n) } else { Rate::BitsPerSecond(n) })
}

/// A share: `0.1%`, `0.001`, `1`; from nothing to all.
pub fn share(text: &str) -> Result<f64, String> {
    let expected = || format!("`{text}` is no share: write 0.1% or 0.001, at most 100%");
    let trimmed = text.trim();
    let (digits, factor) = match trimmed.strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (trimmed, 1.0),
    };
    let share = decimal(digits).ok_or_else(expected)? / factor;
    if share <= 1.0 { Ok(share) } else { Err(expected()) }
}

/// A duration: `10` or `10s`, `500ms`, `20us`, `100ns`, `2m`, `1h`; fractions allowed. At most a hundred years.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = || format!("`{text}` is no duration: write 10 (seconds), 500ms, 20us, 2m or 1h");
    let lower = text.trim().to_ascii_lowercase();
    let units =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (digits, factor) =
        units.iter().find_map(|(unit, f)| lower.strip_suffix(unit).map(|d| (d, *f))).unwrap_or((&lower, 1.0));
    let seconds = decimal(digits.trim_end()).ok_or_else(expected)? * factor;
    const HUNDRED_YEARS: f64 = 100.0 * 365.25 * 86_400.0;
    if seconds > HUNDRED_YEARS {
        return Err(format!("`{text}` is more than a hundred years"));
    }
    // By whole nanoseconds, so that 20us is 20000 of them and not 19999.
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// A time among the parameters of a report: in seconds, as the end of its name says.
pub fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// The same for one that need not be given.
pub fn maybe_seconds<S: serde::Serializer>(
    time: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => seconds(time, serializer),
        None => serializer.serialize_none(),
    }
}

/// An unsigned number in decimal, or in hex with `0x`, of at most `bits` bits.
fn number(text: &str, bits: u32, what: &str) -> Result<u32, String> {
    let trimmed = text.trim();
    let hex = trimmed.strip_prefix("0x").or_else(|| trimmed.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((trimmed, 10), |digits| (digits, 16));
    let max = ((1u64 << bits) - 1) as u32;
    // A sign is no digit, but from_str_radix takes one.
    let value = if digits.starts_with(['+', '-']) { None } else { u32::from_str_radix(digits, radix).ok() };
    value
        .filter(|v| *v <= max)
        .ok_or_else(|| format!("`{text}` is no {what}: a number up to {max:#x}, decimal or with 0x"))
}

/// A queue pair number, 24 bits.
pub fn qpn(text: &str) -> Result<Qpn, String> {
    let n = number(text, 24, "queue pair number")?;
    Qpn::new(n).ok_or_else(|| format!("`{text}` is no queue pair number"))
}

/// A packet sequence number, 24 bits.
pub fn psn(text: &str) -> Result<Psn, String> {
    number(text, 24, "packet sequence number").map(Psn::from_low_bits)
}

/// A Q_Key, 32 bits.
pub fn qkey(text: &str) -> Result<QKey, String> {
    number(text, 32, "Q_Key").map(QKey)
}

/// A P_Key, 16 bits; partition 0 is invalid.
pub fn pkey(text: &str) -> Result<PKey, String> {
    dataplane::spec::pkey(text)
}

/// An immediate, 32 bits.
pub fn immediate(text: &str) -> Result<u32, String> {
    number(text, 32, "immediate")
}

/// A byte: traffic class, hop limit.
pub fn byte(text: &str) -> Result<u8, String> {
    number(text, 8, "byte").map(|n| n as u8)
}

/// An IPv6 flow label, 20 bits.
pub fn flow_label(text: &str) -> Result<u32, String> {
    number(text, 20, "flow label")
}

/// A UDP port or an MTU: 16 bits.
pub fn word(text: &str) -> Result<u16, String> {
    number(text, 16, "16-bit number").map(|n| n as u16)
}

/// A list of cores: `0,2-3`. Ascending ranges, no core twice, numbers below 4096.
pub fn cores(text: &str) -> Result<Vec<usize>, String> {
    const MAX: usize = 4096;
    let expected = || format!("`{text}` is no list of cores: write 0 or 0,2-3, each once");
    let core = |t: &str| {
        t.trim().parse::<usize>().ok().filter(|c| *c < MAX && !t.contains('+')).ok_or_else(expected)
    };
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((a, b)) => (core(a)?, core(b)?),
            None => (core(part)?, core(part)?),
        };
        if first > last {
            return Err(expected());
        }
        for c in first..=last {
            if list.contains(&c) {
                return Err(expected());
            }
            list.push(c);
        }
    }
    Ok(list)
}

/// Splits a line into words as a shell does: spaces separate, quotes and backslashes keep together. No expansion.
pub fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => match chars.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err(format!("`{line}` ends in a backslash")),
            },
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(q) = quote {
        return Err(format!("`{line}`: a {q} is never closed"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("64", 64),
            ("64B", 64),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4kb", 4000),
            ("1.5M", 1_572_864),
            ("1MB", 1_000_000),
            ("2g", 2 << 30),
            ("1TiB", 1 << 40),
            (" 8 ", 8),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in [
            "",
            "k",
            "-1",
            "+1",
            "1e3",
            "4ki",
            "4x",
            "1.0001k",
            "inf",
            "nan",
            "99999999999999T",
            "iB",
            "5iB",
            "é",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_and_rates() {
        assert_eq!(count("1000"), Ok(1000));
        assert_eq!(count("2.5M"), Ok(2_500_000));
        assert!(count("1.5").is_err() && count("").is_err() && count("-3").is_err());
        assert_eq!(
            (how_many("0x40"), how_many("4k"), how_many("65535")),
            (Ok(64u16), Ok(4000u16), Ok(65535u16))
        );
        assert_eq!(how_many("4294967295"), Ok(u32::MAX));
        for bad in ["65536", "0x10000", "66k", "0x", "0x100000000", "1.5", "", "-1", "x"] {
            assert!(how_many::<u16>(bad).is_err(), "{bad}");
        }
        assert_eq!(rate("10g"), Ok(Rate::BitsPerSecond(1e10)));
        assert_eq!(rate("2.5Gbps"), Ok(Rate::BitsPerSecond(2.5e9)));
        assert_eq!(rate("100 Mbit/s"), Ok(Rate::BitsPerSecond(1e8)));
        assert_eq!(rate("1Mpps"), Ok(Rate::MessagesPerSecond(1e6)));
        assert_eq!(rate("500kmsg"), Ok(Rate::MessagesPerSecond(5e5)));
        for bad in ["", "0", "fast", "-1g", "1gg", "pps", "1x"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        for (text, nanos) in [
            ("10", 10_000_000_000),
            ("1.5s", 1_500_000_000),
            ("500ms", 500_000_000),
            ("20us", 20_000),
            ("20µs", 20_000),
            ("100ns", 100),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for bad in ["", "s", "-1", "1d", "1 2"] {
            assert!(duration(bad).unwrap_err().contains("is no duration"), "{bad}");
        }
        // A number that is one is not called none.
        for long in ["4294967296", "9999999999h"] {
            assert!(duration(long).unwrap_err().contains("more than a hundred years"), "{long}");
        }
    }

    #[test]
    fn numbers_keep_to_their_width() {
        assert_eq!(qpn("0xFFFFFE").map(Qpn::get), Ok(0xff_fffe));
        assert_eq!(qpn("65536").map(Qpn::get), Ok(0x1_0000));
        assert!(qpn("0x1000000").is_err() && qpn("-1").is_err() && qpn("+1").is_err() && qpn("0x").is_err());
        assert_eq!(psn("16777215").map(Psn::get), Ok(0xff_ffff));
        assert_eq!(qkey("0x80010000"), Ok(QKey::GSI));
        assert_eq!(qkey("0xffffffff"), Ok(QKey(u32::MAX)));
        assert!(qkey("0x100000000").is_err());
        assert_eq!(pkey("0x8001"), Ok(PKey(0x8001)));
        assert!(pkey("0x8000").is_err() && pkey("0x10000").is_err());
        assert_eq!(byte("255"), Ok(255));
        assert!(byte("256").is_err());
        let text = qpn("0x1000000").unwrap_err();
        assert!(text.contains("0xffffff"), "{text}");
    }

    #[test]
    fn core_lists() {
        assert_eq!(cores("0"), Ok(vec![0]));
        assert_eq!(cores("0,2-4"), Ok(vec![0, 2, 3, 4]));
        for bad in ["", "a", "1-", "3-1", "0,0", "1-2,2", "0-99999999999", "+1", "4096"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_of_a_line() {
        let split = |s| words(s).unwrap();
        assert_eq!(split(""), Vec::<String>::new());
        assert_eq!(split("  -l 0  --log-level=8 "), ["-l", "0", "--log-level=8"]);
        assert_eq!(split(r#"a "b c" d\ e '"' """#), ["a", "b c", "d e", "\"", ""]);
        assert_eq!(split(r"'a\b'"), [r"a\b"]);
        assert!(words("a 'b").is_err() && words("a\\").is_err());
    }
}
