//! Numbers as tables show them.

/// Three digits, or as many as stand before the point, in groups.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => grouped(value.round() as i64),
    }
}

fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = if value < 0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_groups() {
        for (value, text) in [
            (0.104, "0.10"),
            (9.99, "9.99"),
            (9.996, "10.0"),
            (42.25, "42.2"),
            (99.96, "100"),
            (1234.4, "1,234"),
            (-1_234_567.0, "-1,234,567"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
