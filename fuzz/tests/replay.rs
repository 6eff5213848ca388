//! Every input that is committed, through its target: the corpora, and what broke a law once.

use redis_ratelimit_fuzz::targets;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// The files of a target, of which there may be none.
fn inputs(folder: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn no_committed_input_breaks_a_law() {
    let mut broken = Vec::new();
    for (name, run) in targets::ALL {
        let corpus = inputs("corpus", name);
        assert!(corpus.len() >= 10, "there is a corpus of {name}");
        for file in corpus.into_iter().chain(inputs("found", name)) {
            let data = fs::read(&file).unwrap();
            if catch_unwind(|| run(&data)).is_err() {
                broken.push(file);
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_target_that_cargo_fuzz_runs_is_replayed() {
    let mut programs = inputs("", "fuzz_targets");
    programs.iter_mut().for_each(|file| *file = file.file_stem().unwrap().into());
    assert_eq!(programs, targets::ALL.map(|(name, _)| PathBuf::from(name)));
}

#[test]
#[should_panic(expected = "a law")]
fn a_law_that_does_not_hold_is_a_panic() {
    // The build must keep the debug assertions and the overflow checks that the laws lean on.
    debug_assert!(std::hint::black_box(false), "a law");
}
