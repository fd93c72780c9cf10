//! What is known of hosts and executors that are to go, and what every rank of a run is told.

use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(30);

const HOST: Place<'_> = Place { host: "h", task: None };

fn told(in_ms: Option<u64>) -> Notice {
    Notice { in_ms, reason: "spot".into() }
}

#[test]
fn ranks_have_their_grace_before_the_host_goes_and_half_of_the_time_before_that() {
    let now = Instant::now();
    for (in_s, until_s) in [(120, 90), (60, 30), (40, 20), (10, 5), (1, 0)] {
        let mut notices = Notices::default();
        assert!(notices.announce(now, 5, HOST, told(Some(in_s * 1000)), GRACE));
        let (_, going) = notices.at(now, HOST).next().unwrap();
        let until = now + Duration::from_secs(until_s);
        assert!(going.ranks_until.is_some_and(|at| at - until < SAME_TIME), "DRIVER-55");
        assert_eq!(going.deadline_ms, Some(5 + in_s * 1000));
    }
}

#[test]
fn what_is_said_again_is_no_news_and_another_time_is() {
    let now = Instant::now();
    let later = |s| now + Duration::from_secs(s);
    let mut notices = Notices::default();
    let mut says = |at, in_ms| notices.announce(later(at), 0, HOST, told(in_ms), GRACE);
    assert!(says(0, None) && !says(1, None));
    assert!(says(2, Some(100_000)) && !says(3, Some(98_100)) && !says(4, None) && !says(5, Some(500_000)));
    assert!(says(5, Some(10_000)), "it goes sooner");
    assert!(!says(14, Some(1000)) && !says(15 + 59, Some(60_000)));
    assert!((0..9).all(|nth| !says(80 + 50 * nth, Some(0))), "who says so for ever says nothing new");
    assert!(says(480 + 60, None), "it has stayed, and is announced again");
    let mut late = Notices::default();
    assert!(late.announce(now, 0, HOST, told(Some(0)), GRACE));
    assert_eq!(
        late.at(now, HOST).next().unwrap().1.ranks_until,
        None,
        "DRIVER-55: there is no time left to end them in"
    );
}

#[test]
fn an_executor_goes_by_itself_and_once_and_is_no_news_where_its_host_goes() {
    let now = Instant::now();
    let mut notices = Notices::default();
    let of = |task| Place { host: "h", task: Some(task) };
    let says = |notices: &mut Notices, place| notices.announce(now, 0, place, told(None), GRACE);
    assert!(says(&mut notices, of(1)) && !says(&mut notices, of(1)));
    let goes = |notices: &Notices, place| notices.at(now, place).count();
    assert_eq!([of(1), of(2), HOST].map(|place| goes(&notices, place)), [1, 0, 0], "DRIVER-73");
    assert!(notices.leaving(now, host_digest("h")).is_none(), "DRIVER-73: new tasks are taken");
    notices.choose(now, BTreeSet::new());
    let running = [(of(0), vec![0, 1]), (of(1), vec![2, 3])];
    let notice = notices.tell(0, BTreeSet::new(), &running).unwrap();
    assert_eq!((notice.hosts, notice.ranks), (vec!["h".to_string()], vec![2, 3]), "DRIVER-73");
    notices.begin_attempt(now, true);
    assert!(!says(&mut notices, of(1)) && says(&mut notices, of(2)));
    notices.keep_executors(|task| task == 2);
    assert_eq!([of(1), of(2)].map(|place| goes(&notices, place)), [0, 1]);
    assert!(says(&mut notices, HOST) && !says(&mut notices, of(7)));
    assert_eq!([of(2), of(7)].map(|place| goes(&notices, place)), [2, 1]);
}

/// A rank that asks for its steps, as `rank_words.rs` has it.
#[derive(Debug, Clone, Default)]
struct Rank {
    asked: Option<u64>,
    frozen: bool,
    /// What it was told: from which step on, by number.
    told: Vec<(u64, u32)>,
    /// What it had at each step that it has begun.
    begun: BTreeMap<u64, Option<u32>>,
    next: u64,
}

impl Rank {
    fn asks(&mut self, every: u64) {
        self.asked = self.asked.max(Some(self.next));
        if !self.frozen {
            let known = self.told.iter().filter(|(step, _)| *step <= self.next).map(|(_, number)| *number);
            self.begun.insert(self.next, known.max());
            self.next += every;
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Asks(usize),
    /// A node hears its next order.
    Hears(usize),
    /// The hub hears the next answer of a node.
    Answers(usize),
    Announced(u8),
    Passes(u64),
}

#[derive(Debug, Clone)]
enum Order {
    Freeze(u32),
    Thaw,
    Tell(RankNotice),
}

const RANKS: usize = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..RANKS).prop_map(Step::Asks),
        4 => (0..RANKS).prop_map(Step::Hears),
        4 => (0..RANKS).prop_map(Step::Answers),
        1 => (0..3_u8).prop_map(Step::Announced),
        1 => (0..700_u64).prop_map(Step::Passes),
    ];
    prop::collection::vec(step, 0..600)
}

proptest! {
    /// DRIVER-53: ranks of one node each, which ask for each step, every second and every tenth, and one that never
    /// asks. Orders and answers take any time; what the ranks do meanwhile is theirs.
    #[test]
    fn what_a_rank_knows_at_a_step_is_the_same_in_every_rank(steps in steps()) {
        let mut now = Instant::now();
        let mut notices = Notices::default();
        let mut ranks = vec![Rank::default(); RANKS];
        let mut orders: Vec<std::collections::VecDeque<Order>> = vec![Default::default(); RANKS];
        let mut answers: Vec<std::collections::VecDeque<(u32, Option<u64>)>> = vec![Default::default(); RANKS];
        let running = ["h0", "h1", "h2"].map(|host| (Place { host, task: None }, vec![0]));
        let (mut announced, mut chosen) = (0, 0);
        for step in steps {
            match step {
                Step::Asks(3) => {}
                Step::Asks(rank) => ranks[rank].asks([1, 2, 10][rank]),
                Step::Hears(node) => match orders[node].pop_front() {
                    Some(Order::Freeze(number)) => {
                        ranks[node].frozen = true;
                        answers[node].push_back((number, ranks[node].asked));
                    }
                    Some(Order::Thaw) => ranks[node].frozen = false,
                    Some(Order::Tell(notice)) => {
                        ranks[node].told.push((notice.step, notice.number));
                        ranks[node].frozen = false;
                    }
                    None => {}
                },
                Step::Answers(node) => {
                    if let Some((number, asked)) = answers[node].pop_front() {
                        notices.frozen(u32::try_from(node).unwrap(), number, asked);
                    }
                }
                Step::Announced(host) => {
                    announced += 1;
                    let in_ms = Some(100_000_000 - announced * 5000);
                    let host = &format!("h{host}");
                    notices.announce(now, 0, Place { host, task: None }, told(in_ms), GRACE);
                }
                Step::Passes(ms) => now += Duration::from_millis(ms),
            }
            let nodes: BTreeSet<u32> = (0..4).collect();
            if notices.wants_choice(now) {
                let number = notices.choose(now, nodes);
                orders.iter_mut().for_each(|orders| orders.push_back(Order::Freeze(number)));
            }
            match notices.conclude(now) {
                Some(Chosen::Step(step, nodes)) => {
                    chosen += 1;
                    let notice = notices.tell(step, nodes, &running).unwrap();
                    orders.iter_mut().for_each(|orders| orders.push_back(Order::Tell(notice.clone())));
                }
                Some(Chosen::TakenBack(_)) => {
                    orders.iter_mut().for_each(|orders| orders.push_back(Order::Thaw));
                }
                None => {}
            }
        }
        for step in ranks.iter().flat_map(|rank| rank.begun.keys()) {
            let known: BTreeSet<_> = ranks.iter().filter_map(|rank| rank.begun.get(step)).collect();
            prop_assert!(known.len() <= 1, "DRIVER-53: at step {step} of {chosen} notices: {known:?}");
        }
    }
}
