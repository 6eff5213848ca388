//! Replays of all committed inputs through their targets: the corpora, and inputs that once broke a law. Also replays
//! random histories.

use redis_ratelimit_fuzz::targets::{self, Target};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the sorted files of a folder. Returns no files if the folder does not exist.
fn inputs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Unpacks the corpus of a target and returns its files.
fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corpus").join(target);
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(Path::new(PACKAGE).join(format!("corpus/{target}.tar.gz"))).arg("-C").arg(&folder);
    assert!(tar.status().unwrap().success(), "the corpus of {target} cannot be unpacked");
    inputs(&folder)
}

#[test]
fn committed_inputs_keep_the_laws() {
    let mut failed = Vec::new();
    for (name, run) in targets::ALL {
        let corpus = corpus(name);
        assert!(corpus.len() >= 10, "the corpus of {name} is missing or small");
        for file in corpus.into_iter().chain(inputs(&Path::new(PACKAGE).join("found").join(name))) {
            let data = fs::read(&file).unwrap();
            if catch_unwind(|| run(&data)).is_err() {
                failed.push(file);
            }
        }
    }
    assert!(failed.is_empty(), "inputs break a law: {failed:#?}");
}

#[test]
fn every_fuzz_target_is_replayed() {
    let mut programs = inputs(&Path::new(PACKAGE).join("fuzz_targets"));
    programs.iter_mut().for_each(|file| *file = file.file_stem().unwrap().into());
    assert_eq!(programs, targets::ALL.map(|(name, _)| PathBuf::from(name)));
}

#[test]
#[should_panic(expected = "a law")]
fn debug_assertions_are_enabled() {
    // The laws rely on debug assertions and overflow checks, which a build could disable.
    debug_assert!(std::hint::black_box(false), "a law");
}

/// Calls the target with `count` inputs of random bytes.
fn replay_random_inputs(target: Target, seed: u64, count: u64) {
    // Vigna's splitmix64. All inputs come from one sequence.
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    };
    for number in 0..count {
        let length = random() % 600;
        let data: Vec<u8> = (0..length).map(|_| random().to_le_bytes()[0]).collect();
        assert!(catch_unwind(|| target(&data)).is_ok(), "input {number} of seed {seed} breaks a law");
    }
}

#[test]
fn random_histories_lead_to_decodable_states() {
    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
    let (seed, count) = (variable("RATELIMIT_SEED").unwrap_or(0), variable("RATELIMIT_HISTORIES").unwrap_or(2000));
    replay_random_inputs(targets::states::run, seed, count);
}
