//! `--policy FILE`: how strongly each class is protected, and what its messages are, as a TOML file.

use crate::units;
use fec::policy::{Policy, Strength};
use fec::{MOST_DATA, MOST_PARITY};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::io::Read;
use std::path::Path;

/// A file is read whole; this is a hundred times what one needs.
const MAX_BYTES: u64 = 1 << 16;

/// What a policy file says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicyFile {
    /// By what tags become strengths.
    pub policy: Policy,
    /// What the messages of each class are, if flags do not say otherwise: `dp`, `pp`, `control`.
    pub tags: [ClassTags; 3],
}

/// What the messages of a class are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTags {
    /// Priority, 0 to 15.
    pub priority: Option<u8>,
    /// Tolerated loss in 1/256.
    pub tolerance: Option<u8>,
}

/// A number within its bounds, so that a wrong one is told of with its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Within<const LEAST: u16, const MOST: u16>(u16);

impl<const LEAST: u16, const MOST: u16> Within<LEAST, MOST> {
    /// Where the bounds are a byte's.
    fn byte(self) -> u8 {
        u8::try_from(self.0).unwrap_or(u8::MAX)
    }
}

impl<'de, const LEAST: u16, const MOST: u16> Deserialize<'de> for Within<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let n = i64::deserialize(deserializer)?;
        let fits = u16::try_from(n).ok().filter(|n| (LEAST..=MOST).contains(n));
        let wrong = || de::Error::custom(format_args!("{n} is not from {LEAST} to {MOST}"));
        fits.map(Within).ok_or_else(wrong)
    }
}

/// A share of groups.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Residual(f64);

impl<'de> Deserialize<'de> for Residual {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(deserializer)?;
        if share > 0.0 && share < 1.0 {
            return Ok(Residual(share));
        }
        Err(de::Error::custom(format_args!(
            "{share} is not between 0 and 1: a share of groups, such as 1e-4"
        )))
    }
}

/// A time in nanoseconds, written as flags have it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Nanos(u64);

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = units::duration(&text).map_err(de::Error::custom)?;
        Ok(Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    short_round_trip: Option<Nanos>,
    block: Option<Within<1, 4096>>,
    late_stage: Option<Within<0, 255>>,
    dp: Class,
    pp: Class,
    pp_late: Class,
    control: Class,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Class {
    data: Option<Within<1, { MOST_DATA as u16 }>>,
    parity: Option<Within<0, { MOST_PARITY as u16 }>>,
    residual: Option<Residual>,
    from_priority: Option<Within<0, 15>>,
    fixed_depth: Option<Within<1, 64>>,
    priority: Option<Within<0, 15>>,
    tolerance: Option<Within<0, 255>>,
}

impl Class {
    fn put(&self, to: &mut Strength) {
        to.data = self.data.map_or(to.data, Within::byte);
        to.parity = self.parity.map_or(to.parity, Within::byte);
        to.residual = self.residual.map_or(to.residual, |share| share.0);
        to.from_priority = self.from_priority.map_or(to.from_priority, Within::byte);
        to.fixed = self.fixed_depth.map(Within::byte);
    }

    fn tags(&self) -> ClassTags {
        ClassTags { priority: self.priority.map(Within::byte), tolerance: self.tolerance.map(Within::byte) }
    }
}

/// Reads a file, for clap.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read(path: &str) -> Result<PolicyFile, String> {
    let mut text = String::new();
    let opened = std::fs::File::open(Path::new(path)).map_err(|e| format!("cannot be read: {e}"))?;
    opened.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|e| format!("cannot be read: {e}"))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("is larger than {MAX_BYTES} bytes"));
    }
    parse(&text)
}

fn parse(text: &str) -> Result<PolicyFile, String> {
    let file: File = toml::from_str(text).map_err(|e| format!("\n{}", e.to_string().trim_end()))?;
    if file.pp_late.priority.is_some() || file.pp_late.tolerance.is_some() {
        return Err("[pp-late]: priority and tolerance of both its kinds stand in [pp]".to_owned());
    }
    let mut policy = Policy::default();
    policy.short_round_trip = file.short_round_trip.map_or(policy.short_round_trip, |time| time.0);
    policy.block = file.block.map_or(policy.block, |n| n.0.into());
    policy.late_stage = file.late_stage.map_or(policy.late_stage, Within::byte);
    file.dp.put(&mut policy.gradients);
    file.pp.put(&mut policy.early);
    file.pp_late.put(&mut policy.late);
    file.control.put(&mut policy.control);
    Ok(PolicyFile { policy, tags: [file.dp.tags(), file.pp.tags(), file.control.tags()] })
}

/// In reports: all of it, defaults filled in.
impl Serialize for PolicyFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let p = &self.policy;
        let kind = |s: &Strength, tags: ClassTags| {
            serde_json::json!({
                "data": s.data, "parity": s.parity, "residual": s.residual, "from_priority": s.from_priority,
                "fixed_depth": s.fixed, "priority": tags.priority, "tolerance": tags.tolerance,
            })
        };
        let [dp, pp, control] = self.tags;
        serde_json::json!({
            "short_round_trip_ns": p.short_round_trip,
            "block": p.block,
            "late_stage": p.late_stage,
            "dp": kind(&p.gradients, dp),
            "pp": kind(&p.early, pp),
            "pp_late": kind(&p.late, pp),
            "control": kind(&p.control, control),
        })
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_what_there_is_without_a_file() {
        let example = include_str!("../../docs/policy.toml");
        assert_eq!(parse(example).unwrap().policy, Policy::default());
        assert_eq!(parse("").unwrap(), PolicyFile::default());
        // Each key of the example counts: with another value it is another policy.
        let mut keys = 0;
        for (i, line) in example.lines().enumerate() {
            let Some((key, value)) = line.split('#').next().and_then(|code| code.split_once('=')) else {
                continue;
            };
            let other = match value.trim() {
                "\"500us\"" => "\"1ms\"",
                "1e-4" | "1e-5" | "1e-3" | "1e-6" => "0.5",
                _ => "3",
            };
            let changed: Vec<String> = example
                .lines()
                .enumerate()
                .map(|(n, line)| if n == i { format!("{key} = {other}") } else { line.to_owned() })
                .collect();
            assert_ne!(parse(&changed.join("\n")).unwrap(), parse(example).unwrap(), "{key}");
            keys += 1;
        }
        assert!(keys >= 20, "{keys}");
    }

    #[test]
    fn a_class_is_as_its_table_says() {
        let file = parse("[pp]\ndata = 10\nparity = 3\nfixed-depth = 4\npriority = 12\n[dp]\ntolerance = 9")
            .unwrap();
        let early = Strength { data: 10, parity: 3, fixed: Some(4), ..Policy::default().early };
        assert_eq!(file.policy, Policy { early, ..Policy::default() });
        let [dp, pp, control] = file.tags;
        assert_eq!((dp.tolerance, dp.priority, pp.priority), (Some(9), None, Some(12)));
        assert_eq!(control, ClassTags::default());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, words) in [
            ("[dp]\ndata = 65", "line 2", "65 is not from 1 to 64"),
            ("\n\n[control]\nparity = -1", "line 4", "-1 is not from 0 to 16"),
            ("[pp]\nresidual = 1.5", "line 2", "not between 0 and 1"),
            ("[dp]\nstrength = 3", "line 2", "unknown field `strength`"),
            ("[gradients]\ndata = 3", "line 1", "unknown field `gradients`"),
            ("short-round-trip = \"soon\"", "line 1", "soon"),
            ("[dp\n", "line 1", ""),
            ("block = \"x\"", "line 1", "invalid type"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(line) && error.contains(words), "{text:?}: {error}");
        }
        assert!(parse("[pp-late]\npriority = 3").unwrap_err().contains("stand in [pp]"));
        assert!(read("/no/such/file").unwrap_err().contains("cannot be read"));
    }
}
