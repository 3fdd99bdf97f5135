//! Tables for a terminal and a report.

use std::fmt::Write as _;

use crate::escape::escaped;

/// A table of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Subject of the table.
    pub caption: String,
    /// Names of the columns, with units.
    pub columns: Vec<String>,
    /// `[rows][columns]`.
    pub rows: Vec<Vec<String>>,
    /// Notes below the table that explain its marks.
    pub notes: Vec<String>,
}

impl Table {
    pub(crate) fn new(caption: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            caption: caption.into(),
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Makes a table with one row for each of `items`.
    pub(crate) fn from_rows<T>(
        caption: impl Into<String>,
        columns: &[&str],
        items: &[T],
        row: impl Fn(&T) -> Vec<String>,
    ) -> Self {
        Self {
            rows: items.iter().map(row).collect(),
            ..Self::new(caption, columns)
        }
    }

    /// The table in aligned columns, numbers to the right.
    pub fn to_text(&self) -> String {
        let columns = self.columns.len();
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let texts = self.rows.iter().map(|row| row[column].chars().count());
                texts.max().unwrap_or(0).max(self.columns[column].chars().count())
            })
            .collect();
        let mut text = format!("{}\n", self.caption);
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = if self.is_numeric(column) {
                    write!(line, "{cell:>width$}  ")
                } else {
                    write!(line, "{cell:<width$}  ")
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        self.notes.iter().for_each(|note| text += &format!("{note}\n"));
        text
    }

    /// Formats the table as Markdown, for a page of results.
    pub fn to_markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
        let bars = |text: &String| text.replace('|', "\\|");
        let rule = |column| if self.is_numeric(column) { "---:" } else { "---" }.to_owned();
        let mut text = format!("{}:\n\n", self.caption);
        text += &line(&mut self.columns.iter().map(bars));
        text += &line(&mut (0..self.columns.len()).map(rule));
        for row in &self.rows {
            text += &line(&mut row.iter().map(bars));
        }
        self.notes.iter().for_each(|note| text += &format!("\n{note}\n"));
        text
    }

    pub(crate) fn to_html(&self) -> String {
        let mut html = format!(
            "<div class=\"wide\"><table><caption>{}</caption>\n<thead><tr>",
            escaped(&self.caption)
        );
        let class = |column| {
            if self.is_numeric(column) {
                " class=\"number\""
            } else {
                ""
            }
        };
        for (column, name) in self.columns.iter().enumerate() {
            let _ = write!(html, "<th scope=\"col\"{}>{}</th>", class(column), escaped(name));
        }
        html += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            html += "<tr>";
            for (column, cell) in row.iter().enumerate() {
                let text = if self.is_numeric(column) {
                    escaped(cell)
                } else {
                    // Long policy names may break between their parameters.
                    escaped(cell).replace(':', ":<wbr>").replace(',', ",<wbr>")
                };
                let _ = write!(html, "<td{}>{text}</td>", class(column));
            }
            html += "</tr>\n";
        }
        html += "</tbody></table></div>\n";
        for note in &self.notes {
            let _ = writeln!(html, "<p class=\"note\">{}</p>", escaped(note));
        }
        html
    }

    /// True if every cell begins like a number, or is blank.
    fn is_numeric(&self, column: usize) -> bool {
        let number =
            |cell: &str| cell.is_empty() || cell == "–" || cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        !self.rows.is_empty() && self.rows.iter().all(|row| number(&row[column]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_markup_stays_text() {
        let mut table = Table::new("a < b", &["policy", "tokens/s"]);
        table.rows = vec![
            vec!["full".to_owned(), "9".to_owned()],
            vec!["<b>|".to_owned(), "1200".to_owned()],
        ];
        assert_eq!(
            table.to_text(),
            "a < b\npolicy  tokens/s\nfull           9\n<b>|        1200\n"
        );
        assert!(
            table
                .to_markdown()
                .ends_with("| policy | tokens/s |\n| --- | ---: |\n| full | 9 |\n| <b>\\| | 1200 |\n")
        );
        let html = table.to_html();
        table.notes = vec!["▲ over > 20%".to_owned()];
        assert!(table.to_text().ends_with("1200\n▲ over > 20%\n"));
        assert!(table.to_markdown().ends_with("1200 |\n\n▲ over > 20%\n"));
        assert!(table.to_html().ends_with("<p class=\"note\">▲ over &gt; 20%</p>\n"));
        assert!(html.contains("<td>&lt;b&gt;|</td><td class=\"number\">1200</td>") && html.contains("a &lt; b"));
    }
}
