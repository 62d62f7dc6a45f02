//! What a page shows of a result file: facts, tables and curves. Fields that are not there are left out.

use crate::report::json::SCHEMA;
use crate::report::numbers::{Si, Time};
use serde_json::Value;

/// The form of the benches' files.
const BENCHES: &str = "spraywire-benches/1";

/// What a page shows of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// The file's name.
    pub name: String,
    /// Which command wrote it.
    pub command: String,
    /// The program's version.
    pub version: String,
    /// What was asked for, name and value.
    pub parameters: Vec<(String, String)>,
    /// What is to be seen at once: name and value.
    pub facts: Vec<(String, String)>,
    /// Tables.
    pub tables: Vec<Grid>,
    /// Curves of times, each picture's together.
    pub pictures: Vec<Picture>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// Its heading.
    pub title: String,
    /// Columns.
    pub columns: Vec<&'static str>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
}

/// Curves that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Its heading.
    pub title: String,
    /// What is drawn.
    pub curves: Vec<Curve>,
}

/// Times by share: a point says in which time that share of the messages was done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Whose.
    pub name: String,
    /// Share from 0 to 1, and nanoseconds; both rising.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// The time of a share, if the curve has it.
    pub fn at(&self, share: f64) -> Option<f64> {
        self.points.iter().find(|(q, _)| (q - share).abs() < 1e-9).map(|(_, ns)| *ns)
    }
}

/// What a file holds.
///
/// # Errors
/// Why it is none of ours, or nothing to draw.
pub fn source(name: &str, file: &Value) -> Result<Source, String> {
    let schema =
        file["schema"].as_str().ok_or("it does not say `schema`: it is no result file of Spraywire's")?;
    let mut source = Source {
        name: name.to_owned(),
        version: file["version"].as_str().unwrap_or("?").to_owned(),
        parameters: parameters(&file["parameters"]),
        ..Source::default()
    };
    match schema {
        SCHEMA => {
            let command = file["command"].as_str().ok_or("it does not say of which `command` it is")?;
            source.command = command.to_owned();
            let results = file["results"].as_array().ok_or("it has no `results`")?;
            match command {
                "bw" | "lat" if results.iter().any(|r| r["workload"].is_string()) => {
                    steps(&mut source, results)
                }
                "bw" | "lat" => tests(&mut source, results),
                "sim" => simulations(&mut source, file, results),
                other => {
                    return Err(format!("it is of `{other}`, which has no figures: bw, lat and sim have"));
                }
            }
            if file["interrupted"] == true {
                source.facts.push(("interrupted".to_owned(), "a signal ended it".to_owned()));
            }
        }
        BENCHES => {
            source.command = "benches".to_owned();
            let outcomes = file["outcomes"].as_array().ok_or("it has no `outcomes`")?;
            benches(&mut source, file, outcomes);
        }
        other => {
            return Err(format!(
                "its schema is `{other}`, and this program reads `{SCHEMA}` and `{BENCHES}`"
            ));
        }
    }
    Ok(source)
}

fn parameters(value: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        let name = name.replace('_', "-");
        match value {
            Value::Null => {}
            Value::Array(list) if list.is_empty() => {}
            // Flags that stand together in JSON are flags all the same; a file's keys are named after it.
            Value::Object(_) => {
                all.extend(parameters(value).into_iter().map(|(inner, value)| match name.as_str() {
                    "tags" => (inner, value),
                    _ => (format!("{name}.{inner}"), value),
                }))
            }
            _ => all.push((name, plain(value))),
        }
    }
    all
}

/// A value as one would write it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn count(value: &Value) -> String {
    value.as_u64().map_or("–".to_owned(), |n| n.to_string())
}

fn time(value: &Value) -> String {
    value.as_f64().filter(|ns| *ns >= 0.0).map_or("–".to_owned(), |ns| Time::nanos(ns as u64).to_string())
}

fn gigabits(value: &Value) -> String {
    value.as_f64().map_or("–".to_owned(), |bits| format!("{:.3}", bits / 1e9))
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or("–".to_owned(), |share| format!("{:.2} %", share * 100.0))
}

fn bytes(value: &Value) -> String {
    value.as_f64().map_or("–".to_owned(), |n| Si(n).to_string())
}

/// A curve, if there are two points of it that rise.
fn curve(name: impl Into<String>, points: &Value) -> Option<Curve> {
    let pair = |p: &Value| Some((p[0].as_f64()?, p[1].as_f64()?));
    let mut rising: Vec<(f64, f64)> = Vec::new();
    for (share, ns) in points.as_array()?.iter().filter_map(pair) {
        let fits = (0.0..=1.0).contains(&share) && ns >= 0.0 && ns.is_finite();
        if fits && rising.last().is_none_or(|last| last.0 < share && last.1 <= ns) {
            rising.push((share, ns));
        }
    }
    (rising.len() > 1).then(|| Curve { name: name.into(), points: rising })
}

const DIRECTIONS: [(&str, &str); 2] = [("client_to_server", "to server"), ("server_to_client", "to client")];

fn tests(source: &mut Source, results: &[Value]) {
    let mut goodput = Grid {
        title: "Throughput".to_owned(),
        columns: vec!["size", "direction", "sent", "received", "lost", "msg/s", "Gbit/s"],
        rows: Vec::new(),
    };
    let mut latency = Grid {
        title: "Latency: half of the round trip".to_owned(),
        columns: vec!["size", "round trips", "unanswered", "min", "p50", "p99", "p99.9", "max", "mean"],
        rows: Vec::new(),
    };
    let mut transport = Grid {
        title: "What the transport did".to_owned(),
        columns: vec![
            "size",
            "side",
            "segments",
            "sent again",
            "needlessly",
            "time-outs",
            "parity",
            "repaired",
            "control of all",
        ],
        rows: Vec::new(),
    };
    let mut classes = Vec::new();
    let mut halves = Picture { title: "Half of the round trip".to_owned(), curves: Vec::new() };
    for result in results {
        let size = count(&result["size"]);
        let lat = &result["latency"];
        if lat.is_object() {
            let half = &lat["half_rtt_ns"];
            let times = ["min", "p50", "p99", "p99_9", "max", "mean"].map(|name| time(&half[name]));
            let counts = [size.clone(), count(&lat["round_trips"]), count(&lat["unanswered"])];
            latency.rows.push(counts.into_iter().chain(times).collect());
            halves.curves.extend(curve(format!("{size} B"), &half["quantiles"]));
        } else {
            for (field, words) in DIRECTIONS.into_iter().filter(|(field, _)| result[field].is_object()) {
                let way = &result[field];
                let counts = ["sent", "received", "lost"].map(|name| count(&way[name]));
                let rates = [bytes(&way["messages_per_second"]), gigabits(&way["goodput_bits_per_second"])];
                let named = [size.clone(), words.to_owned()].into_iter();
                goodput.rows.push(named.chain(counts).chain(rates).collect());
            }
        }
        let reliable = &result["reliable"];
        if reliable.is_object() {
            for side in ["client", "server"] {
                let s = &reliable[side];
                let sent = ["segments", "retransmitted", "spurious", "timeouts"].map(|name| count(&s[name]));
                let fec = ["parity", "repaired"].map(|name| count(&s["fec"][name]));
                let named = [size.clone(), side.to_owned()].into_iter();
                let control = [percent(&reliable["control_share"])];
                transport.rows.push(named.chain(sent).chain(fec).chain(control).collect());
            }
            for (field, words) in DIRECTIONS {
                let (grid, picture) = of_classes(&size, words, &reliable["classes"][field]);
                classes.push(grid);
                source.pictures.extend((!picture.curves.is_empty()).then_some(picture));
            }
        }
    }
    let all = [goodput, latency].into_iter().chain(classes).chain([transport]);
    source.tables.extend(all.filter(|grid| !grid.rows.is_empty()));
    if !halves.curves.is_empty() {
        source.pictures.push(halves);
    }
}

/// The classes of a direction: a table, and a picture of their completion times.
fn of_classes(size: &str, words: &str, all: &Value) -> (Grid, Picture) {
    let mut grid = Grid {
        title: format!("Classes of {size} B {words}"),
        columns: vec![
            "class",
            "sent",
            "received",
            "Gbit/s",
            "p50",
            "p99",
            "p99.9",
            "protected",
            "repaired",
            "sent again",
            "residual",
            "parity",
            "parity bytes",
        ],
        rows: Vec::new(),
    };
    let mut picture = Picture { title: format!("Completion of {size} B {words}"), curves: Vec::new() };
    for class in all.as_array().into_iter().flatten() {
        let name = class["class"].as_str().unwrap_or("?");
        let times = &class["completion_ns"];
        let counts =
            ["protected", "repaired", "retransmitted", "residual", "parity"].map(|name| count(&class[name]));
        let mut row = vec![name.to_owned(), count(&class["sent"]), count(&class["received"])];
        row.push(gigabits(&class["goodput_bits_per_second"]));
        row.extend(["p50", "p99", "p99_9"].map(|name| time(&times[name])));
        row.extend(counts);
        row.push(bytes(&class["parity_bytes"]));
        grid.rows.push(row);
        picture.curves.extend(curve(name, &times["quantiles"]));
    }
    (grid, picture)
}

fn steps(source: &mut Source, results: &[Value]) {
    let mut grid = Grid {
        title: "Steps of collectives".to_owned(),
        columns: vec![
            "workload",
            "size",
            "ranks",
            "steps",
            "p50",
            "p99",
            "max",
            "algo Gbit/s",
            "bus Gbit/s",
            "sent again",
            "wrong",
        ],
        rows: Vec::new(),
    };
    for r in results {
        let mut row = vec![plain(&r["workload"])];
        row.extend(["size", "ranks", "steps"].map(|name| count(&r[name])));
        row.extend(["p50", "p99", "max"].map(|name| time(&r["step_ns"][name])));
        row.extend(["algorithm_bits_per_second", "bus_bits_per_second"].map(|name| gigabits(&r[name])));
        row.extend(["retransmitted", "wrong"].map(|name| count(&r[name])));
        grid.rows.push(row);
    }
    source.tables.push(grid);
}

fn simulations(source: &mut Source, file: &Value, results: &[Value]) {
    if file["ok"] == false {
        source.facts.push(("checks".to_owned(), "a check failed".to_owned()));
    }
    for result in results {
        let times = &result["completion_ns"];
        let Some(fields) = result.as_object() else { continue };
        // Of a study: each run's figures as they are.
        let rows = fields.iter().filter(|(_, value)| !value.is_object() && !value.is_null());
        let mut rows: Vec<Vec<String>> =
            rows.map(|(name, value)| vec![name.replace('_', " "), shown(name, value)]).collect();
        for name in ["min", "p50", "p99", "p99_9", "max"] {
            if times[name].is_number() {
                rows.push(vec![
                    format!("a send takes: {}", name.replace("p99_9", "p99.9")),
                    time(&times[name]),
                ]);
            }
        }
        let title = if results.len() == 1 { "Simulation".to_owned() } else { "A run".to_owned() };
        source.tables.push(Grid { title, columns: vec!["figure", ""], rows });
        let curves: Vec<Curve> = curve("sends", &times["quantiles"]).into_iter().collect();
        if !curves.is_empty() {
            source.pictures.push(Picture { title: "Completion of sends".to_owned(), curves });
        }
    }
}

/// A figure in the unit that its name says.
fn shown(name: &str, value: &Value) -> String {
    if name.ends_with("_ns") {
        time(value)
    } else if name.ends_with("_share") {
        percent(value)
    } else {
        plain(value)
    }
}

fn benches(source: &mut Source, file: &Value, outcomes: &[Value]) {
    for name in ["processor", "processors", "kernel", "dpdk"] {
        let value = &file["machine"][name];
        if !value.is_null() {
            source.facts.push((name.to_owned(), plain(value)));
        }
    }
    for outcome in outcomes {
        let number = |value: &Value| value.as_f64().map_or("–".to_owned(), |n| Si(n).to_string());
        let ratio = |value: &Value| value.as_f64().map_or("–".to_owned(), |n| format!("{n:.3}"));
        let mut picture = Picture { title: plain(&outcome["title"]), curves: Vec::new() };
        let mut rows = Vec::new();
        for entry in outcome["entries"].as_array().into_iter().flatten() {
            let name = plain(&entry["name"]);
            let runs = entry["runs"].as_array().map_or(0, Vec::len);
            rows.push(vec![
                name.clone(),
                runs.to_string(),
                number(&entry["median"]),
                number(&entry["best"]),
                ratio(&entry["comparison"]["ratio"]),
                ratio(&entry["wanted"]),
            ]);
            // One curve for a contestant: that of its last run.
            let details = entry["details"].as_array().into_iter().flatten();
            let last = details.filter_map(|d| curve(name.clone(), &d["quantiles"])).next_back();
            picture.curves.extend(last);
        }
        let unit = plain(&outcome["unit"]);
        source.tables.push(Grid {
            title: format!("{} ({unit})", picture.title),
            columns: vec!["contestant", "runs", "median", "best", "ratio", "wanted"],
            rows,
        });
        if !picture.curves.is_empty() {
            source.pictures.push(picture);
        }
    }
}
