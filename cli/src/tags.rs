//! What an application says of its messages, as flags.

use crate::policy::{self, PolicyFile};
use clap::{Args, ValueEnum};
use fec::policy::{Class, Protection};
use roce_proto::transport::{Fec, Protect};
use roce_proto::wire::shim::Semantics;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// What kind of traffic the messages are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClassArg {
    /// Nothing is said: no parity
    #[default]
    None,
    /// Gradients of data-parallel training
    Dp,
    /// Activations of pipeline-parallel training
    Pp,
    /// Short messages that others wait for
    Control,
}

/// The tags of a side's messages.
#[derive(Args, Clone, Copy, Debug, Serialize)]
pub struct TagArgs {
    /// Class of this side's messages over the reliable service: those of a class may be protected by parity, see --fec
    #[arg(long, value_enum, default_value_t = ClassArg::None)]
    pub class: ClassArg,

    /// Priority within the class, 0 to 15; gradients are protected from 8 on. 8 if neither this nor --policy says it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15))]
    #[serde(serialize_with = "or_usual")]
    pub priority: Option<u8>,

    /// Place in the application's pipeline: earlier stages are protected more strongly
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub stage: u8,

    /// Loss that the application tolerates, in 1/256: such messages are protected less strongly. Everything arrives all the same
    #[arg(long, value_name = "N")]
    #[serde(serialize_with = "or_none")]
    pub tolerance: Option<u8>,

    /// A TOML file that says how strongly each class is protected, and what its messages are; docs/policy.toml has all there is
    #[arg(long, value_name = "FILE", value_parser = policy::read)]
    pub policy: Option<PolicyFile>,

    /// Whose messages get parity: `tags` (as class, measured losses and round trip ask for), `off`, or `K,R` or `K,R,DEPTH` for all
    /// messages alike
    #[arg(long, value_name = "HOW", default_value = "tags", value_parser = protect)]
    #[serde(serialize_with = "as_text")]
    pub fec: Protect,
}

impl Default for TagArgs {
    fn default() -> Self {
        TagArgs {
            class: ClassArg::None,
            priority: None,
            stage: 0,
            tolerance: None,
            policy: None,
            fec: Protect::ByTag,
        }
    }
}

impl TagArgs {
    /// As they travel with each segment.
    pub fn semantics(&self) -> Semantics {
        self.semantics_of(self.class)
    }

    /// The same of messages of one class, where a side has several.
    pub fn semantics_of(&self, class: ClassArg) -> Semantics {
        let Some(index) = class.index() else { return Semantics::default() };
        let file = self.policy.unwrap_or_default();
        let usual = file.tags.get(index).copied().unwrap_or_default();
        Semantics {
            class: class.to_wire(),
            priority: self.priority.or(usual.priority).unwrap_or(USUAL_PRIORITY),
            stage: self.stage,
            tolerance: self.tolerance.or(usual.tolerance).unwrap_or(0),
            ..Semantics::default()
        }
    }

    /// How an engine protects.
    pub fn fec(&self) -> Fec {
        Fec { protect: self.fec, policy: self.policy.unwrap_or_default().policy }
    }
}

const USUAL_PRIORITY: u8 = 8;

fn or_usual<S: Serializer>(priority: &Option<u8>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u8(priority.unwrap_or(USUAL_PRIORITY))
}

fn or_none<S: Serializer>(tolerance: &Option<u8>, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u8(tolerance.unwrap_or(0))
}

impl ClassArg {
    /// All of them, in the order of their numbers on the wire.
    pub const ALL: [ClassArg; 4] = [ClassArg::None, ClassArg::Dp, ClassArg::Pp, ClassArg::Control];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            ClassArg::None => "none",
            ClassArg::Dp => "dp",
            ClassArg::Pp => "pp",
            ClassArg::Control => "control",
        }
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u8 {
        match self {
            ClassArg::None => Class::Untagged.to_wire(),
            ClassArg::Dp => Class::DataParallel.to_wire(),
            ClassArg::Pp => Class::PipelineParallel.to_wire(),
            ClassArg::Control => Class::Control.to_wire(),
        }
    }

    /// By the number on the wire.
    pub fn from_wire(number: u64) -> ClassArg {
        ClassArg::ALL.into_iter().find(|class| u64::from(class.to_wire()) == number).unwrap_or_default()
    }

    /// Its place among those that have a name.
    fn index(self) -> Option<usize> {
        usize::from(self.to_wire()).checked_sub(1)
    }
}

/// Classes of messages, and the share of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// Weights by number on the wire; a class of weight 0 does not occur.
    pub weights: [u16; 4],
}

impl Mix {
    /// The classes that occur.
    pub fn classes(&self) -> impl Iterator<Item = ClassArg> + use<> {
        let weights = self.weights;
        ClassArg::ALL.into_iter().zip(weights).filter(|(_, weight)| *weight > 0).map(|(class, _)| class)
    }

    /// The sum of the weights.
    pub fn total(&self) -> u32 {
        self.weights.iter().map(|w| u32::from(*w)).sum()
    }

    /// The class at a place below the sum.
    pub fn at(&self, mut place: u32) -> ClassArg {
        for (class, weight) in ClassArg::ALL.into_iter().zip(self.weights) {
            match place.checked_sub(u32::from(weight)) {
                None => return class,
                Some(rest) => place = rest,
            }
        }
        ClassArg::None
    }
}

/// Reads `dp:70,pp:25,control:5`.
///
/// # Errors
/// A class that there is none of, or twice; no weight.
pub fn mix(text: &str) -> Result<Mix, String> {
    let mut mix = Mix::default();
    for part in text.split(',') {
        let (name, weight) = part.trim().split_once(':').unwrap_or((part.trim(), "1"));
        let class = ClassArg::ALL.into_iter().find(|class| class.name() == name);
        let class = class.ok_or_else(|| format!("`{name}` is no class: none, dp, pp or control"))?;
        let weight = weight.parse().ok().filter(|weight| *weight > 0);
        let weight = weight.ok_or_else(|| format!("`{part}`: a weight is a number from 1 to 65535"))?;
        let Some(place) = mix.weights.get_mut(usize::from(class.to_wire())) else { continue };
        if *place != 0 {
            return Err(format!("`{name}` is there twice"));
        }
        *place = weight;
    }
    Ok(mix)
}

/// As it is written.
impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = ClassArg::ALL
            .into_iter()
            .zip(self.weights)
            .filter(|(_, weight)| *weight > 0)
            .map(|(class, weight)| format!("{}:{weight}", class.name()))
            .collect();
        f.pad(&parts.join(","))
    }
}

fn protect(text: &str) -> Result<Protect, String> {
    match text {
        "tags" => return Ok(Protect::ByTag),
        "off" => return Ok(Protect::Nothing),
        _ => {}
    }
    let wrong = || {
        "`tags`, `off`, or K,R or K,R,DEPTH: 1 to 64 segments of a group, 1 to 16 of parity, 1 to 64 groups"
            .to_owned()
    };
    let numbers: Option<Vec<u8>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
    let (data, parity, depth) = match numbers.as_deref() {
        Some([data, parity]) => (*data, *parity, 1),
        Some([data, parity, depth]) => (*data, *parity, *depth),
        _ => return Err(wrong()),
    };
    let fits = (1..=fec::MOST_DATA).contains(&data.into())
        && (1..=fec::MOST_PARITY).contains(&parity.into())
        && (1..=64).contains(&depth);
    if fits { Ok(Protect::Everything(Protection { data, parity, depth })) } else { Err(wrong()) }
}

fn as_text<S: Serializer>(protect: &Protect, s: S) -> Result<S::Ok, S::Error> {
    match protect {
        Protect::ByTag => s.serialize_str("tags"),
        Protect::Nothing => s.serialize_str("off"),
        Protect::Everything(p) => s.collect_str(&format_args!("{},{},{}", p.data, p.parity, p.depth)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_protect() {
        assert_eq!(protect("tags"), Ok(Protect::ByTag));
        assert_eq!(protect("off"), Ok(Protect::Nothing));
        let all = |data, parity, depth| Ok(Protect::Everything(Protection { data, parity, depth }));
        assert_eq!(protect("32,4"), all(32, 4, 1));
        assert_eq!(protect("16, 8, 16"), all(16, 8, 16));
        for wrong in
            ["", "on", "32", "0,1", "65,1", "8,0", "8,17", "8,2,0", "8,2,65", "8,2,1,1", "8,-1", "256,1"]
        {
            assert!(protect(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tags_travel_only_with_a_class() {
        let tags = TagArgs { priority: Some(9), stage: 3, tolerance: Some(2), ..TagArgs::default() };
        assert_eq!(tags.semantics(), Semantics::default());
        let s = TagArgs { class: ClassArg::Pp, ..tags }.semantics();
        assert_eq!((s.class, s.priority, s.stage, s.tolerance), (2, 9, 3, 2));
    }

    #[test]
    fn flags_win_over_the_policy_file_and_that_over_what_is_usual() {
        let mut file = PolicyFile::default();
        file.tags[1].priority = Some(3);
        file.tags[1].tolerance = Some(40);
        let tags = TagArgs { policy: Some(file), ..TagArgs::default() };
        let of = |tags: &TagArgs, class| {
            let s = tags.semantics_of(class);
            (s.class, s.priority, s.tolerance)
        };
        assert_eq!(of(&tags, ClassArg::Pp), (2, 3, 40));
        assert_eq!(of(&tags, ClassArg::Dp), (1, 8, 0));
        assert_eq!(of(&TagArgs { priority: Some(15), ..tags }, ClassArg::Pp), (2, 15, 40));
        assert_eq!(tags.semantics_of(ClassArg::None), Semantics::default());
        file.policy.block = 7;
        assert_eq!(TagArgs { policy: Some(file), ..tags }.fec().policy.block, 7);
    }

    #[test]
    fn mixes_of_classes() {
        let mixed = mix("dp:70, pp:25,control:5").unwrap();
        assert_eq!(mixed.weights, [0, 70, 25, 5]);
        assert_eq!(mixed.to_string(), "dp:70,pp:25,control:5");
        let mut counts = [0; 4];
        (0..mixed.total()).for_each(|at| counts[usize::from(mixed.at(at).to_wire())] += 1);
        assert_eq!(counts, [0, 70, 25, 5]);
        assert_eq!(mix("pp,none").unwrap().classes().collect::<Vec<_>>(), [ClassArg::None, ClassArg::Pp]);
        for (wrong, words) in [
            ("", "no class"),
            ("dp:0", "a weight"),
            ("dp:70000", "a weight"),
            ("pp:1,pp:2", "twice"),
            ("ab:3", "no class"),
        ] {
            assert!(mix(wrong).unwrap_err().contains(words), "{wrong}");
        }
    }
}
