//! What an application says of its messages, as flags.

use clap::{Args, ValueEnum};
use fec::policy::{Class, Protection};
use roce_proto::transport::Protect;
use roce_proto::wire::shim::Semantics;
use serde::{Serialize, Serializer};

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

    /// Priority within the class, 0 to 15; gradients are protected from 8 on
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub priority: u8,

    /// Place in the application's pipeline: earlier stages are protected more strongly
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub stage: u8,

    /// Loss that the application tolerates, in 1/256: such messages are protected less strongly. Everything arrives all the same
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub tolerance: u8,

    /// Whose messages get parity: `tags` (as class, measured losses and round trip ask for), `off`, or `K,R` or `K,R,DEPTH` for all
    /// messages alike
    #[arg(long, value_name = "HOW", default_value = "tags", value_parser = protect)]
    #[serde(serialize_with = "as_text")]
    pub fec: Protect,
}

impl Default for TagArgs {
    fn default() -> Self {
        TagArgs { class: ClassArg::None, priority: 8, stage: 0, tolerance: 0, fec: Protect::ByTag }
    }
}

impl TagArgs {
    /// As they travel with each segment.
    pub fn semantics(&self) -> Semantics {
        let class = match self.class {
            ClassArg::None => return Semantics::default(),
            ClassArg::Dp => Class::DataParallel,
            ClassArg::Pp => Class::PipelineParallel,
            ClassArg::Control => Class::Control,
        };
        Semantics {
            class: class.to_wire(),
            priority: self.priority,
            stage: self.stage,
            tolerance: self.tolerance,
            ..Semantics::default()
        }
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
        let tags = TagArgs { priority: 9, stage: 3, tolerance: 2, ..TagArgs::default() };
        assert_eq!(tags.semantics(), Semantics::default());
        let s = TagArgs { class: ClassArg::Pp, ..tags }.semantics();
        assert_eq!((s.class, s.priority, s.stage, s.tolerance), (2, 9, 3, 2));
    }
}
