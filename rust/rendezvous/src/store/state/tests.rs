//! The rules of `state`, one by one.
use super::super::protocol::MAX_KEYS;
use super::*;

fn wait(keys: &mut Keys, client: ClientId, names: &[&str]) -> bool {
    keys.wait(client, names.iter().map(|name| name.as_bytes())).unwrap()
}

fn woken(keys: &mut Keys) -> Vec<ClientId> {
    keys.assert_consistent();
    keys.woken().collect()
}

#[test]
fn a_waiter_is_woken_once_when_the_last_of_its_keys_appears() {
    let mut keys = Keys::default();
    keys.set(b"a", b"1");
    assert!(!wait(&mut keys, 7, &["a", "b", "c"]));
    keys.set(b"c", b"3");
    assert!(woken(&mut keys).is_empty());
    keys.set(b"b", b"2");
    assert_eq!(woken(&mut keys), [7]);
    keys.set(b"b", b"again");
    assert!(woken(&mut keys).is_empty(), "STORE-7");
    assert!(wait(&mut keys, 7, &["a", "b", "c"]));
    assert!(wait(&mut keys, 7, &[]), "nothing to wait for");
}

#[test]
fn a_key_named_twice_needs_to_appear_once() {
    let mut keys = Keys::default();
    assert!(!wait(&mut keys, 1, &["a", "a"]));
    keys.set(b"a", b"");
    assert_eq!(woken(&mut keys), [1]);
    assert!(!wait(&mut keys, 1, &["q", "q"]));
    keys.push(b"q", b"");
    assert_eq!(woken(&mut keys), [1]);
}

#[test]
fn a_key_that_appeared_and_went_counts_as_seen() {
    let mut keys = Keys::default();
    assert!(!wait(&mut keys, 1, &["a", "b"]));
    keys.set(b"a", b"1");
    assert!(keys.delete(b"a"));
    keys.set(b"b", b"2");
    assert_eq!(woken(&mut keys), [1]);
    assert!(!keys.exists(b"a"));
}

#[test]
fn a_cancelled_wait_is_never_woken_and_leaves_nothing_behind() {
    let mut keys = Keys::default();
    for _ in 0..1000 {
        assert!(!wait(&mut keys, 1, &["never", "never either"]));
        keys.cancel(1);
        keys.assert_consistent();
    }
    assert!(keys.slots.is_empty() && keys.entries.len() == 2);
    keys.set(b"never", b"");
    assert!(woken(&mut keys).is_empty());
    keys.cancel(99);
}

#[test]
fn cancelling_one_of_many_waiters_keeps_the_others() {
    let mut keys = Keys::default();
    for client in 0..100 {
        assert!(!wait(&mut keys, client, &["a"]));
    }
    for client in (0..100).filter(|client| client % 3 != 0) {
        keys.cancel(client);
        keys.assert_consistent();
    }
    keys.set(b"a", b"");
    assert_eq!(woken(&mut keys), (0..100).filter(|client| client % 3 == 0).collect::<Vec<_>>());
}

#[test]
fn two_waits_of_one_client_are_answered_each() {
    let mut keys = Keys::default();
    assert!(!wait(&mut keys, 1, &["a"]));
    assert!(!wait(&mut keys, 1, &["b"]));
    keys.set(b"a", b"");
    assert_eq!(woken(&mut keys), [1]);
    keys.set(b"b", b"");
    assert_eq!(woken(&mut keys), [1]);
}

#[test]
fn a_push_wakes_one_waiter_in_the_order_of_arrival() {
    let mut keys = Keys::default();
    for client in 1..4 {
        assert!(!wait(&mut keys, client, &["q"]));
    }
    keys.cancel(1);
    keys.push(b"q", b"first");
    assert_eq!(woken(&mut keys), [2]);
    keys.push(b"q", b"second");
    assert_eq!(woken(&mut keys), [3]);
    assert!(wait(&mut keys, 1, &["q"]), "a queue that is not empty is there");
    assert_eq!(keys.pop(b"q"), (2, Some(b"first".to_vec())));
    assert_eq!(keys.pop(b"q"), (1, Some(b"second".to_vec())));
    assert_eq!(keys.pop(b"q"), (0, None));
    assert_eq!((keys.queue_len(b"q"), keys.count()), (0, 0));
    assert!(keys.slots.is_empty());
}

#[test]
fn a_push_passes_over_waiters_that_still_miss_another_key() {
    let mut keys = Keys::default();
    assert!(!wait(&mut keys, 1, &["q", "k"]));
    assert!(!wait(&mut keys, 2, &["q"]));
    keys.push(b"q", b"");
    assert_eq!(woken(&mut keys), [2]);
    keys.set(b"k", b"");
    assert_eq!(woken(&mut keys), [1]);
    assert!(!wait(&mut keys, 3, &["q", "k2"]));
    keys.set(b"k2", b"");
    assert_eq!(woken(&mut keys), [3], "the queue was not empty, so only k2 was missing");
}

#[test]
fn a_barrier_opens_for_all_when_the_last_comes_and_stays_open() {
    let mut keys = Keys::default();
    assert_eq!(keys.barrier(0, b"b", 3), Ok(false));
    assert_eq!(keys.barrier(1, b"b", 3), Ok(false));
    assert!(woken(&mut keys).is_empty());
    assert_eq!(keys.barrier(2, b"b", 3), Ok(true));
    assert_eq!(woken(&mut keys), [0, 1]);
    assert_eq!(keys.barrier(0, b"b", 3), Ok(true));
    assert_eq!(keys.get(b"b"), Some(&b"4"[..]));
    keys.set(b"text", b"x");
    assert_eq!(keys.barrier(0, b"text", 2), Err(Refusal::NotANumber));
}

#[test]
fn compare_set_answers_as_torch_does() {
    let mut keys = Keys::default();
    assert!(!wait(&mut keys, 1, &["k"]));
    assert_eq!(keys.compare_set(b"k", b"old", b"new"), b"old", "the key is missing, and yet");
    assert!(keys.get(b"k").is_none() && woken(&mut keys).is_empty());
    assert_eq!(keys.compare_set(b"k", b"", b"new"), b"new");
    assert_eq!(woken(&mut keys), [1]);
    assert_eq!(keys.compare_set(b"k", b"", b"newer"), b"new");
    assert_eq!(keys.compare_set(b"k", b"new", b""), b"");
    assert_eq!(keys.get(b"k"), Some(&b""[..]));
}

#[test]
fn add_reads_numbers_as_strtoll_does() {
    let mut keys = Keys::default();
    assert_eq!(keys.add(b"n", -5), Ok(-5));
    assert_eq!(keys.get(b"n"), Some(&b"-5"[..]));
    for (text, number) in [
        ("12", Some(12)),
        (" \t\n+7 apples", Some(7)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("", None),
        ("-", None),
        ("- 1", None),
        ("x1", None),
        ("0x10", Some(0)),
    ] {
        keys.set(b"n", text.as_bytes());
        assert_eq!(keys.add(b"n", 0).ok(), number, "{text:?}");
    }
    keys.set(b"n", b"9223372036854775807");
    assert_eq!(keys.add(b"n", 1), Ok(i64::MIN), "wraps");
}

#[test]
fn append_makes_the_key_and_delete_takes_it() {
    let mut keys = Keys::default();
    assert!(!wait(&mut keys, 1, &["k"]));
    keys.append(b"k", b"ab");
    assert_eq!(woken(&mut keys), [1]);
    keys.append(b"k", b"cd");
    assert_eq!(keys.get(b"k"), Some(&b"abcd"[..]));
    assert_eq!((keys.count(), keys.names().collect::<Vec<_>>()), (1, vec![&b"k"[..]]));
    assert!(keys.delete(b"k"));
    assert!(!keys.delete(b"k"));
    assert!(keys.count() == 0 && keys.names().next().is_none());
}

#[test]
fn one_client_can_not_wait_for_more_keys_than_a_message_may_name() {
    let mut keys = Keys::default();
    let names: Vec<String> = (0..MAX_KEYS).map(|n| n.to_string()).collect();
    assert_eq!(keys.wait(1, names.iter().map(|name| name.as_bytes())), Ok(false));
    assert_eq!(keys.wait(1, [&b"one more"[..]].into_iter()), Err(Refusal::TooManyWaits));
    assert_eq!(keys.wait(2, [&b"one more"[..]].into_iter()), Ok(false));
    keys.cancel(1);
    assert_eq!(keys.wait(1, [&b"one more"[..]].into_iter()), Ok(false));
    keys.assert_consistent();
}
