//! Bytes for people.

use std::fmt;

/// Sixteen bytes a line: offset, hex, and what is printable ASCII. Every line is indented by two spaces; the last has no
/// line end.
#[derive(Clone, Copy, Debug)]
pub struct Hexdump<'a>(pub &'a [u8]);

impl fmt::Display for Hexdump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, line) in self.0.chunks(16).enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            write!(f, "  {:04x} ", n * 16)?;
            for i in 0..16 {
                let gap = if i == 8 { " " } else { "" };
                match line.get(i) {
                    Some(b) => write!(f, "{gap} {b:02x}")?,
                    None => write!(f, "{gap}   ")?,
                }
            }
            f.write_str("  ")?;
            for &b in line {
                let c = if b.is_ascii_graphic() || b == b' ' { b as char } else { '.' };
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_sixteen() {
        assert_eq!(Hexdump(b"").to_string(), "");
        let text = Hexdump(b"0123456789abcdef\x00z").to_string();
        let want = "  0000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  0123456789abcdef\n  \
                    0010  00 7a                                             .z";
        assert_eq!(text, want);
    }
}
