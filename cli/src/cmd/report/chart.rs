//! Curves of times by percentile as SVG.

use super::html::escape;
use super::read::Curve;
use crate::report::numbers::Time;
use std::fmt::Write;

/// Size of a picture, and the room for its labels.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// Percentiles that have a line: the same distance for each nine more, as the slow ones are what one looks for.
const MARKS: [(f64, &str); 7] =
    [(0.0, "0"), (0.5, "50"), (0.75, "75"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99 %")];
/// Where the last point, the longest time, is drawn.
const END: f64 = 0.99999;
/// Times farther apart than this have a logarithmic axis.
const FAR_APART: f64 = 30.0;
/// Colours of the style sheet.
const COLOURS: usize = 8;

/// The colour of a curve.
pub fn colour(i: usize) -> String {
    format!("var(--s{})", i % COLOURS)
}

/// From a share to its place on the axis, 0 to 1.
fn across(share: f64) -> f64 {
    let nines = |share: f64| -(1.0 - share.clamp(0.0, END)).log10();
    nines(share) / nines(END)
}

/// The axis of times.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Up {
    least: f64,
    most: f64,
    log: bool,
}

impl Up {
    fn of(curves: &[Curve]) -> Up {
        let times = || curves.iter().flat_map(|c| c.points.iter().map(|(_, ns)| *ns));
        let least = times().fold(f64::INFINITY, f64::min).clamp(1.0, 1e18);
        let most = times().fold(0.0, f64::max).clamp(least, 1e18);
        let log = most / least > FAR_APART;
        if log {
            Up {
                least: 10f64.powf(least.log10().floor()),
                most: 10f64.powf((most * 1.02).log10().ceil()),
                log,
            }
        } else {
            // From nothing on, so that heights compare as times do.
            Up { least: 0.0, most: most * 1.08, log }
        }
    }

    /// Where a time is, from 0 to 1.
    fn at(&self, ns: f64) -> f64 {
        let share = if self.log {
            (ns.max(self.least) / self.least).log10() / (self.most / self.least).log10()
        } else {
            ns / self.most
        };
        share.clamp(0.0, 1.0)
    }

    /// Times that have a line.
    fn marks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.most / self.least).log10().round() as i32;
            return (0..=decades).map(|n| self.least * 10f64.powi(n)).collect();
        }
        let rough = self.most / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        (0..=10).map(|n| f64::from(n) * step).take_while(|ns| *ns <= self.most).collect()
    }
}

fn x(share: f64) -> f64 {
    LEFT + across(share) * (WIDTH - LEFT - RIGHT)
}

fn y(up: &Up, ns: f64) -> f64 {
    HEIGHT - BOTTOM - up.at(ns) * (HEIGHT - TOP - BOTTOM)
}

/// The picture.
pub fn svg(title: &str, curves: &[Curve]) -> String {
    let up = Up::of(curves);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}: time by percentile\">\n",
        escape(title)
    );
    let mut put = |text: String| {
        // A String takes everything.
        let _ = writeln!(svg, "{text}");
    };
    let floor = HEIGHT - BOTTOM;
    for ns in up.marks() {
        let at = y(&up, ns);
        let label = if ns == 0.0 { "0".to_owned() } else { Time::nanos(ns as u64).to_string() };
        put(format!(
            "<line class=\"rule\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            WIDTH - RIGHT
        ));
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            at + 4.0
        ));
    }
    for (share, label) in MARKS {
        let at = x(share);
        put(format!("<line class=\"rule\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{floor}\"/>"));
        put(format!("<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>", floor + 18.0));
    }
    put(format!(
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{floor}\" y2=\"{floor}\"/>",
        WIDTH - RIGHT
    ));
    put(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">percentile of messages</text>",
        WIDTH - RIGHT,
        HEIGHT - 4.0
    ));
    for (i, curve) in curves.iter().enumerate() {
        let colour = colour(i);
        let places = curve.points.iter().map(|(share, ns)| format!("{:.1},{:.1}", x(*share), y(&up, *ns)));
        let places = places.collect::<Vec<_>>().join(" ");
        put(format!("<polyline class=\"curve\" stroke=\"{colour}\" points=\"{places}\"/>"));
        for (share, ns) in &curve.points {
            let percentile = format!("{:.4}", share * 100.0);
            let percentile = percentile.trim_end_matches('0').trim_end_matches('.');
            let [cx, cy] = [x(*share), y(&up, *ns)];
            // What a pointer that rests there is told.
            put(format!(
                "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {percentile} % within {}</title></circle>",
                escape(&curve.name),
                Time::nanos(*ns as u64)
            ));
        }
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Curve {
        Curve { name: "c".into(), points: points.into() }
    }

    #[test]
    fn each_nine_takes_the_same_room() {
        let gaps: Vec<f64> =
            [0.0, 0.9, 0.99, 0.999, 0.9999].windows(2).map(|w| across(w[1]) - across(w[0])).collect();
        assert!(gaps.iter().all(|gap| (gap - 0.2).abs() < 1e-9), "{gaps:?}");
        assert_eq!((across(0.0), across(1.0), across(2.0)), (0.0, 1.0, 1.0));
    }

    #[test]
    fn near_times_are_linear_from_nothing_and_far_ones_logarithmic() {
        let near = Up::of(&[curve(&[(0.0, 10e6), (1.0, 40e6)])]);
        assert!(!near.log && near.least == 0.0 && (near.at(21.6e6) - 0.5).abs() < 1e-9, "{near:?}");
        assert_eq!(near.marks(), [0.0, 10e6, 20e6, 30e6, 40e6]);
        let far = Up::of(&[curve(&[(0.0, 2e3), (1.0, 9e6)])]);
        assert_eq!((far.log, far.marks()), (true, vec![1e3, 1e4, 1e5, 1e6, 1e7]));
        assert!((far.at(1e5) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_curve_is_where_its_times_are() {
        let drawn = svg("t<", &[curve(&[(0.0, 10e6), (0.9, 20e6)])]);
        // A fifth of the way across; 20 of 21.6 ms up.
        assert!(drawn.contains("points=\"70.0,156.9 223.2,33.7\""), "{drawn}");
        assert!(drawn.contains("c: 90 % within 20.0 ms") && drawn.contains("aria-label=\"t&lt;:"), "{drawn}");
    }
}
