//! Pages of made-up result files.

use super::read::{self, Source};
use super::{html, source};
use crate::error::Exit;
use serde_json::{Value, json};

fn class(name: &str, p99: u64) -> Value {
    json!({
        "class": name, "sent": 70, "received": 69, "goodput_bits_per_second": 1.5e9, "protected": 1190, "repaired": 17,
        "retransmitted": 3, "residual": 2, "parity": 140, "parity_bytes": 560_000,
        "completion_ns": {
            "p50": 26_000_000, "p99": p99, "p99_9": p99,
            "quantiles": [[0.0, 25_000_000], [0.5, 26_000_000], [0.99, p99], [1.0, p99]],
        },
    })
}

fn bw() -> Value {
    json!({
        "schema": "spraywire/1", "command": "bw", "version": "0.1.0", "interrupted": false,
        "parameters": {"mix": "dp:7,pp:3", "host": "10.0.0.1", "all": false, "config": null, "tags": {"fec": "tags", "policy": {"dp": {"data": 32}}}},
        "results": [{
            "size": 262_144,
            "client_to_server": {"sent": 100, "received": 99, "lost": 1, "messages_per_second": 1234.0, "goodput_bits_per_second": 2.5e9},
            "reliable": {
                "client": {"segments": 6600, "retransmitted": 3, "spurious": 0, "timeouts": 0, "fec": {"parity": 140, "repaired": 0}},
                "server": {"segments": 4, "retransmitted": 0, "spurious": 0, "timeouts": 0, "fec": {"parity": 0, "repaired": 17}},
                "control_share": 0.031,
                "classes": {"client_to_server": [class("dp", 30_000_000), class("pp", 55_000_000)]},
            },
        }],
    })
}

fn read(file: &Value) -> Source {
    read::source("a.json", file).unwrap()
}

#[test]
fn a_page_has_the_figures_of_each_class_and_their_curves() {
    let source = read(&bw());
    assert_eq!(source.pictures[0].curves.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["dp", "pp"]);
    assert_eq!(source.pictures[0].curves[1].at(0.99), Some(55e6));
    let titles: Vec<_> = source.tables.iter().map(|t| t.title.as_str()).collect();
    assert_eq!(titles, ["Throughput", "Classes of 262144 B to server", "What the transport did"]);
    assert_eq!(source.tables[0].rows[0], ["262144", "to server", "100", "99", "1", "1.23 k", "2.500"]);
    let dp =
        ["dp", "70", "69", "1.500", "26.0 ms", "30.0 ms", "30.0 ms", "1190", "17", "3", "2", "140", "560 k"];
    assert_eq!(source.tables[1].rows[0], dp);
    assert_eq!(source.tables[2].rows[1], ["262144", "server", "4", "0", "0", "0", "0", "17", "3.10 %"]);
    for grid in &source.tables {
        assert!(grid.rows.iter().all(|row| row.len() == grid.columns.len()), "{}", grid.title);
    }
    let page = html::page("Across", &[source]);
    for words in [
        "<title>Across</title>",
        "dp: 99 % within 30.0 ms",
        "<td>560 k</td>",
        "<dt>mix</dt><dd>dp:7,pp:3</dd>",
        "<dt>fec</dt><dd>tags</dd>",
        "<dt>policy.dp.data</dt><dd>32</dd>",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("<dt>config</dt>"), "what was not asked for is not shown");
}

/// A browser that reads it asks nobody for anything, and runs nothing.
#[test]
fn a_page_needs_nothing_else() {
    let page = html::page("x", &[read(&bw()), read(&bw())]);
    for word in
        ["<script", "http:", "https:", "src=", "href=", "url(", "@import", "<link", "<iframe", "onload"]
    {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("Side by side"));
    // Every element that is opened is closed.
    for element in
        ["section", "table", "tr", "td", "svg", "dl", "details", "main", "h3", "div", "span", "polyline"]
    {
        let opened =
            page.matches(&format!("<{element} ")).count() + page.matches(&format!("<{element}>")).count();
        let closed = page.matches(&format!("</{element}>")).count();
        let itself = if element == "polyline" { opened } else { closed };
        assert!(opened == itself && opened > 0, "{element}: {opened} opened, {closed} closed");
    }
}

#[test]
fn what_a_file_says_is_text_and_never_an_element() {
    let evil = "\"><script>alert('x')</script>&\u{1}";
    let mut file = bw();
    file["version"] = evil.into();
    file["parameters"]["host"] = evil.into();
    file["parameters"][evil] = 1.into();
    file["results"][0]["reliable"]["classes"]["client_to_server"][0]["class"] = evil.into();
    let page = html::page(evil, &[read::source(evil, &file).unwrap(), read(&file)]);
    assert!(!page.contains("<script") && !page.contains("alert('") && !page.contains('\u{1}'));
    assert!(page.matches("&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)").count() > 10);
}

#[test]
fn latencies_simulations_steps_and_benches_have_their_pages() {
    let lat = json!({
        "schema": "spraywire/1", "command": "lat", "parameters": {}, "results": [{
            "size": 64, "latency": {"round_trips": 9, "unanswered": 0, "half_rtt_ns": {
                "min": 800.0, "p50": 1000.0, "quantiles": [[0.0, 800.0], [0.5, 1000.0]]}},
        }],
    });
    let source = read(&lat);
    assert_eq!(source.tables[0].rows[0][..5], ["64", "9", "0", "800 ns", "1.00 µs"]);
    assert_eq!((source.tables.len(), source.pictures[0].curves[0].name.as_str()), (1, "64 B"));
    let sim = json!({
        "schema": "spraywire/1", "command": "sim", "parameters": {}, "ok": false, "results": [{
            "virtual_time_ns": 2_000_000, "control_share": 0.05, "repaired": 3, "violation": null,
            "completion_ns": {"p99": 7000, "quantiles": [[0.5, 5000], [1.0, 7000]]},
        }],
    });
    let source = read(&sim);
    let rows = &source.tables[0].rows;
    for (name, value) in [
        ("virtual time ns", "2.00 ms"),
        ("control share", "5.00 %"),
        ("repaired", "3"),
        ("a send takes: p99", "7.00 µs"),
    ] {
        assert!(rows.iter().any(|row| row[0] == name && row[1] == value), "{name}: {rows:?}");
    }
    assert_eq!((source.facts[0].1.as_str(), source.pictures.len()), ("a check failed", 1));
    let steps = json!({
        "schema": "spraywire/1", "command": "bw", "parameters": {}, "results": [{
            "workload": "all-reduce", "ranks": 4, "size": 9, "steps": 2, "wrong": 0, "step_ns": {"p50": 10, "p99": 20, "max": 30},
        }],
    });
    assert_eq!(read(&steps).tables[0].rows[0][..6], ["all-reduce", "9", "4", "2", "10 ns", "20 ns"]);
    let benches = json!({
        "schema": "spraywire-benches/1", "version": "0.1.0", "machine": {"processors": 2}, "parameters": {"runs": 3}, "outcomes": [{
            "title": "fec", "unit": "ms", "entries": [
                {"name": "bound", "runs": [1.0, 2.0], "median": 1.5, "best": 1.0, "comparison": null, "wanted": null, "details": [null]},
                {"name": "ours", "runs": [3.0], "median": 3.0, "best": 3.0, "comparison": {"ratio": 1.25}, "wanted": 1.15,
                 "details": [{"quantiles": [[0.5, 1], [0.99, 2]]}]},
            ],
        }],
    });
    let source = read(&benches);
    assert_eq!(source.tables[0].rows[1], ["ours", "1", "3", "3", "1.250", "1.150"]);
    assert_eq!(source.pictures[0].curves[0].points, [(0.5, 1.0), (0.99, 2.0)]);
    assert_eq!(source.facts, [("processors".to_owned(), "2".to_owned())]);
}

#[test]
fn points_that_make_no_curve_are_left_out() {
    let mut file = bw();
    let class = &mut file["results"][0]["reliable"]["classes"]["client_to_server"][0];
    class["completion_ns"]["quantiles"] =
        json!([[0.5, 10], [0.4, 20], ["x", 3], [0.9, 5], [0.95, -1], [0.99, 30], [7, 40], 8]);
    assert_eq!(read(&file).pictures[0].curves[0].points, [(0.5, 10.0), (0.99, 30.0)]);
    file["results"][0]["reliable"]["classes"]["client_to_server"][0]["completion_ns"]["quantiles"] =
        json!([[0.5, 10]]);
    assert_eq!(read(&file).pictures[0].curves.len(), 1);
}

#[test]
fn files_that_are_none_of_ours_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, words) in [
        ("no.json", "{", "it is no JSON"),
        ("list.json", "[1,2]", "does not say `schema`"),
        ("other.json", r#"{"schema":"else/3"}"#, "its schema is `else/3`"),
        (
            "newer.json",
            r#"{"schema":"spraywire/2","command":"bw","results":[]}"#,
            "this program reads `spraywire/1`",
        ),
        (
            "inspect.json",
            r#"{"schema":"spraywire/1","command":"inspect","results":[]}"#,
            "of `inspect`, which has no figures",
        ),
        ("bare.json", r#"{"schema":"spraywire/1","command":"bw"}"#, "it has no `results`"),
        ("bench.json", r#"{"schema":"spraywire-benches/1"}"#, "it has no `outcomes`"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let error = source(&path).unwrap_err();
        assert!(error.message().contains(words) && error.message().contains(name), "{name}: {error}");
        assert_eq!((error.exit, error.what_to_do().is_some()), (Exit::Usage, true));
    }
    let path = folder.path().join("bytes.json");
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(source(&path).unwrap_err().message().contains("it is no text"));
    assert!(source(&folder.path().join("none.json")).unwrap_err().message().contains("cannot read"));
    // Ours without results is ours.
    let empty = read(&json!({"schema": "spraywire/1", "command": "bw", "parameters": {}, "results": []}));
    assert!(html::page("x", &[empty]).contains("It holds no results."));
}
