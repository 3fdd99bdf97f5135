//! Commit of the running program's sources.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The commit of the build (`RIFFLE_COMMIT`, which `scripts/release/archives` sets). Otherwise the commit of the
/// repository that contains the program, as for programs built by cargo. It has `+changes` if files differ from the
/// commit. `None` if the program is older than that commit or outside a repository.
pub(super) fn of_program() -> Option<String> {
    if let Some(commit) = option_env!("RIFFLE_COMMIT").filter(|commit| !commit.is_empty()) {
        return Some(commit.to_owned());
    }
    let program = std::env::current_exe().ok()?;
    let built = program.metadata().ok()?.modified().ok()?;
    of_repository(program.parent()?, built)
}

fn of_repository(folder: &Path, built: SystemTime) -> Option<String> {
    let commit = git(folder, &["show", "-s", "--format=%H %ct", "HEAD"])?;
    let (commit, seconds) = commit.split_once(' ')?;
    let committed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.parse().ok()?);
    if built < committed {
        return None;
    }
    let changes = git(folder, &["status", "--porcelain", "--untracked-files=no", ":/"])?;
    Some(if changes.is_empty() {
        commit.to_owned()
    } else {
        format!("{commit}+changes")
    })
}

/// Trimmed output of git; `None` if git is missing or fails.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_newer_than_the_commit_has_it_and_says_whether_files_differ() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let identity = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "commit",
            "-qm",
            "first",
            "--no-gpg-sign",
        ];
        std::fs::write(folder.join("file"), "one").unwrap();
        if git(folder, &["init", "-q"]).is_none() {
            eprintln!("no git here: nothing is checked");
            return;
        }
        git(folder, &["add", "file"]).unwrap();
        git(folder, &identity).unwrap();
        let head = git(folder, &["rev-parse", "HEAD"]).unwrap();
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(of_repository(folder, later), Some(head.clone()));
        std::fs::write(folder.join("file"), "two").unwrap();
        assert_eq!(of_repository(folder, later), Some(format!("{head}+changes")));
        assert_eq!(
            of_repository(folder, SystemTime::UNIX_EPOCH),
            None,
            "built before the commit"
        );
    }
}
