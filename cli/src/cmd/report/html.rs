//! The page: one file of HTML and CSS, which loads nothing and runs nothing.

use super::chart;
use super::read::{Curve, Grid, Picture, Source};
use crate::report::numbers::Time;
use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fbfbfa;--card:#fff;--ink:#1b1d21;--soft:#5d6470;--line:#e3e4e8;--grid:#ecedf0;\
--s0:#2a6fdb;--s1:#d4572a;--s2:#12876f;--s3:#8a4fd0;--s4:#b58300;--s5:#c43a76;--s6:#4f7d1f;--s7:#5b6b7c}\
@media(prefers-color-scheme:dark){:root{--page:#14161a;--card:#1c1f25;--ink:#e8e9ec;--soft:#9aa1ad;--line:#2f333b;--grid:#282c33;\
--s0:#6ea8ff;--s1:#ff9266;--s2:#46c9ab;--s3:#bb91f5;--s4:#e0b13f;--s5:#f07fb0;--s6:#94c95a;--s7:#a3b2c2}}\
*{box-sizing:border-box}\
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums}\
main{max-width:70rem;margin:0 auto;padding:2rem 1.25rem 4rem}\
h1{font-size:1.6rem;letter-spacing:-.01em;margin:0 0 .25rem}\
h2{font-size:1.2rem;margin:0}h3{font-size:.95rem;font-weight:600;margin:1.5rem 0 .5rem}\
p{margin:.25rem 0;color:var(--soft)}\
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1.25rem 1.4rem;margin:1.5rem 0}\
.head{display:flex;flex-wrap:wrap;gap:.6rem;align-items:baseline}\
.chip{font-size:.8rem;color:var(--soft);border:1px solid var(--line);border-radius:99px;padding:.05rem .6rem}\
.wide{overflow-x:auto}\
table{border-collapse:collapse;font-size:.88rem;min-width:min(100%,24rem)}\
th{font-weight:500;color:var(--soft);text-align:right;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);white-space:nowrap}\
td{text-align:right;padding:.28rem .8rem .28rem 0;border-bottom:1px solid var(--grid);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}tr:last-child td{border-bottom:0}\
details{margin-top:1.2rem}summary{cursor:pointer;color:var(--soft);font-size:.88rem}\
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.15rem 1.5rem;margin:.6rem 0 0;font-size:.85rem}\
dl div{display:flex;justify-content:space-between;gap:1rem;border-bottom:1px solid var(--grid)}\
dt{color:var(--soft)}dd{margin:0;text-align:right;overflow-wrap:anywhere}\
svg{display:block;width:100%;height:auto;max-width:56rem}\
svg text{fill:var(--soft);font:12px system-ui,sans-serif}svg .rule{stroke:var(--grid)}svg .axis{stroke:var(--line)}\
svg .curve{fill:none;stroke-width:2;stroke-linejoin:round}\
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;font-size:.85rem;margin:.2rem 0 .4rem}\
.legend i{display:inline-block;width:.9rem;height:.2rem;border-radius:2px;vertical-align:middle;margin-right:.4rem}\
@media print{section{break-inside:avoid}}";

/// Text with nothing in it that HTML would read: no element, attribute or entity begins or ends there.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // What HTML does not allow at all.
            c if c.is_control() && !matches!(c, '\n' | '\t') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// The page of some files.
pub fn page(title: &str, sources: &[Source]) -> String {
    let title = escape(title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    let files: Vec<String> = sources.iter().map(|s| escape(&s.name)).collect();
    line(&mut page, &format!("<p>{}</p>", files.join(" · ")));
    overview(&mut page, sources);
    sources.iter().for_each(|source| section(&mut page, source));
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn line(page: &mut String, text: &str) {
    // A String takes everything.
    let _ = writeln!(page, "{text}");
}

/// All files' curves in one picture, and their quantiles beside each other: what a comparison is made for.
fn overview(page: &mut String, sources: &[Source]) {
    if sources.len() < 2 {
        return;
    }
    let named = |source: &Source, curve: &Curve| Curve {
        name: format!("{}: {}", source.name.trim_end_matches(".json"), curve.name),
        points: curve.points.clone(),
    };
    let curves: Vec<Curve> = sources
        .iter()
        .flat_map(|s| s.pictures.iter().flat_map(|p| &p.curves).map(|curve| named(s, curve)))
        .collect();
    if curves.is_empty() {
        return;
    }
    let row = |curve: &Curve| {
        let at = |share| curve.at(share).map_or("–".to_owned(), |ns| Time::nanos(ns as u64).to_string());
        let times = [0.0, 0.5, 0.9, 0.99, 0.999, 1.0].map(at);
        std::iter::once(curve.name.clone()).chain(times).collect()
    };
    let grid = Grid {
        title: "Quantiles".to_owned(),
        columns: vec!["", "min", "p50", "p90", "p99", "p99.9", "max"],
        rows: curves.iter().map(row).collect(),
    };
    page.push_str("<section>\n<div class=\"head\"><h2>Side by side</h2></div>\n");
    picture(page, &Picture { title: "Time by percentile".to_owned(), curves });
    table(page, &grid);
    page.push_str("</section>\n");
}

fn section(page: &mut String, source: &Source) {
    let [name, command, version] = [&source.name, &source.command, &source.version].map(|text| escape(text));
    page.push_str("<section>\n");
    let mut chips =
        format!("<span class=\"chip\">{command}</span><span class=\"chip\">version {version}</span>");
    for (what, value) in &source.facts {
        chips.push_str(&format!("<span class=\"chip\">{}: {}</span>", escape(what), escape(value)));
    }
    line(page, &format!("<div class=\"head\"><h2>{name}</h2>{chips}</div>"));
    source.pictures.iter().for_each(|p| picture(page, p));
    source.tables.iter().for_each(|grid| table(page, grid));
    if source.tables.iter().all(|grid| grid.rows.is_empty()) {
        line(page, "<p>It holds no results.</p>");
    }
    if !source.parameters.is_empty() {
        page.push_str("<details><summary>Parameters</summary><dl>\n");
        for (what, value) in &source.parameters {
            line(page, &format!("<div><dt>{}</dt><dd>{}</dd></div>", escape(what), escape(value)));
        }
        page.push_str("</dl></details>\n");
    }
    page.push_str("</section>\n");
}

fn table(page: &mut String, grid: &Grid) {
    if grid.rows.is_empty() {
        return;
    }
    line(page, &format!("<h3>{}</h3>", escape(&grid.title)));
    page.push_str("<div class=\"wide\"><table>\n<tr>");
    grid.columns.iter().for_each(|name| page.push_str(&format!("<th>{}</th>", escape(name))));
    page.push_str("</tr>\n");
    for row in &grid.rows {
        page.push_str("<tr>");
        row.iter().for_each(|cell| page.push_str(&format!("<td>{}</td>", escape(cell))));
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

fn picture(page: &mut String, picture: &Picture) {
    line(page, &format!("<h3>{}</h3>", escape(&picture.title)));
    page.push_str("<div class=\"legend\">");
    for (i, curve) in picture.curves.iter().enumerate() {
        let colour = chart::colour(i);
        page.push_str(&format!("<span><i style=\"background:{colour}\"></i>{}</span>", escape(&curve.name)));
    }
    page.push_str("</div>\n");
    line(page, &chart::svg(&picture.title, &picture.curves));
}
