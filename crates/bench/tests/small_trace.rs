//! `traces/small.txt` has the shape of a production trace (half puts, 45 % deletes, most objects near
//! the largest size, a few names met twice) at a tenth of its sizes. It is generated: this test
//! writes it anew and compares.

use std::fmt::Write;

const REQUESTS: u64 = 200;
const SIZE_MIN: u64 = 416;
const SIZE_MAX: u64 = 48_832;

/// Draws the trace: the same one each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// More than half of all sizes are close to the largest; the others spread below it.
    fn size(&mut self) -> u64 {
        match self.below(100) {
            0..55 => SIZE_MAX - 32 * self.below(28),
            55..60 => SIZE_MIN,
            _ => SIZE_MIN + 32 * self.below((SIZE_MAX - SIZE_MIN) / 32),
        }
    }

    fn name(&mut self) -> String {
        let [left, right] = [(); 2].map(|()| (self.below(1 << 31) << 31) | self.below(1 << 31));
        format!("{left:016x}{right:016x}.amr")
    }
}

fn small_trace() -> String {
    let mut draw = Draw(2);
    let mut text = String::from("# milliseconds operation name bytes\n");
    let mut milliseconds = 1_600_000_000_000;
    let mut earlier: Vec<(String, u64)> = Vec::new();
    for request in 0..REQUESTS {
        milliseconds += draw.below(3);
        let operation = match draw.below(100) {
            0..50 => "PUT",
            50..95 => "DELETE",
            _ => "GET",
        };
        let (name, size) = match request % 9 == 8 {
            true => earlier[draw.below(earlier.len() as u64) as usize].clone(),
            false => (draw.name(), draw.size()),
        };
        let _ = writeln!(text, "{milliseconds} {operation} {name} {size}");
        earlier.push((name, size));
    }
    text
}

#[test]
fn small_trace_is_what_its_generator_writes() {
    assert_eq!(include_str!("../traces/small.txt"), small_trace());
}

#[test]
fn small_trace_has_the_shape_of_a_production_trace() {
    let trace = small_trace();
    let lines: Vec<Vec<&str>> =
        trace.lines().skip(1).map(|line| line.split(' ').collect()).collect();
    let share = |operation| lines.iter().filter(|line| line[1] == operation).count();
    assert_eq!(lines.len(), 200);
    assert!((90..=110).contains(&share("PUT")), "{}", share("PUT"));
    assert!((80..=100).contains(&share("DELETE")), "{}", share("DELETE"));
    assert!(share("GET") >= 5, "{}", share("GET"));
    let mut sizes: Vec<u64> = lines.iter().map(|line| line[3].parse().unwrap()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes[0], SIZE_MIN);
    assert!((47_000..=49_000).contains(&sizes[100]), "{}", sizes[100]);
}
