//! Which rank this process is, of how many: by its flags, or by what torchrun, mpirun and srun put into the environment.

use crate::error::Error;

/// Ranks of a workload, at the most.
pub const MAX_RANKS: u32 = 256;

/// The variables of a launcher: its name, that of the rank, and those of which the first that is there has the number of ranks.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static [&'static str],
}

/// In the order in which they are looked for: whoever starts one launcher by another means the inner one, and Slurm is the outermost.
const LAUNCHERS: [Launcher; 5] = [
    Launcher { name: "torchrun", rank: "RANK", size: &["WORLD_SIZE"] },
    Launcher { name: "Open MPI", rank: "OMPI_COMM_WORLD_RANK", size: &["OMPI_COMM_WORLD_SIZE"] },
    Launcher { name: "PMI", rank: "PMI_RANK", size: &["PMI_SIZE"] },
    // PMIx has no variable for the number of ranks; its hosts have.
    Launcher {
        name: "PMIx",
        rank: "PMIX_RANK",
        size: &["OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
    },
    Launcher { name: "Slurm", rank: "SLURM_PROCID", size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"] },
];

/// Where the ranks of a workload are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of them in this process.
    Here {
        /// How many.
        ranks: u32,
    },
    /// One of them is this process.
    Rank {
        /// Which, from 0.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// `MASTER_ADDR`, if it is there.
        master: Option<String>,
        /// `MASTER_PORT`, or torchrun's usual one.
        port: u16,
    },
}

/// The place of this process by its flags and environment.
///
/// # Errors
/// A variable that is missing or no number, or numbers that do not fit together; each is named.
pub fn place(
    ranks: Option<u32>,
    rank: Option<u32>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Place, Error> {
    let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let number = |name: &str| -> Result<Option<u32>, Error> {
        let Some(value) = set(name) else { return Ok(None) };
        let number = value.trim().parse();
        number
            .map(Some)
            .map_err(|_| Error::usage(format_args!("the variable {name} is `{value}`: a number is expected")))
    };
    let launched = LAUNCHERS.iter().find(|launcher| set(launcher.rank).is_some());
    let (rank, ranks, from) = match (rank, launched) {
        (Some(rank), _) => {
            let ranks =
                ranks.ok_or_else(|| Error::usage("--rank needs to know of how many: give --ranks"))?;
            (rank, ranks, "--rank")
        }
        (None, Some(launcher)) => {
            let rank = number(launcher.rank)?.unwrap_or_default();
            let named = launcher.size.iter().copied().find(|name| set(name).is_some());
            let size = named.map(&number).transpose()?.flatten();
            match (size, ranks) {
                (Some(size), Some(ranks)) if size != ranks => {
                    return Err(Error::usage(format_args!(
                        "--ranks is {ranks}, and {} of {} is {size}",
                        named.unwrap_or_default(),
                        launcher.name
                    ))
                    .hint("leave --ranks out"));
                }
                (Some(size), _) | (None, Some(size)) => (rank, size, launcher.rank),
                (None, None) => {
                    return Err(Error::usage(format_args!(
                        "the variable {} of {} is there, and {} is not",
                        launcher.rank,
                        launcher.name,
                        launcher.size.join(" or ")
                    ))
                    .hint("say how many ranks there are: --ranks; or start it by the launcher as a whole"));
                }
            }
        }
        (None, None) => {
            if let Some(alone) = LAUNCHERS.iter().flat_map(|l| l.size).find(|name| {
                ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].contains(name) && set(name).is_some()
            }) {
                return Err(Error::usage(format_args!(
                    "the variable {alone} is there, and none that says which rank this is"
                ))
                .hint("torchrun, mpirun and srun set both; by hand: --rank and --ranks"));
            }
            let ranks = ranks.ok_or_else(|| {
                Error::usage("how many ranks are there, and which is this?").hint(
                    "--ranks 4 runs four in this process; for a process each, start it by torchrun, mpirun or srun, or give each --rank \
                     and --ranks",
                )
            })?;
            check_count(ranks, "--ranks")?;
            return Ok(Place::Here { ranks });
        }
    };
    check_count(ranks, "the number of ranks")?;
    if rank >= ranks {
        return Err(Error::usage(format_args!(
            "{from} says rank {rank}, and there are {ranks}: they count from 0"
        )));
    }
    let port = match set("MASTER_PORT") {
        None => 29_500,
        Some(text) => text.trim().parse().map_err(|_| {
            Error::usage(format_args!(
                "the variable MASTER_PORT is `{text}`: a number up to 65535 is expected"
            ))
        })?,
    };
    Ok(Place::Rank { rank, ranks, master: set("MASTER_ADDR"), port })
}

fn check_count(ranks: u32, what: &str) -> Result<(), Error> {
    if (2..=MAX_RANKS).contains(&ranks) {
        return Ok(());
    }
    Err(Error::usage(format_args!("{what} is {ranks}: it must be 2 to {MAX_RANKS}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(variables: &[(&str, &str)], ranks: Option<u32>, rank: Option<u32>) -> Result<Place, Error> {
        place(ranks, rank, |name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    fn at(rank: u32, ranks: u32) -> Place {
        Place::Rank { rank, ranks, master: None, port: 29_500 }
    }

    #[test]
    fn every_launcher_is_understood() {
        for variables in [
            vec![("RANK", "2"), ("WORLD_SIZE", "4")],
            vec![("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")],
            vec![("PMI_RANK", "2"), ("PMI_SIZE", "4")],
            vec![("PMIX_RANK", "2"), ("SLURM_NTASKS", "4"), ("SLURM_PROCID", "3")],
            vec![("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4")],
            // A step of fewer tasks than the job has.
            vec![("SLURM_PROCID", "2"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_NTASKS", "8")],
            // torchrun within a Slurm job.
            vec![("RANK", "2"), ("WORLD_SIZE", "4"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")],
        ] {
            assert_eq!(by(&variables, None, None), Ok(at(2, 4)), "{variables:?}");
        }
        assert_eq!(by(&[("PMIX_RANK", "1")], Some(3), None), Ok(at(1, 3)));
        assert_eq!(by(&[], Some(3), Some(1)), Ok(at(1, 3)));
        assert_eq!(by(&[], Some(3), None), Ok(Place::Here { ranks: 3 }));
        let torchrun =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "1234")];
        let master = Some("10.0.0.1".to_owned());
        assert_eq!(by(&torchrun, None, None), Ok(Place::Rank { rank: 0, ranks: 2, master, port: 1234 }));
    }

    #[test]
    fn what_is_wrong_or_missing_is_named() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<u32>, Option<u32>, &'a str);
        let cases: [Case<'_>; 12] = [
            (&[("RANK", "1")], None, None, "RANK of torchrun is there, and WORLD_SIZE is not"),
            (
                &[("PMIX_RANK", "1")],
                None,
                None,
                "OMPI_COMM_WORLD_SIZE or SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not",
            ),
            (&[("WORLD_SIZE", "4")], None, None, "WORLD_SIZE is there, and none that says which rank"),
            (&[("RANK", "x"), ("WORLD_SIZE", "4")], None, None, "RANK is `x`: a number"),
            (&[("RANK", "1"), ("WORLD_SIZE", "-4")], None, None, "WORLD_SIZE is `-4`: a number"),
            (&[("RANK", "4"), ("WORLD_SIZE", "4")], None, None, "RANK says rank 4, and there are 4"),
            (&[("RANK", "0"), ("WORLD_SIZE", "1")], None, None, "must be 2 to 256"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "4")],
                Some(3),
                None,
                "--ranks is 3, and WORLD_SIZE of torchrun is 4",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_PORT", "70000")],
                None,
                None,
                "MASTER_PORT is `70000`",
            ),
            (&[], None, None, "how many ranks"),
            (&[], None, Some(1), "give --ranks"),
            (&[], Some(257), None, "must be 2 to 256"),
        ];
        for (variables, ranks, rank, words) in cases {
            let error = by(variables, ranks, rank).unwrap_err();
            assert!(error.to_string().contains(words), "{words} in {error}");
            assert_eq!(error.exit, crate::error::Exit::Usage);
        }
    }
}
