//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.
//!
//! Every key is opened and looked at before any is charged, in one instant, and what changes travels as one effect.

use super::{Looked, Settle};
use crate::args::{Args, KeyName, has_twins, whole};
use crate::error::{Error, MustBe};
use crate::limiter::{Decision, Timestamp};
use crate::redis::key::Access;
use crate::redis::{self, Redis};
use crate::reply;
use crate::spec::{Spec, with_limit};

const NUMKEYS: MustBe = MustBe { what: "a whole number from 1 to the number of keys that follow", example: "2" };
const KEYS: MustBe = MustBe { what: "different from each other", example: "{alice}:minute {alice}:day" };

/// `RL.MTAKE numkeys key [key ...] spec [spec ...]`
pub fn take(redis: &Redis, args: Args) -> Result<(), Error> {
    if redis.is_asked_for_keys() {
        answer_keys(redis, args);
        return Ok(());
    }
    let call = Call::read(args)?;
    let now = redis::now();
    let mut looked = call.look(redis, now, Access::Change)?;
    let allowed = pass(&looked, now)?;
    if allowed {
        looked.iter().try_for_each(|key| key.check_memory(redis, now))?;
    }
    let mut outcomes = Vec::with_capacity(looked.len());
    let mut decisions = Vec::with_capacity(looked.len());
    for (key, name) in looked.iter_mut().zip(&call.keys) {
        let (decision, outcome) = key.settle(now, allowed);
        outcomes.push((*name, outcome));
        decisions.push((decision, key.denies()));
    }
    redis.propagate(&outcomes);
    reply::decisions(redis, &decisions);
    Ok(())
}

/// `RL.MPEEK numkeys key [key ...] spec [spec ...]`
pub fn peek(redis: &Redis, args: Args) -> Result<(), Error> {
    if redis.is_asked_for_keys() {
        answer_keys(redis, args);
        return Ok(());
    }
    let call = Call::read(args)?;
    let now = redis::now();
    let looked = call.look(redis, now, Access::Look)?;
    pass(&looked, now)?;
    let decisions: Vec<(Decision, bool)> = looked.iter().map(|key| (key.answer(now), key.denies())).collect();
    reply::decisions(redis, &decisions);
    Ok(())
}

/// Whether all pass; refused if they would and a key would get more entries than it may have.
fn pass(looked: &[Box<dyn Settle + '_>], now: Timestamp) -> Result<bool, Error> {
    let allowed = !looked.iter().any(|key| key.denies());
    if allowed {
        looked.iter().try_for_each(|key| key.check_entries(now))?;
    }
    Ok(allowed)
}

/// Answers a server that wants to know no more than which words are keys: Redis 6.2, which has no other way to learn
/// it. There is nobody to send an error to.
fn answer_keys(redis: &Redis, mut args: Args) {
    for (key, _) in keys(&mut args).unwrap_or_default() {
        redis.key_at(key);
    }
}

/// The keys of such a call.
fn keys<'a>(args: &mut Args<'a>) -> Result<Vec<(KeyName, &'a [u8])>, Error> {
    let word = args.word()?;
    let numkeys = whole(word, u64::MAX).and_then(|count| usize::try_from(count).ok());
    let numkeys = numkeys
        .filter(|count| (1..=args.remaining()).contains(count))
        .ok_or(Error::out_of_range("numkeys", NUMKEYS))?;
    (0..numkeys).map(|_| args.key()).collect()
}

/// Keys, and a spec for each.
struct Call<'a> {
    keys: Vec<KeyName>,
    specs: Vec<Spec<'a>>,
}

impl<'a> Call<'a> {
    fn read(mut args: Args<'a>) -> Result<Call<'a>, Error> {
        let (keys, names): (Vec<KeyName>, Vec<&[u8]>) = keys(&mut args)?.into_iter().unzip();
        if has_twins(names) {
            return Err(Error::out_of_range("keys", KEYS));
        }
        let specs = keys.iter().map(|_| Spec::of_several(&mut args)).collect::<Result<_, _>>()?;
        args.end()?;
        Ok(Call { keys, specs })
    }

    fn look<'b>(
        &'b self,
        redis: &'b Redis,
        now: Timestamp,
        access: Access,
    ) -> Result<Vec<Box<dyn Settle + 'b>>, Error> {
        self.keys
            .iter()
            .zip(&self.specs)
            .map(|(name, spec)| {
                with_limit!(&spec.limit, limit => {
                    Looked::at(redis, *name, limit, spec.ask, now, access).map(|looked| -> Box<dyn Settle> { Box::new(looked) })
                })
            })
            .collect()
    }
}
