//! Tables of text: columns as wide as they need to be, numbers to the right.

use std::fmt;

/// On which side of its column a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table with a line of headings.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of these columns.
    pub fn new<'a>(columns: impl IntoIterator<Item = (&'a str, Align)>) -> Table {
        Table {
            columns: columns.into_iter().map(|(name, a)| (name.to_owned(), a)).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty, surplus ones are not shown.
    pub fn row<T: fmt::Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|c| c.to_string()).collect());
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The table without a line end after its last row.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let lines = || std::iter::once(&headings).chain(&self.rows);
        let cell = |row: &Vec<String>, i: usize| row.get(i).cloned().unwrap_or_default();
        let width = |i| lines().map(|row| cell(row, i).chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for (n, row) in lines().enumerate() {
            let mut line = String::new();
            for (i, (_, align)) in self.columns.iter().enumerate() {
                let gap = if i == 0 { "" } else { "  " };
                let (text, width) = (cell(row, i), widths[i]);
                match align {
                    Align::Left => line.push_str(&format!("{gap}{text:<width$}")),
                    Align::Right => line.push_str(&format!("{gap}{text:>width$}")),
                }
            }
            if n > 0 {
                writeln!(f)?;
            }
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut t = Table::new([("name", Align::Left), ("n", Align::Right)]);
        t.row(["a", "1"]);
        t.row(["µµµµµµ", "1000"]);
        t.row(["b"]);
        assert_eq!(t.to_string(), "name       n\na          1\nµµµµµµ  1000\nb");
    }
}
