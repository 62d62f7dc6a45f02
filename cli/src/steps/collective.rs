//! The collectives, as each rank runs them in one step: what it sends, what it waits for, and what becomes of what came. No IO.
//!
//! The ring all-reduce is that of Patarasuk and Yuan (2009): every rank's buffer is cut into as many chunks as there are ranks; in
//! the first N − 1 rounds sums go around the ring, in the other N − 1 the whole sums do. An all-to-all sends each other rank its block at
//! once, the next rank's first, so that not all send to the same one.

use super::values::{self, ELEMENT};
use std::collections::VecDeque;
use std::ops::Range;

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Every rank gets the sum of all ranks' buffers; around a ring
    AllReduce,
    /// Every rank has a block for each other
    AllToAll,
}

impl Workload {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::AllReduce => "all-reduce",
            Workload::AllToAll => "all-to-all",
        }
    }

    /// What the bandwidth that a user sees is multiplied by to get what each rank's link carries, as nccl-tests have it.
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Workload::AllReduce => 2.0 * (n - 1.0) / n,
            Workload::AllToAll => (n - 1.0) / n,
        }
    }

    /// Buffers' worth of memory that a rank has in a step: its own, what comes, what is posted for that, and copies on their way.
    pub fn buffers(self) -> u64 {
        match self {
            // Receives are posted for all rounds, which are two for each other rank.
            Workload::AllReduce => 3,
            Workload::AllToAll => 4,
        }
    }

    /// The buffer of each rank nearest to `size` bytes: whole elements, and as many for each rank in an all-to-all.
    pub fn buffer(self, size: u64, ranks: u32) -> u64 {
        let unit = match self {
            Workload::AllReduce => ELEMENT as u64,
            Workload::AllToAll => ELEMENT as u64 * u64::from(ranks),
        };
        size.div_ceil(unit).max(1) * unit
    }
}

/// A message to send: to whom, and which bytes of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// The rank.
    pub to: u32,
    /// Where the bytes lie.
    pub bytes: Range<usize>,
}

/// One rank's part in one step.
#[derive(Debug)]
pub struct Step {
    workload: Workload,
    rank: u32,
    ranks: u32,
    number: u64,
    /// What it contributes; of an all-reduce, the sum at the end.
    own: Vec<u8>,
    /// Of an all-to-all, what came.
    came: Vec<u8>,
    /// To be sent.
    out: VecDeque<Out>,
    /// What came of a ring before its turn, by round.
    early: Vec<Option<Vec<u8>>>,
    /// Messages that have been taken.
    taken: usize,
}

impl Step {
    /// With a buffer of `size` bytes, as [`Workload::buffer`] gives it.
    pub fn new(workload: Workload, rank: u32, ranks: u32, size: usize) -> Step {
        let came = if workload == Workload::AllToAll { vec![0; size] } else { Vec::new() };
        let out = VecDeque::with_capacity(ranks as usize);
        let own = vec![0; size];
        Step { workload, rank, ranks, number: 0, own, came, out, early: Vec::new(), taken: 0 }
    }

    /// Begins a step: the messages that will come, by rank and length, in the order in which their receives are to be posted.
    pub fn begin(&mut self, number: u64) -> Vec<(u32, usize)> {
        self.number = number;
        self.taken = 0;
        self.out.clear();
        match self.workload {
            Workload::AllReduce => {
                values::fill(&mut self.own, self.rank, 0, number);
                self.early = vec![None; self.rounds()];
                self.queue_round(0);
                let before = (self.rank + self.ranks - 1) % self.ranks;
                (0..self.rounds()).map(|round| (before, self.chunk(self.arriving(round)).len())).collect()
            }
            Workload::AllToAll => {
                self.came.fill(0);
                let block = self.own.len() / self.ranks as usize;
                for (to, bytes) in (0..).zip(self.own.chunks_exact_mut(block)) {
                    values::fill(bytes, self.rank, to, number);
                }
                let mine = self.block(self.rank);
                if let (Some(to), Some(from)) = (self.came.get_mut(mine.clone()), self.own.get(mine)) {
                    to.copy_from_slice(from);
                }
                for distance in 1..self.ranks {
                    let to = (self.rank + distance) % self.ranks;
                    self.out.push_back(Out { to, bytes: self.block(to) });
                }
                (1..self.ranks).map(|d| ((self.rank + self.ranks - d) % self.ranks, block)).collect()
            }
        }
    }

    /// The next message to send, which is as it is when it is asked for.
    pub fn next_out(&mut self) -> Option<Out> {
        self.out.pop_front()
    }

    /// It could not be sent yet.
    pub fn put_back(&mut self, out: Out) {
        self.out.push_front(out);
    }

    /// The bytes of a message.
    pub fn bytes(&self, out: &Out) -> &[u8] {
        self.own.get(out.bytes.clone()).unwrap_or_default()
    }

    /// A message came; `nth` is its place among those that [`Step::begin`] named.
    pub fn take(&mut self, nth: usize, bytes: &[u8]) {
        match self.workload {
            Workload::AllToAll => {
                let from = (self.rank + self.ranks - 1 - (nth as u32 % self.ranks)) % self.ranks;
                let block = self.block(from);
                if let Some(place) = self.came.get_mut(block).filter(|place| place.len() == bytes.len()) {
                    place.copy_from_slice(bytes);
                }
                self.taken += 1;
            }
            Workload::AllReduce => {
                // With losses a later round's may be here first, though it is to be added after.
                if nth != self.taken {
                    if let Some(place) = self.early.get_mut(nth) {
                        *place = Some(bytes.to_vec());
                    }
                    return;
                }
                self.round(bytes);
                while let Some(next) = self.early.get_mut(self.taken).and_then(Option::take) {
                    self.round(&next);
                }
            }
        }
    }

    /// Whether everything came.
    pub fn is_done(&self) -> bool {
        self.taken == self.messages()
    }

    /// Messages that come in a step.
    pub fn messages(&self) -> usize {
        match self.workload {
            Workload::AllReduce => self.rounds(),
            Workload::AllToAll => self.ranks as usize - 1,
        }
    }

    /// Elements that are not what they should be.
    pub fn wrong(&self) -> u64 {
        match self.workload {
            Workload::AllReduce => values::wrong_in_sum(&self.own, self.ranks, self.number),
            Workload::AllToAll => (0..self.ranks)
                .map(|from| {
                    let block = self.came.get(self.block(from)).unwrap_or_default();
                    values::wrong_from(block, from, self.rank, self.number)
                })
                .sum(),
        }
    }

    fn rounds(&self) -> usize {
        2 * (self.ranks as usize - 1)
    }

    fn block(&self, rank: u32) -> Range<usize> {
        let block = self.own.len() / self.ranks as usize;
        let from = rank as usize * block;
        from..from + block
    }

    /// A chunk of a ring's buffer; those of a buffer that cannot be cut evenly differ by an element.
    fn chunk(&self, number: u32) -> Range<usize> {
        let elements = self.own.len() / ELEMENT;
        let edge = |n: u32| elements * n as usize / self.ranks as usize * ELEMENT;
        edge(number)..edge(number + 1)
    }

    /// The chunk that leaves in a round: in the first its own, then what came in the round before. There are fewer than two rounds for
    /// each rank.
    fn leaving(&self, round: usize) -> u32 {
        (self.rank + 2 * self.ranks - round as u32) % self.ranks
    }

    /// The chunk that arrives in a round: what leaves the rank before.
    fn arriving(&self, round: usize) -> u32 {
        (self.leaving(round) + self.ranks - 1) % self.ranks
    }

    fn queue_round(&mut self, round: usize) {
        let to = (self.rank + 1) % self.ranks;
        self.out.push_back(Out { to, bytes: self.chunk(self.leaving(round)) });
    }

    /// What came in the round whose turn it is.
    fn round(&mut self, bytes: &[u8]) {
        let chunk = self.chunk(self.arriving(self.taken));
        let sums = self.taken + 1 < self.ranks as usize;
        if let Some(place) = self.own.get_mut(chunk).filter(|place| place.len() == bytes.len()) {
            if sums {
                values::add(place, bytes);
            } else {
                place.copy_from_slice(bytes);
            }
        }
        self.taken += 1;
        if self.taken < self.rounds() {
            self.queue_round(self.taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a step of all ranks, messages delivered in an order drawn at random; the ranks at its end.
    fn run(
        workload: Workload,
        ranks: u32,
        size: u64,
        number: u64,
        mut bend: impl FnMut(&mut Vec<u8>),
    ) -> Vec<Step> {
        let size = workload.buffer(size, ranks) as usize;
        let mut all: Vec<_> = (0..ranks).map(|rank| Step::new(workload, rank, ranks, size)).collect();
        let awaited: Vec<_> = all.iter_mut().map(|step| step.begin(number)).collect();
        let mut rng = fastrand::Rng::with_seed(number);
        // From, to, which of the pair's, and the bytes.
        let mut on_the_way: Vec<(usize, usize, usize, Vec<u8>)> = Vec::new();
        let mut sent = vec![vec![0; ranks as usize]; ranks as usize];
        loop {
            for from in 0..ranks as usize {
                while let Some(out) = all[from].next_out() {
                    let to = out.to as usize;
                    let mut bytes = all[from].bytes(&out).to_vec();
                    bend(&mut bytes);
                    on_the_way.push((from, to, sent[from][to], bytes));
                    sent[from][to] += 1;
                }
            }
            if on_the_way.is_empty() {
                return all;
            }
            let (from, to, which, bytes) = on_the_way.swap_remove(rng.usize(0..on_the_way.len()));
            let of_pair = |(_, (rank, _)): &(usize, &(u32, usize))| *rank as usize == from;
            let (nth, (_, len)) = awaited[to].iter().enumerate().filter(of_pair).nth(which).unwrap();
            assert_eq!(*len, bytes.len(), "the length was announced");
            all[to].take(nth, &bytes);
        }
    }

    #[test]
    fn every_rank_has_what_it_should_whatever_the_sizes() {
        for workload in [Workload::AllReduce, Workload::AllToAll] {
            for ranks in 2..=9 {
                for size in [0, 4, 8, 36, 100, 1000] {
                    for step in run(workload, ranks, size, u64::from(ranks) + size, |_| {}) {
                        assert!(step.is_done(), "{workload:?} {ranks} ranks, {size} bytes: {step:?}");
                        assert_eq!(step.wrong(), 0, "{workload:?} {ranks} ranks, {size} bytes: {step:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        for workload in [Workload::AllReduce, Workload::AllToAll] {
            let mut left = 1;
            let steps = run(workload, 4, 64, 5, |bytes| {
                if left == 1 {
                    bytes[0] ^= 4;
                }
                left = 0;
            });
            assert!(steps.iter().map(Step::wrong).sum::<u64>() > 0, "{workload:?}");
        }
    }

    #[test]
    fn messages_of_a_ring_that_overtake_each_other_wait_for_their_turn() {
        let mut step = Step::new(Workload::AllReduce, 0, 2, 8);
        let awaited = step.begin(1);
        assert_eq!(awaited, [(1, 4), (1, 4)]);
        step.take(1, &[1, 0, 0, 0]);
        assert!(!step.is_done());
        step.take(0, &[2, 0, 0, 0]);
        assert!(step.is_done());
    }

    #[test]
    fn sizes_and_bandwidths_are_those_of_nccl_tests() {
        assert_eq!(Workload::AllReduce.buffer(1001, 3), 1004);
        assert_eq!(Workload::AllToAll.buffer(1000, 3), 1008);
        assert_eq!(Workload::AllToAll.buffer(0, 3), 12);
        assert_eq!(Workload::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Workload::AllToAll.bus_factor(4), 0.75);
    }
}
