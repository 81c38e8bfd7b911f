//! Line charts as SVG, with axes and units.

use std::fmt::Write;

use crate::Colour;

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Meaning.
    pub colour: Colour,
    /// Sorted by x.
    pub points: Vec<(f64, f64)>,
}

/// Lines over one pair of axes, both from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Title above the chart.
    pub title: String,
    /// Label of the x axis, with unit.
    pub x: String,
    /// Label of the y axis, with unit.
    pub y: String,
    /// At most 4: the legend has no room for more.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

impl Line {
    /// The dash pattern: solid for a phase, distinct for every other meaning, so that lines differ without colour.
    fn dashes(&self) -> &'static str {
        match self.colour {
            Colour::Prefill | Colour::Decode => "",
            Colour::Late => " stroke-dasharray=\"2 3\"",
            Colour::Cached | Colour::Ink => " stroke-dasharray=\"7 3\"",
            Colour::Limit => " stroke-dasharray=\"10 3 2 3\"",
        }
    }
}

impl Chart {
    /// The whole SVG document.
    pub fn svg(&self) -> String {
        self.svg_with(&[], &[])
    }

    /// The document with dots, in the colour of the line of the same index, and labels at points.
    pub fn svg_with(&self, dots: &[Dots], labels: &[Label]) -> String {
        document(1, |svg| self.draw(svg, 0.0, dots, labels, Scale::Linear))
    }

    /// The document with both axes logarithmic, between powers of ten. All numbers must be above 0.
    pub fn svg_logarithmic(&self, dots: &[Dots]) -> String {
        document(1, |svg| self.draw(svg, 0.0, dots, &[], Scale::Logarithmic))
    }

    /// Draws the chart at distance `down` from the top of the document. `dots[i]` are points in the colour of
    /// `lines[i]`: measurements, if the line was fitted to them.
    fn draw(&self, svg: &mut String, down: f64, dots: &[Dots], labels: &[Label], scale: Scale) {
        let points = || self.lines.iter().flat_map(|line| &line.points).chain(dots.iter().flatten());
        let x_axis = Axis::of(points().map(|point| point.0), scale);
        let y_axis = Axis::of(points().map(|point| point.1), scale);
        let x_at = |x: f64| LEFT + x_axis.share(x) * (WIDTH - LEFT - RIGHT);
        let y_at = |y: f64| HEIGHT - BOTTOM - y_axis.share(y) * (HEIGHT - TOP - BOTTOM);
        // Writing to a string does not fail.
        let _ = writeln!(svg, "<g transform=\"translate(0 {down})\">");
        let mut text = |x: f64, y: f64, anchor: &str, more: &str, text: &str| {
            let text = escaped(text);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{text}</text>");
        };
        text(LEFT, 18.0, "start", " font-weight=\"bold\"", &self.title);
        text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0, "middle", "", &self.x);
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        text(16.0, middle, "middle", &format!(" transform=\"rotate(-90 16 {middle:.1})\""), &self.y);
        x_axis.ticks.iter().for_each(|&x| text(x_at(x), HEIGHT - BOTTOM + 18.0, "middle", "", &number(x)));
        y_axis.ticks.iter().for_each(|&y| text(LEFT - 6.0, y_at(y) + 4.0, "end", "", &number(y)));
        for (index, line) in self.lines.iter().enumerate() {
            text(legend_at(index) + 26.0, TOP - 6.0, "start", "", &line.name);
        }
        labels.iter().for_each(|label| text(x_at(label.x) + 7.0, y_at(label.y) - 6.0, "start", "", &label.text));
        let mut path = |d: &str, colour: &str, width: f64, more: &str| {
            let stroke = format!("stroke=\"{colour}\" stroke-width=\"{width}\"{more}");
            let _ = writeln!(svg, "<path d=\"{d}\" fill=\"none\" {stroke}/>");
        };
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        y_axis.ticks.iter().for_each(|&y| path(&format!("M{LEFT} {:.1}H{right}", y_at(y)), "#dddddd", 1.0, ""));
        path(&format!("M{LEFT} {TOP}V{bottom}H{right}"), "#333333", 1.0, "");
        for (index, line) in self.lines.iter().enumerate() {
            let (x, y) = (legend_at(index), TOP - 10.0);
            path(&format!("M{x:.1} {y:.1}h20"), line.colour.hex(), 2.5, line.dashes());
            let mut d = String::new();
            for &(x, y) in &line.points {
                let _ = write!(d, "{}{:.1} {:.1}", if d.is_empty() { "M" } else { "L" }, x_at(x), y_at(y));
            }
            path(&d, line.colour.hex(), 1.5, line.dashes());
        }
        for (line, points) in self.lines.iter().zip(dots) {
            for &(x, y) in points {
                dot(svg, x_at(x), y_at(y), line.colour);
            }
        }
        svg.push_str("</g>\n");
    }
}

/// x position of a line's legend.
fn legend_at(index: usize) -> f64 {
    LEFT + 8.0 + 155.0 * index as f64
}

/// A square for prefill, a disc for everything else.
fn dot(svg: &mut String, x: f64, y: f64, colour: Colour) {
    let hex = colour.hex();
    // Writing to a string does not fail.
    let _ = match colour {
        Colour::Prefill => {
            let (left, top) = (x - 3.2, y - 3.2);
            writeln!(svg, "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"6.4\" height=\"6.4\" fill=\"{hex}\"/>")
        }
        _ => writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{hex}\"/>"),
    };
}

/// Single points, not joined by a line.
pub type Dots = Vec<(f64, f64)>;

/// A label above and to the right of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// x of the point.
    pub x: f64,
    /// y of the point.
    pub y: f64,
    /// Text of the label.
    pub text: String,
}

/// Charts below each other, as one SVG document, each with dots as in [`Chart::svg_with`].
pub fn stacked(charts: &[(&Chart, &[Dots])]) -> String {
    document(charts.len(), |svg| {
        for (index, (chart, dots)) in charts.iter().enumerate() {
            chart.draw(svg, HEIGHT * index as f64, dots, &[], Scale::Linear);
        }
    })
}

/// The attribute that marks documents of this program.
const MARK: &str = "data-program=\"twostroke\"";

/// Whether a file that begins with `head` is a document of this program, which may be replaced.
pub fn is_ours(head: &[u8]) -> bool {
    head.strip_prefix(b"<svg ").is_some_and(|rest| rest.starts_with(MARK.as_bytes()))
}

/// An SVG document of the height of `charts` charts.
fn document(charts: usize, draw: impl FnOnce(&mut String)) -> String {
    let height = HEIGHT * charts as f64;
    let mut svg = format!(
        "<svg {MARK} xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    draw(&mut svg);
    svg.push_str("</svg>\n");
    svg
}

/// The scale of both axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// From 0.
    Linear,
    Logarithmic,
}

/// An axis from its first to its last tick.
struct Axis {
    ticks: Vec<f64>,
    scale: Scale,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone, scale: Scale) -> Axis {
        let most = values.clone().fold(0.0, f64::max);
        let ticks = match scale {
            Scale::Linear => ticks(most).0,
            Scale::Logarithmic => {
                let least = values.filter(|&value| value > 0.0).fold(most.max(1.0), f64::min);
                let (low, high) = (least.log10().floor() as i32, most.max(least).log10().ceil() as i32);
                (low..=high.max(low + 1)).map(|power| 10_f64.powi(power)).collect()
            }
        };
        Axis { ticks, scale }
    }

    /// Position on the axis, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let (first, last) = (self.ticks[0], self.ticks[self.ticks.len() - 1]);
        match self.scale {
            Scale::Linear => (value - first) / (last - first),
            Scale::Logarithmic => (value.max(first) / first).log10() / (last / first).log10(),
        }
    }
}

/// Round numbers from 0 up to at least `max`, and the last one.
fn ticks(max: f64) -> (Vec<f64>, f64) {
    let max = if max > 0.0 { max } else { 1.0 };
    let rough = max / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|&step| step >= rough * 0.999);
    let step = step.unwrap_or(rough);
    let count = (max / step - 1e-9).ceil() as usize;
    ((0..=count).map(|index| index as f64 * step).collect(), count as f64 * step)
}

fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        for (max, step, last) in [(1.0, 0.2, 1.0), (9.7, 2.0, 10.0), (0.031, 0.01, 0.04), (1234.0, 500.0, 1500.0)] {
            let (ticks, end) = ticks(max);
            assert!((ticks[1] - step).abs() < step * 1e-9 && (end - last).abs() < last * 1e-9, "{max}: {ticks:?}");
        }
        assert_eq!(ticks(0.0).1, 1.0);
    }

    #[test]
    fn a_logarithmic_axis_has_powers_of_ten() {
        let axis = Axis::of([2.0, 30.0, 700.0].into_iter(), Scale::Logarithmic);
        assert_eq!(axis.ticks, [1.0, 10.0, 100.0, 1000.0]);
        assert!((axis.share(10.0) - 1.0 / 3.0).abs() < 1e-12 && axis.share(1000.0) == 1.0);
    }

    #[test]
    fn a_chart_names_its_axes_and_escapes_its_words() {
        let lines =
            vec![Line { name: "a < b".to_string(), colour: Colour::Ink, points: vec![(0.0, 0.0), (2.0, 10.0)] }];
        let svg = Chart { title: "T".to_string(), x: "time, s".to_string(), y: "rows".to_string(), lines }.svg();
        assert!(svg.contains("time, s") && svg.contains("rows") && svg.contains("a &lt; b"), "{svg}");
        assert!(svg.contains("M70.0 270.0L700.0 40.0"), "from corner to corner: {svg}");
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }

    #[test]
    fn words_stand_beside_their_points() {
        let lines = vec![Line { name: "a".to_string(), colour: Colour::Decode, points: vec![(0.0, 0.0), (2.0, 10.0)] }];
        let chart = Chart { title: "T".to_string(), x: "x".to_string(), y: "y".to_string(), lines };
        let label = Label { x: 2.0, y: 10.0, text: "8 & more".to_string() };
        let svg = chart.svg_with(&[vec![(2.0, 10.0)]], &[label]);
        assert!(svg.contains("<circle cx=\"700.0\" cy=\"40.0\"") && svg.contains("8 &amp; more"), "{svg}");
    }

    #[test]
    fn a_phase_is_told_by_more_than_its_colour() {
        let line = |name: &str, colour| Line { name: name.to_string(), colour, points: vec![(0.0, 0.0), (1.0, 1.0)] };
        let lines = vec![line("p", Colour::Prefill), line("d", Colour::Decode), line("l", Colour::Limit)];
        let chart = Chart { title: "T".to_string(), x: "x".to_string(), y: "y".to_string(), lines };
        let svg = chart.svg_with(&[vec![(1.0, 1.0)], vec![(0.5, 0.5)]], &[]);
        let of = |parts: [&str; 2]| svg.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count();
        assert_eq!((of(["<rect", Colour::Prefill.hex()]), of(["<circle", Colour::Decode.hex()])), (1, 1), "{svg}");
        assert_eq!(of(["stroke-dasharray", Colour::Limit.hex()]), 2, "the line and its legend: {svg}");
        assert_eq!(of(["stroke-dasharray", Colour::Prefill.hex()]), 0, "{svg}");
    }
}
