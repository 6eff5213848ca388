//! Handing blocked clients back to the server, with what they are answered: from the outbox, and at the end of a turn of
//! the timer only (`blocked.rs` draws the states of a call that waits).

use super::api::api;
use crate::reply::Reply;
use crate::server::Global;
use crate::server::queues::outbox::Answer;
use crate::server::queues::{Client, Grant, Handle};
use ratelimit_core::wire::error::Error;
use std::cell::Cell;
use std::ffi::c_void;

/// Puts the answer of a call that has waited into the outbox. It is sent when the timer hands the client back.
pub fn answer(global: &Global, client: &Client, reply: Result<Reply, Error>, grant: Option<Grant>) {
    if reply.is_err() {
        client.stats.errors.count();
    }
    let answer = Answer { reply, stats: client.stats, grant, told: Cell::new(false) };
    global.outbox.put(client.handle, Box::new(answer));
}

/// Hands those who are answered back to the server, so many at most; how many those were.
pub fn hand_back_answered(global: &Global, most: usize) -> usize {
    let answered = std::iter::from_fn(|| global.outbox.next());
    answered.take(most).map(|(client, answer)| hand_back(client, Box::into_raw(answer).cast())).count()
}

/// Hands a client back to the server, with what it is to be answered.
pub fn hand_back(Handle(client): Handle, answer: *mut c_void) {
    if let Some(unblock) = api!(RedisModule_UnblockClient) {
        // SAFETY: each blocked client is handed back once: whoever calls has just taken it out of the queues, or out of
        // the outbox.
        unsafe { unblock(client.cast(), answer) };
    }
}
