//! Prints the text of documents, and their unreadable parts on standard error.

use std::time::Instant;

use riffle_documents::{Limits, read};

fn main() {
    for path in std::env::args().skip(1) {
        let start = Instant::now();
        match read(&[&path], &Limits::default()) {
            Ok(collection) => {
                for document in &collection.documents {
                    print!("{}", document.text);
                    eprintln!(
                        "{}: {} bytes, {:?}, {:?}",
                        document.name,
                        document.text.len(),
                        start.elapsed(),
                        document.warnings
                    );
                }
            }
            Err(error) => eprintln!("{error}"),
        }
    }
}
