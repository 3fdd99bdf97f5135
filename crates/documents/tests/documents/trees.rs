//! Folders under their ignore rules.

use riffle_documents::{Collection, DocumentError, Limits, read};

use crate::{Made, place};
use riffle_testing::documents::pdf;

#[test]
fn a_source_tree_is_read_by_its_ignore_rules_and_binary_files_are_counted() {
    let made = Made::new();
    made.file("tree/.gitignore", b"target/\n*.log\n");
    made.file("tree/b/lib.rs", b"fn one() {}\n\nfn two() {}\n");
    made.file("tree/a.md", b"# A\ntext\n");
    made.file("tree/paper.pdf", &pdf(&["words"]));
    made.file("tree/target/out.txt", b"no");
    made.file("tree/run.log", b"no");
    made.file("tree/.hidden", b"no");
    made.file("tree/picture.png", b"\x89PNG\r\n\x1a\n\0\0");
    made.file("tree/latin.txt", b"caf\xe9");
    made.file("tree/empty.txt", b"");
    made.file("tree/broken.pdf", b"%PDF-1.4\n");
    let collection = read(&[made.folder.path().join("tree")], &Limits::default()).unwrap();
    assert_eq!(names(&collection), ["tree/a.md", "tree/b/lib.rs", "tree/paper.pdf"]);
    assert_eq!(place(&collection.documents[1], "fn two"), "line 3");
    let left_out = collection.left_out;
    assert_eq!((left_out.binary, left_out.empty, left_out.failures.len()), (1, 1, 2));
    assert!(
        left_out.failures[0].contains("broken.pdf: this PDF file is damaged"),
        "{left_out:?}"
    );
}

fn names(collection: &Collection) -> Vec<&str> {
    let documents = collection.documents.iter();
    documents.map(|document| document.name.as_str()).collect()
}

#[test]
fn a_document_has_the_same_name_from_whatever_folder_it_is_named() {
    let made = Made::new();
    made.file("one/a.txt", b"text");
    made.file("one/b/c.txt", b"text");
    made.file("two/a.txt", b"text");
    let of = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| made.folder.path().join(path)).collect();
        read(&paths, &Limits::default()).unwrap()
    };
    assert_eq!(names(&of(&["one/a.txt"])), ["a.txt"]);
    assert_eq!(names(&of(&["one/b/../a.txt"])), ["a.txt"]);
    assert_eq!(names(&of(&["one"])), ["one/a.txt", "one/b/c.txt"]);
    assert_eq!(names(&of(&["one/"])), ["one/a.txt", "one/b/c.txt"]);
    assert_eq!(names(&of(&["one/b/.."])), ["a.txt", "b/c.txt"]);
    // Documents whose short names would be equal are named by their given paths.
    let both = of(&["one/a.txt", "two/a.txt", "one/b/c.txt"]);
    let typed = |path: &str| made.folder.path().join(path).display().to_string();
    assert_eq!(names(&both), [&*typed("one/a.txt"), &*typed("two/a.txt"), "c.txt"]);
}

#[test]
fn a_folder_with_nothing_to_read_and_one_with_too_many_files_are_refused() {
    let made = Made::new();
    made.file("a/picture.png", b"\0");
    let error = read(&[made.folder.path().join("a")], &Limits::default()).unwrap_err();
    assert!(
        matches!(error, DocumentError::EmptyFolder { left_out: 1, .. }),
        "{error}"
    );
    for file in 0..4 {
        made.file(&format!("b/{file}"), b"text");
    }
    let limits = Limits {
        files: 3,
        ..Limits::default()
    };
    let error = read(&[made.folder.path().join("b")], &limits).unwrap_err();
    assert!(matches!(error, DocumentError::TooManyFiles { limit: 3, .. }), "{error}");
    let nothing: [&str; 0] = [];
    assert_eq!(read(&nothing, &limits).unwrap_err(), DocumentError::NothingNamed);
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_and_links_out_of_a_folder_are_not_followed() {
    let made = Made::new();
    let error = read(&["/dev/null"], &Limits::default()).unwrap_err().to_string();
    assert_eq!(error, "/dev/null: it is a device, not a regular file");
    let error = read(&["/no/such/file"], &Limits::default()).unwrap_err().to_string();
    assert_eq!(error, "/no/such/file: no such file; check the path");
    made.file("secret.txt", b"secret");
    made.file("tree/a.txt", b"text");
    let link = made.folder.path().join("tree/link.txt");
    std::os::unix::fs::symlink(made.folder.path().join("secret.txt"), link).expect("a link");
    let collection = read(&[made.folder.path().join("tree")], &Limits::default()).unwrap();
    assert_eq!(collection.documents.len(), 1);
}
