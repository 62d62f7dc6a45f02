//! From a received packet to the place of its bytes.

use super::parity::ParityStore;
use super::store::Store;
use crate::buffer::Buffer;
use roce_proto::transport::{Engine, Origin, Place, Received};
use roce_proto::wire::shim::{Data, Parity};

/// Gives a packet to the engine, and places its segment.
#[inline]
pub(super) fn take<B: Buffer>(origin: &Origin, payload: &[u8], engine: &mut Engine, to: &mut Places<'_, B>) {
    let mut left = Some(payload);
    while let Some(payload) = left {
        left = Data::following(payload);
        take_one(origin, payload, engine, to);
    }
}

/// A packet, or one of the segments in it.
#[inline]
fn take_one<B: Buffer>(origin: &Origin, payload: &[u8], engine: &mut Engine, to: &mut Places<'_, B>) {
    if let Received::Place(p) = engine.receive(origin, payload) {
        let header = if matches!(p.to, Place::Shard(_)) { Parity::LEN } else { Data::LEN };
        let segment = payload.get(header..).and_then(|s| s.get(..p.len as usize)).unwrap_or_default();
        match p.to {
            Place::Receive { token, offset } => to.receives.write(token, offset, segment),
            Place::Block(at) => {
                let from = at as usize * to.block;
                if let Some(place) = to.pool.get_mut(from..from + segment.len()) {
                    place.copy_from_slice(segment);
                }
            }
            Place::Shard(at) => to.parity.keep(at, segment),
        }
    }
    // Whatever it was: a segment that is not placed moves the window too.
    if let Some(repair) = engine.next_repair() {
        to.parity.repair(&repair, to.receives);
    }
}

/// Where the bytes of packets go.
pub(super) struct Places<'a, B: Buffer> {
    pub receives: &'a mut Store<B>,
    pub pool: &'a mut [u8],
    pub block: usize,
    pub parity: &'a mut ParityStore,
}
