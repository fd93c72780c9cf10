//! The keys and waits once more, in the plainest way: what [`Keys`](super::state::Keys) is compared with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::state::Keys;
use super::waits::ClientId;

const NAMES: [&str; 4] = ["a", "b", "c", ""];

#[derive(Debug, Clone)]
enum Step {
    Set(&'static str, Vec<u8>),
    CompareSet(&'static str, Vec<u8>, Vec<u8>),
    Add(&'static str, i64),
    Append(&'static str, Vec<u8>),
    Delete(&'static str),
    Push(&'static str, Vec<u8>),
    Pop(&'static str),
    Wait(ClientId, Vec<&'static str>),
    Barrier(ClientId, &'static str, i64),
    Cancel(ClientId),
}

fn step() -> impl Strategy<Value = Step> {
    let name = || prop::sample::select(&NAMES[..]);
    let value = || prop::sample::select(vec![&b""[..], b"1", b"-20", b"x"]).prop_map(<[u8]>::to_vec);
    let client = || 0..4_u32;
    prop_oneof![
        3 => (name(), value()).prop_map(|(name, value)| Step::Set(name, value)),
        2 => (name(), value(), value()).prop_map(|(name, old, new)| Step::CompareSet(name, old, new)),
        2 => (name(), -3..3_i64).prop_map(|(name, delta)| Step::Add(name, delta)),
        1 => (name(), value()).prop_map(|(name, value)| Step::Append(name, value)),
        4 => name().prop_map(Step::Delete),
        2 => (name(), value()).prop_map(|(name, value)| Step::Push(name, value)),
        2 => name().prop_map(Step::Pop),
        6 => (client(), prop::collection::vec(name(), 0..4)).prop_map(|(client, names)| Step::Wait(client, names)),
        2 => (client(), name(), 0..4_i64).prop_map(|(client, name, size)| Step::Barrier(client, name, size)),
        2 => client().prop_map(Step::Cancel),
    ]
}

/// Waits in the order in which they began, with what each still misses; a key named twice twice.
#[derive(Debug, Default)]
struct Model {
    values: BTreeMap<&'static str, Vec<u8>>,
    queues: BTreeMap<&'static str, VecDeque<Vec<u8>>>,
    waits: Vec<(ClientId, Vec<&'static str>)>,
    woken: Vec<ClientId>,
}

impl Model {
    fn exists(&self, name: &str) -> bool {
        self.values.contains_key(name) || self.queues.get(name).is_some_and(|queue| !queue.is_empty())
    }

    fn set(&mut self, name: &'static str, value: Vec<u8>) {
        self.values.insert(name, value);
        for (_, missing) in &mut self.waits {
            missing.retain(|other| *other != name);
        }
        self.sweep();
    }

    fn sweep(&mut self) {
        let woken = &mut self.woken;
        self.waits.retain(|(client, missing)| {
            if missing.is_empty() {
                woken.push(*client);
            }
            !missing.is_empty()
        });
    }

    fn push(&mut self, name: &'static str, value: Vec<u8>) {
        self.queues.entry(name).or_default().push_back(value);
        for (_, missing) in &mut self.waits {
            missing.retain(|other| *other != name);
            if missing.is_empty() {
                break;
            }
        }
        self.sweep();
    }

    fn number(&self, name: &str) -> Option<i64> {
        let Some(value) = self.values.get(name) else { return Some(0) };
        let text = std::str::from_utf8(value).unwrap();
        let is_part = |(at, letter): &(usize, char)| letter.is_ascii_digit() || (*at == 0 && *letter == '-');
        text.char_indices().take_while(is_part).map(|(_, letter)| letter).collect::<String>().parse().ok()
    }

    fn wait(&mut self, client: ClientId, names: Vec<&'static str>) -> bool {
        let missing: Vec<_> = names.into_iter().filter(|name| !self.exists(name)).collect();
        if missing.is_empty() {
            return true;
        }
        self.waits.push((client, missing));
        false
    }
}

/// Takes one step in both and compares what they say.
fn take(step: Step, keys: &mut Keys, model: &mut Model) {
    match step {
        Step::Set(name, value) => {
            keys.set(name.as_bytes(), &value);
            model.set(name, value);
        }
        Step::CompareSet(name, old, new) => {
            let answer = keys.compare_set(name.as_bytes(), &old, &new).to_vec();
            let now = model.values.get(name).cloned();
            if now.as_ref() == Some(&old) || (now.is_none() && old.is_empty()) {
                model.set(name, new);
            }
            assert_eq!(answer, *model.values.get(name).unwrap_or(&old));
        }
        Step::Add(name, delta) => {
            let sum = model.number(name).map(|number| number.wrapping_add(delta));
            assert_eq!(keys.add(name.as_bytes(), delta).ok(), sum);
            if let Some(sum) = sum {
                model.set(name, sum.to_string().into_bytes());
            }
        }
        Step::Append(name, value) => {
            keys.append(name.as_bytes(), &value);
            let old = model.values.get(name).cloned().unwrap_or_default();
            model.set(name, [old, value].concat());
        }
        Step::Delete(name) => {
            assert_eq!(keys.delete(name.as_bytes()), model.values.remove(name).is_some());
        }
        Step::Push(name, value) => {
            keys.push(name.as_bytes(), &value);
            model.push(name, value);
        }
        Step::Pop(name) => {
            let queue = model.queues.entry(name).or_default();
            assert_eq!(keys.queue_len(name.as_bytes()), queue.len());
            assert_eq!(keys.pop(name.as_bytes()), (queue.len(), queue.pop_front()));
        }
        Step::Wait(client, names) => {
            let ready = keys.wait(client, names.iter().map(|name| name.as_bytes())).unwrap();
            assert_eq!(ready, model.wait(client, names));
        }
        Step::Barrier(client, name, size) => {
            let count = model.number(name).map(|number| number.wrapping_add(1));
            let open = keys.barrier(client, name.as_bytes(), size).ok();
            assert_eq!(open, count.map(|count| count >= size));
            let Some(count) = count else { return };
            if count >= size {
                model.set(name, count.to_string().into_bytes());
            } else {
                model.values.insert(name, count.to_string().into_bytes());
                model.waits.push((client, vec![name]));
            }
        }
        Step::Cancel(client) => {
            keys.cancel(client);
            model.waits.retain(|(other, _)| *other != client);
        }
    }
    keys.assert_consistent();
    assert_eq!(keys.woken().collect::<Vec<_>>(), std::mem::take(&mut model.woken));
    assert_eq!(keys.count(), model.values.len());
    let names: BTreeSet<Vec<u8>> = keys.names().map(<[u8]>::to_vec).collect();
    assert_eq!(names, model.values.keys().map(|name| name.as_bytes().to_vec()).collect());
    for name in NAMES {
        assert_eq!(keys.get(name.as_bytes()), model.values.get(name).map(Vec::as_slice));
        assert_eq!(keys.exists(name.as_bytes()), model.exists(name));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn keys_and_waits_do_what_the_plain_model_does(steps in prop::collection::vec(step(), 0..80)) {
        let (mut keys, mut model) = (Keys::default(), Model::default());
        for step in steps {
            take(step, &mut keys, &mut model);
        }
    }
}
