//! Random calls on a key and on its model, side by side; replicas follow by what they are told.

use super::model::Model;
use super::script::{ALL, Command, PLAIN, Step, histories};
use super::server::{Refused, Server};
use crate::number::{Span, Timestamp};
use crate::wire::error::Error;
use proptest::prelude::*;

/// Makes the calls on both.
pub fn side_by_side((begin, steps): (Timestamp, Vec<Step>)) {
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
            Command::Take(ref said) | Command::Peek(ref said) => {
                let peeks = matches!(step.command, Command::Peek(_));
                let called = said.asks(peeks, |asked| match server.call(asked, now, peeks) {
                    Err(Refused::WrongType) => false,
                    Err(Refused::TooManyComponents) => {
                        assert!(model.has_no_room(asked, now));
                        false
                    }
                    Err(Refused::NoHolder) => unreachable!("it is asked"),
                    Ok(told) => {
                        let ahead = model.clone();
                        let (answer, writes) = model.call(asked, now, peeks, expires_at);
                        assert_eq!(told.answer, answer, "{said:?} at {now:?} on {ahead:#?}");
                        assert!(told.writes || !writes, "{said:?}");
                        last = Some(answer.decision);
                        told.writes
                    }
                });
                // A lease needs its id.
                called.unwrap_or_else(|refused| {
                    assert_eq!((refused, peeks, said.has("ONCE")), (Error::NoHolder, false, false), "{said:?}");
                    false
                })
            }
        };
        if !writes {
            assert_eq!(server.stored(), before, "written without being told");
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
    fn a_key_with_several_limits_is_as_many_keys(history in histories(ALL)) {
        side_by_side(history);
    }

    #[test]
    fn and_so_it_is_without_ids_and_bans(history in histories(PLAIN)) {
        side_by_side(history);
    }
}
