//! Random calls on a key and on a model of it. The replicas apply the propagated effects.

use super::model::Model;
use super::script::{ALL, Command, PLAIN, Step, histories};
use super::server::{CallError, Server};
use crate::number::{Span, Timestamp};
use crate::wire::error::Error;
use proptest::prelude::*;

/// Runs the calls on a server and on the model, and compares the replies and the states.
pub fn compare_with_model((begin, steps): (Timestamp, Vec<Step>)) {
    let (mut server, mut model) = (Server::default(), Model::default());
    let (mut now, mut last) = (begin, None);
    for step in steps {
        now = step.when.after(now, last.as_ref());
        if step.key_may_expire && server.expire(now) {
            model.expire(now);
        }
        server.mutations = step.mutations;
        let before = server.stored();
        let expires_at = server.key.as_ref().map(|(_, at)| *at);
        let writes = match step.command {
            Command::Release(holder) => match server.release(holder.as_bytes(), now) {
                Some((_, writes)) => {
                    model.release(holder.as_bytes(), now);
                    writes
                }
                None => false,
            },
            Command::Ban(micros) => {
                let duration = Span::from_micros(micros);
                let (_, writes) = server.ban(duration, now);
                if writes {
                    model.ban(duration, now, expires_at);
                }
                writes
            }
            Command::Take(ref call_text) | Command::Peek(ref call_text) => {
                let peeks = matches!(step.command, Command::Peek(_));
                let writes = call_text.with_request(peeks, |request| match server.call(request, now, peeks) {
                    Err(CallError::WrongType) => false,
                    Err(CallError::TooManyComponents) => {
                        assert!(model.has_no_room(request, now));
                        false
                    }
                    Err(CallError::NoHolder) => unreachable!("calls by text have a holder"),
                    Ok(result) => {
                        let model_before = model.clone();
                        let (answer, writes) = model.call(request, now, peeks, expires_at);
                        assert_eq!(result.answer, answer, "{call_text:?} at {now:?} on {model_before:#?}");
                        assert!(result.writes || !writes, "{call_text:?}");
                        last = Some(answer.decision);
                        result.writes
                    }
                });
                // A lease by a policy needs an id.
                writes.unwrap_or_else(|error| {
                    assert_eq!((error, peeks, call_text.has("ONCE")), (Error::NoHolder, false, false), "{call_text:?}");
                    false
                })
            }
        };
        if !writes {
            assert_eq!(server.stored(), before, "state changed without a write");
        }
        match (server.components(), server.plain()) {
            (Some(components), _) => model.compare(components),
            (None, Some(_)) => assert!(model.is_plain() && !model.is_missing()),
            (None, None) => assert!(model.is_missing()),
        }
    }
}

proptest! {
    #[test]
    fn key_with_several_limits_matches_the_model(history in histories(ALL)) {
        compare_with_model(history);
    }

    #[test]
    fn key_without_ids_and_bans_matches_the_model(history in histories(PLAIN)) {
        compare_with_model(history);
    }
}
