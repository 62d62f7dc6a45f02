//! Those who encode and decode: our default and AVX2 kernels, ISA-L, `reed-solomon-erasure` and `reed-solomon-simd`. Each has the same data in
//! memory of its own, all of which fits the second-level cache.

use fec::kernel::Kernel;
use fec::{Codec, Decoder, ReedSolomon};
use std::hint::black_box;

/// Somebody with a group in memory.
pub trait Coder {
    /// Shown in tables.
    fn name(&self) -> &'static str;
    /// Whether it is what Spraywire uses.
    fn is_default(&self) -> bool {
        false
    }
    /// Makes the parity, so many times.
    fn encode(&mut self, times: u32);
    /// From now on the first so many data shards are lost; what is recovered of them has to be right.
    fn lose(&mut self, count: usize) -> Result<(), String>;
    /// Makes the lost data, so many times.
    fn decode(&mut self, times: u32);
}

/// Whether ISA-L takes part.
pub fn with_isal() -> bool {
    cfg!(feature = "isal")
}

/// Everybody, the one to compare with first.
pub fn all(data: usize, parity: usize, size: usize) -> Vec<Box<dyn Coder>> {
    let mut coders: Vec<Box<dyn Coder>> = Vec::new();
    #[cfg(feature = "isal")]
    coders.push(Box::new(Own::new("ISA-L", fec::kernel::ISAL, data, parity, size)));
    coders.push(default(data, parity, size));
    if let Some(avx2) = fec::kernel::all().find(|kernel| kernel.name() == "avx2") {
        coders.push(Box::new(Own::new("our AVX2 kernel", avx2, data, parity, size)));
    }
    coders.push(Box::new(Erasure::new(data, parity, size)));
    coders.push(Box::new(Simd::new(data, parity, size)));
    coders
}

/// Ours.
pub fn default(data: usize, parity: usize, size: usize) -> Box<dyn Coder> {
    Box::new(Own::new("default kernel", fec::kernel::best(), data, parity, size))
}

/// The plain sum of as many shards: it reads and writes what the recovery of one does, and multiplies nothing.
pub fn bound(data: usize, size: usize) -> impl FnMut(u32) {
    let shards = payload(data, size);
    let mut sum = vec![0; size];
    move |times| {
        let shards: Vec<&[u8]> = shards.iter().map(Vec::as_slice).collect();
        for _ in 0..times {
            fec::kernel::best().sum(black_box(&shards), &mut sum);
            black_box(&mut sum);
        }
    }
}

fn payload(data: usize, size: usize) -> Vec<Vec<u8>> {
    let byte = |shard: usize, i: usize| (shard * 131 + i * 7 + (i >> 8) * 13) as u8;
    (0..data).map(|shard| (0..size).map(|i| byte(shard, i)).collect()).collect()
}

fn same(recovered: &[u8], shard: usize, data: &[Vec<u8>]) -> Result<(), String> {
    if recovered == data[shard] { Ok(()) } else { Err(format!("shard {shard} was not recovered")) }
}

/// The code of this project, with any kernel.
struct Own {
    name: &'static str,
    decoder: Decoder,
    data: Vec<Vec<u8>>,
    parity: Vec<Vec<u8>>,
    recovered: Vec<Vec<u8>>,
}

impl Own {
    fn new(name: &'static str, kernel: &'static dyn Kernel, data: usize, parity: usize, size: usize) -> Own {
        let code = ReedSolomon::with_kernel(kernel, data, parity).expect("the codes are small");
        let parity = vec![vec![0; size]; parity];
        let mut own = Own {
            name,
            decoder: Decoder::new(code),
            data: payload(data, size),
            parity,
            recovered: Vec::new(),
        };
        own.encode(1);
        own
    }
}

impl Coder for Own {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_default(&self) -> bool {
        self.name == "default kernel"
    }

    fn encode(&mut self, times: u32) {
        let data: Vec<&[u8]> = self.data.iter().map(Vec::as_slice).collect();
        let mut parity: Vec<&mut [u8]> = self.parity.iter_mut().map(Vec::as_mut_slice).collect();
        for _ in 0..times {
            self.decoder.code().encode(black_box(&data), &mut parity).expect("all shards are of one size");
            black_box(&mut parity);
        }
    }

    fn lose(&mut self, count: usize) -> Result<(), String> {
        self.recovered = vec![vec![0; self.data[0].len()]; count];
        self.decode(1);
        self.recovered.iter().enumerate().try_for_each(|(i, shard)| same(shard, i, &self.data))
    }

    fn decode(&mut self, times: u32) {
        let lost = self.recovered.len();
        let data = self.data.iter().enumerate().map(|(i, shard)| (i >= lost).then_some(shard.as_slice()));
        let shards: Vec<Option<&[u8]>> =
            data.chain(self.parity.iter().map(|shard| Some(shard.as_slice()))).collect();
        let mut recovered: Vec<&mut [u8]> = self.recovered.iter_mut().map(Vec::as_mut_slice).collect();
        for _ in 0..times {
            let done = self.decoder.recover(black_box(&shards), &mut recovered);
            done.expect("as many shards came as are needed");
            black_box(&mut recovered);
        }
    }
}

/// The crate whose parity is the same.
struct Erasure {
    code: reed_solomon_erasure::galois_8::ReedSolomon,
    data: Vec<Vec<u8>>,
    parity: Vec<Vec<u8>>,
    shards: Vec<(Vec<u8>, bool)>,
    lost: usize,
}

impl Erasure {
    fn new(data: usize, parity: usize, size: usize) -> Erasure {
        let code = reed_solomon_erasure::galois_8::ReedSolomon::new(data, parity).expect("small");
        let parity = vec![vec![0; size]; parity];
        let mut coder = Erasure { code, data: payload(data, size), parity, shards: Vec::new(), lost: 0 };
        coder.encode(1);
        coder
    }
}

impl Coder for Erasure {
    fn name(&self) -> &'static str {
        "reed-solomon-erasure"
    }

    fn encode(&mut self, times: u32) {
        for _ in 0..times {
            self.code.encode_sep(&self.data, &mut self.parity).expect("all shards are of one size");
            black_box(&mut self.parity);
        }
    }

    fn lose(&mut self, count: usize) -> Result<(), String> {
        self.shards = self.data.iter().chain(&self.parity).map(|shard| (shard.clone(), true)).collect();
        self.shards[..count].iter_mut().for_each(|(shard, _)| shard.fill(0));
        self.lost = count;
        self.decode(1);
        (0..count).try_for_each(|i| same(&self.shards[i].0, i, &self.data))
    }

    fn decode(&mut self, times: u32) {
        for _ in 0..times {
            self.shards[..self.lost].iter_mut().for_each(|(_, there)| *there = false);
            self.code.reconstruct_data(&mut self.shards).expect("as many shards came as are needed");
            black_box(&mut self.shards);
        }
    }
}

/// A code of another family, by fast transforms; its parity differs.
struct Simd {
    encoder: reed_solomon_simd::ReedSolomonEncoder,
    decoder: reed_solomon_simd::ReedSolomonDecoder,
    data: Vec<Vec<u8>>,
    parity: Vec<Vec<u8>>,
    lost: usize,
    /// What was recovered first.
    recovered: Vec<Vec<u8>>,
}

impl Simd {
    fn new(data: usize, parity: usize, size: usize) -> Simd {
        let encoder = reed_solomon_simd::ReedSolomonEncoder::new(data, parity, size).expect("small");
        let decoder = reed_solomon_simd::ReedSolomonDecoder::new(data, parity, size).expect("small");
        let data = payload(data, size);
        let parity =
            reed_solomon_simd::encode(data.len(), parity, &data).expect("all shards are of one size");
        Simd { encoder, decoder, data, parity, lost: 0, recovered: Vec::new() }
    }

    fn run(&mut self, keep: bool) {
        for (i, shard) in self.data.iter().enumerate().skip(self.lost) {
            self.decoder.add_original_shard(i, shard).expect("all shards are of one size");
        }
        for (i, shard) in self.parity.iter().enumerate().take(self.lost) {
            self.decoder.add_recovery_shard(i, shard).expect("all shards are of one size");
        }
        let result = self.decoder.decode().expect("as many shards came as are needed");
        if keep {
            self.recovered = result.restored_original_iter().map(|(_, shard)| shard.to_vec()).collect();
        } else {
            black_box(result.restored_original(0));
        }
    }
}

impl Coder for Simd {
    fn name(&self) -> &'static str {
        "reed-solomon-simd"
    }

    fn encode(&mut self, times: u32) {
        for _ in 0..times {
            for shard in &self.data {
                self.encoder.add_original_shard(shard).expect("all shards are of one size");
            }
            black_box(self.encoder.encode().expect("all shards were added").recovery(0));
        }
    }

    fn lose(&mut self, count: usize) -> Result<(), String> {
        self.lost = count;
        self.run(true);
        (0..count).try_for_each(|i| {
            self.recovered
                .get(i)
                .map_or(Err("too few were recovered".into()), |shard| same(shard, i, &self.data))
        })
    }

    fn decode(&mut self, times: u32) {
        (0..times).for_each(|_| self.run(false));
    }
}
