//! Stub of the RocksDB items that limitador uses. No database can be opened.

#![allow(clippy::missing_errors_doc, clippy::unused_self, clippy::must_use_candidate)]

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

pub struct MultiThreaded;

pub struct DBWithThreadMode<T>(PhantomData<T>);

pub type DB = DBWithThreadMode<MultiThreaded>;

#[derive(Debug)]
pub struct Error;

#[derive(Debug, PartialEq, Eq)]
pub enum ErrorKind {
    NotSupported,
    TimedOut,
    TryAgain,
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::NotSupported
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("there is no RocksDB")
    }
}

impl std::error::Error for Error {}

type Pair = (Box<[u8]>, Box<[u8]>);

impl<T> DBWithThreadMode<T> {
    pub fn open(_: &Options, _: impl AsRef<Path>) -> Result<Self, Error> {
        Err(Error)
    }

    pub fn get(&self, _: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        Err(Error)
    }

    pub fn delete(&self, _: impl AsRef<[u8]>) -> Result<(), Error> {
        Err(Error)
    }

    pub fn merge(&self, _: impl AsRef<[u8]>, _: impl AsRef<[u8]>) -> Result<(), Error> {
        Err(Error)
    }

    pub fn iterator(&self, _: IteratorMode) -> impl Iterator<Item = Result<Pair, Error>> {
        std::iter::empty()
    }

    pub fn prefix_iterator(&self, _: impl AsRef<[u8]>) -> impl Iterator<Item = Result<Pair, Error>> {
        std::iter::empty()
    }
}

pub enum IteratorMode {
    Start,
}

pub enum DBCompressionType {
    Bz2,
    None,
}

pub enum CompactionDecision {
    Keep,
    Remove,
}

#[derive(Default)]
pub struct Options;

impl Options {
    pub fn set_compression_type(&mut self, _: DBCompressionType) {}

    pub fn create_if_missing(&mut self, _: bool) {}

    pub fn set_compaction_filter<F>(&mut self, _: &str, _: F)
    where
        F: FnMut(u32, &[u8], &[u8]) -> CompactionDecision + Send + 'static,
    {
    }

    pub fn set_merge_operator_associative<F>(&mut self, _: &str, _: F)
    where
        F: for<'a> Fn(&[u8], Option<&'a [u8]>, &'a MergeOperands) -> Option<Vec<u8>> + Clone + Send + Sync + 'static,
    {
    }
}

pub struct MergeOperands;

impl<'a> IntoIterator for &'a MergeOperands {
    type Item = &'a [u8];
    type IntoIter = std::iter::Empty<&'a [u8]>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::empty()
    }
}
