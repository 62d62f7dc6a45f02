//! Files made by hand, by another implementation, and by chance.

use super::*;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use std::time::Duration;

type Owned = (Option<u64>, LinkType, u32, Vec<u8>);

/// All records, and the error that ended them if there was one.
fn read(bytes: &[u8]) -> (Vec<Owned>, Option<String>) {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(e) => return (Vec::new(), Some(e.to_string())),
    };
    let mut records = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(r)) => records.push((r.time, r.link, r.orig_len, r.data.to_vec())),
            Ok(None) => return (records, None),
            Err(e) => {
                assert!(matches!(reader.next_record(), Ok(None)), "nothing comes after an error");
                return (records, Some(e.to_string()));
            }
        }
    }
}

/// A pcap by another implementation: packets of 3 and 5 bytes at 1.000002003 s and 2 s.
fn pcap(endianness: Endianness, ts_resolution: TsResolution) -> Vec<u8> {
    let header =
        PcapHeader { endianness, ts_resolution, datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    writer.write_packet(&PcapPacket::new(Duration::new(1, 2003), 3, b"abc")).unwrap();
    writer.write_packet(&PcapPacket::new(Duration::new(2, 0), 5, b"defgh")).unwrap();
    writer.into_writer()
}

/// A pcapng block.
fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let word = |w: u32| match order {
        Order::Little => w.to_le_bytes(),
        Order::Big => w.to_be_bytes(),
    };
    let padded = body.len().next_multiple_of(4);
    let len = word(padded as u32 + 12);
    let pad = vec![0; padded - body.len()];
    [&word(kind), &len, body, &pad, &len].concat()
}

fn words(order: Order, list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|w| if order == Order::Little { w.to_le_bytes() } else { w.to_be_bytes() }).collect()
}

fn section(order: Order) -> Vec<u8> {
    let version = if order == Order::Little { 1 } else { 0x1_0000 };
    block(order, 0x0a0d_0d0a, &words(order, &[0x1a2b_3c4d, version, u32::MAX, u32::MAX]))
}

/// An interface of a link type with options behind it.
fn interface(order: Order, link: u16, snaplen: u32, options: &[u8]) -> Vec<u8> {
    let link = if order == Order::Little { u32::from(link) } else { u32::from(link) << 16 };
    block(order, 1, &[words(order, &[link, snaplen]), options.to_vec()].concat())
}

fn packet(order: Order, interface: u32, ticks: u64, orig_len: u32, data: &[u8]) -> Vec<u8> {
    let head = words(order, &[interface, (ticks >> 32) as u32, ticks as u32, data.len() as u32, orig_len]);
    block(order, 6, &[&head, data].concat())
}

#[test]
fn pcap_in_both_orders_and_resolutions() {
    for endianness in [Endianness::Little, Endianness::Big] {
        let nanos = read(&pcap(endianness, TsResolution::NanoSecond));
        let ether = LinkType::ETHERNET;
        let second = (Some(2_000_000_000), ether, 5, b"defgh".to_vec());
        assert_eq!(nanos, (vec![(Some(1_000_002_003), ether, 3, b"abc".to_vec()), second.clone()], None));
        let micros = read(&pcap(endianness, TsResolution::MicroSecond));
        assert_eq!(micros, (vec![(Some(1_000_002_000), ether, 3, b"abc".to_vec()), second], None));
    }
}

#[test]
fn records_that_the_snap_length_cut_are_read() {
    let mut file = pcap(Endianness::Little, TsResolution::MicroSecond);
    // Snap length 3; the second packet had 9000 bytes.
    file[16..20].copy_from_slice(&3u32.to_le_bytes());
    let at = 24 + 16 + 3;
    file[at + 12..at + 16].copy_from_slice(&9000u32.to_le_bytes());
    let mut reader = Reader::new(&file[..]).unwrap();
    assert_eq!(reader.format(), Format::Pcap);
    assert!(!reader.next_record().unwrap().unwrap().is_cut());
    let cut = reader.next_record().unwrap().unwrap();
    assert!(cut.is_cut());
    assert_eq!((cut.orig_len, cut.data), (9000, &b"defgh"[..]));
}

#[test]
fn link_type_is_the_low_half_of_its_field() {
    let mut file = pcap(Endianness::Little, TsResolution::MicroSecond);
    // Four bytes of frame check sequence, and Linux "any", second version.
    file[20..24].copy_from_slice(&(0x4400_0000u32 | 276).to_le_bytes());
    assert_eq!(read(&file).0[0].1, LinkType::LINUX_SLL2);
}

#[test]
fn pcapng_blocks_sections_and_times() {
    for (first, second) in [(Order::Little, Order::Big), (Order::Big, Order::Little)] {
        // Nanoseconds, and an offset of minus one second.
        let resolution = |r: u8| {
            let (nine, one, fourteen, eight) = match first {
                Order::Little => ([9, 0], [1, 0], [14, 0], [8, 0]),
                Order::Big => ([0, 9], [0, 1], [0, 14], [0, 8]),
            };
            let offset = if first == Order::Little { (-1i64).to_le_bytes() } else { (-1i64).to_be_bytes() };
            [&nine[..], &one, &[r, 0, 0, 0], &fourteen, &eight, &offset].concat()
        };
        let file = [
            section(first),
            block(first, 0x0bad_cafe, b"unknown"),
            interface(first, 1, 0, &resolution(9)),
            // 2⁻¹⁰ seconds.
            interface(first, 101, 0, &resolution(0x8a)),
            packet(first, 0, 3_000_000_007, 100, b"abcde"),
            packet(first, 1, 3 * 1024 + 512, 4, b"wxyz"),
            block(first, 3, &[words(first, &[6]), b"simple".to_vec()].concat()),
            section(second),
            interface(second, 113, 2, &[]),
            packet(second, 0, 5, 4, b"1234"),
            block(second, 3, &[words(second, &[6]), b"si".to_vec()].concat()),
        ]
        .concat();
        assert_eq!(Reader::new(&file[..]).unwrap().format(), Format::Pcapng);
        let (records, error) = read(&file);
        assert_eq!(error, None);
        let want: Vec<Owned> = vec![
            (Some(2_000_000_007), LinkType::ETHERNET, 100, b"abcde".to_vec()),
            (Some(2_500_000_000), LinkType::RAW, 4, b"wxyz".to_vec()),
            (None, LinkType::ETHERNET, 6, b"simple".to_vec()),
            // Interfaces begin anew with a section; microseconds if nothing is said.
            (Some(5000), LinkType::LINUX_SLL, 4, b"1234".to_vec()),
            (None, LinkType::LINUX_SLL, 6, b"si".to_vec()),
        ];
        assert_eq!(records, want);
    }
}

#[test]
fn extreme_times_stay_within_their_type() {
    for resolution in [0, 9, 19, 127, 0x80, 0xff] {
        let options = [9, 0, 1, 0, resolution, 0, 0, 0];
        let file = [
            section(Order::Little),
            interface(Order::Little, 1, 0, &options),
            packet(Order::Little, 0, u64::MAX, 1, b"a"),
        ]
        .concat();
        let want = match resolution {
            0 | 0x80 => u64::MAX,
            9 => u64::MAX,
            19 => u64::MAX / 10_000_000_000,
            _ => 0,
        };
        assert_eq!(read(&file).0[0].0, Some(want), "{resolution:#x}");
    }
}

#[test]
fn what_is_no_capture_says_why() {
    let error = |bytes: &[u8]| read(bytes).1.unwrap();
    assert_eq!(error(b""), "the file is empty");
    assert_eq!(error(b"\xd4\xc3"), CaptureError::Truncated.to_string());
    assert!(error(b"GIF89a").contains("47 49 46 38"));
    assert!(error(&[0x1f, 0x8b, 8, 0, 0, 0]).contains("gzip"));
    let mut old = pcap(Endianness::Little, TsResolution::MicroSecond);
    old[4] = 1;
    assert_eq!(error(&old), "pcap version 1; 2 is understood");
    let bad_section = block(Order::Little, 0x0a0d_0d0a, &words(Order::Little, &[7, 1, 0, 0]));
    assert!(error(&bad_section).contains("0x07000000"));
    for order in [Order::Little, Order::Big] {
        let late = block(
            order,
            0x0a0d_0d0a,
            &words(order, &[0x1a2b_3c4d, if order == Order::Little { 9 } else { 0x9_0000 }, 0, 0]),
        );
        assert_eq!(error(&late), "pcapng version 9; 1 is understood");
    }
}

#[test]
fn damage_ends_the_file_and_keeps_what_came_before() {
    let mut long = pcap(Endianness::Little, TsResolution::MicroSecond);
    let at = 24 + 16 + 3;
    long[at + 8..at + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    let (records, error) = read(&long);
    assert_eq!((records.len(), error.unwrap().contains("4294967295")), (1, true));

    let head = [section(Order::Little), interface(Order::Little, 1, 0, &[])].concat();
    let after = |bytes: &[u8]| {
        let (records, error) = read(&[&head, &packet(Order::Little, 0, 0, 1, b"a"), bytes].concat());
        assert_eq!(records.len(), 1);
        error.unwrap()
    };
    assert!(after(&packet(Order::Little, 1, 0, 1, b"a")).contains("interface 1"));
    let mut trailer = packet(Order::Little, 0, 0, 1, b"a");
    let last = trailer.len() - 4;
    trailer[last] ^= 0x80;
    assert!(after(&trailer).contains("at its end"));
    let mut captured = packet(Order::Little, 0, 0, 1, b"a");
    captured[20] = 5;
    assert!(after(&captured).contains("5 bytes"), "more data than the block has");
    assert!(after(&words(Order::Little, &[6, 11, 0, 0])).contains("11 bytes"), "no room for its own frame");
    assert!(after(&words(Order::Little, &[6, 0xffff_fff0])).contains("4294967280"));
    // An unknown block of four gigabytes is skipped, not kept, and found to be missing.
    assert!(after(&words(Order::Little, &[99, 0xffff_fff0, 1, 2])).contains("breaks off"));
}

#[test]
fn a_file_cut_anywhere_yields_its_whole_records() {
    let files = [
        pcap(Endianness::Big, TsResolution::MicroSecond),
        [
            section(Order::Big),
            interface(Order::Big, 1, 0, &[]),
            packet(Order::Big, 0, 0, 3, b"abc"),
            packet(Order::Big, 0, 0, 5, b"defgh"),
        ]
        .concat(),
    ];
    for file in files {
        let (whole, _) = read(&file);
        assert_eq!(whole.len(), 2);
        let mut clean_ends = 0;
        for end in 1..file.len() {
            let (records, error) = read(&file[..end]);
            assert_eq!(records, whole[..records.len()]);
            match error {
                None => clean_ends += 1,
                Some(e) => assert_eq!(e, CaptureError::Truncated.to_string(), "cut at {end}"),
            }
        }
        // Only where a record or a block ends is the end no surprise.
        assert!((2..=3).contains(&clean_ends), "{clean_ends}");
    }
}

#[test]
fn no_mutation_panics_or_takes_much_memory() {
    let seed = 0x5eed;
    let mut random = fastrand::Rng::with_seed(seed);
    let files = [
        pcap(Endianness::Little, TsResolution::MicroSecond),
        [
            section(Order::Little),
            interface(Order::Little, 1, 0, &[9, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0]),
            packet(Order::Little, 0, 0, 3, b"abc"),
            block(Order::Little, 3, &[words(Order::Little, &[6]), b"simple".to_vec()].concat()),
            block(Order::Little, 2, &words(Order::Little, &[0, 0, 0, 4, 4, 0x6162_6364])),
        ]
        .concat(),
    ];
    let mut read_on = 0u32;
    for round in 0..100_000 {
        let mut file = files[round % 2].clone();
        for _ in 0..random.u32(1..6) {
            let at = random.usize(..file.len());
            let any = random.u8(..);
            file[at] = random.choice([0, 1, 0x7f, 0x80, 0xff, any]).unwrap_or(any);
        }
        if random.u8(..4) == 0 {
            file.truncate(random.usize(..file.len()));
        }
        let Ok(mut reader) = Reader::new(&file[..]) else { continue };
        while let Ok(Some(record)) = reader.next_record() {
            assert!(record.data.len() <= file.len());
            read_on += 1;
        }
        assert!(reader.input.buffer.capacity() <= 4096, "seed {seed:#x}, round {round}");
    }
    assert!(read_on > 10_000, "most mutations leave something to read: {read_on}");
}
