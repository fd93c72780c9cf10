//! The nodes of a job by the thousand in one process, without ranks: what a hub sees of them is what it sees of real
//! ones.
//!
//! A node's connections are TCP with TLS and the proof of the job's token: one for control, one for output and one for
//! each result. Its words are those of `types::message`, in the hub's frames. One event loop moves the bytes of all
//! nodes, in [`Fleet::play`] and nowhere else.
//!
//! A node says what the test has it say; by itself it joins, as soon as the hub has proved itself. It has no memory:
//! what it told is not told again when its connection breaks.

mod line;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use phalanx_io::{PublicKey, raise_descriptor_limit};
use phalanx_rendezvous::wire::{self, Frame, MAX_DATA_BYTES};
use phalanx_types::message::{HubMessage, NodeMessage, OutputTotal, Role};
use phalanx_types::{Attempt, Deadline, Join, NodePlacement, NodeSpec, RankExit, RankState, SparkTask};

use line::{Line, Turn};

/// How many nodes prove themselves at a time: the hub keeps 1,024 that have yet to, of which a test may add some.
const MAX_DIALLING: usize = 512;

/// All nodes of one attempt of a job.
pub struct Fleet {
    address: SocketAddr,
    key: PublicKey,
    token: wire::Token,
    job: String,
    attempt: Attempt,
    poll: Poll,
    lines: HashMap<Token, Line>,
    next_token: usize,
    /// Who is to connect once there is room among those that prove themselves.
    to_dial: VecDeque<(Role, Vec<u8>)>,
    proving: usize,
    nodes: Vec<FleetNode>,
    results_kept: usize,
}

/// What a node has heard.
#[derive(Debug, Default)]
pub struct FleetNode {
    /// Its place, once it has one.
    pub place: Option<NodePlacement>,
    /// Why its ranks are to end, once it was told.
    pub stopped: Option<String>,
    /// Whether it may go.
    pub released: bool,
    /// The attempt that it is to join next.
    pub again: Option<Attempt>,
    /// The last request for stacks.
    pub stacks_asked: Option<u32>,
    /// Whether the hub has all of its output: see [`Fleet::ask_for_output`].
    pub output_arrived: bool,
    /// The longest time between a ping and its answer, of those that were answered.
    pub slowest_pong: Duration,
    /// Whether its ranks run, and whether it has told how they ended: see [`Fleet::follow_orders`].
    runs: bool,
    is_done: bool,
    pinged: Option<Instant>,
    control: Option<Token>,
    logs: Option<Token>,
    /// Output that waits for its connection; `None` where that was not asked for.
    unsaid: Option<Vec<u8>>,
    /// What its ranks have written: rank and bytes.
    written: Vec<(u32, u64)>,
}

impl FleetNode {
    /// Whether it has a connection for control that both ends have proved.
    pub fn is_connected(&self) -> bool {
        self.control.is_some()
    }

    /// Whether a ping of its has no answer yet.
    pub fn waits_for_pong(&self) -> bool {
        self.pinged.is_some()
    }
}

impl Fleet {
    /// The nodes that `spec` is for; none has connected yet.
    pub fn new(spec: &NodeSpec) -> Fleet {
        raise_descriptor_limit();
        let nodes = (0..spec.job.tasks).map(|_| FleetNode::default()).collect();
        Fleet {
            address: spec.hub.parse().expect("the hub of a test has an address, not a name"),
            key: spec.hub_key.clone(),
            token: spec.token,
            job: spec.job.id.clone(),
            attempt: spec.attempt,
            poll: Poll::new().expect("an event loop"),
            lines: HashMap::new(),
            next_token: 0,
            to_dial: VecDeque::new(),
            proving: 0,
            nodes,
            results_kept: 0,
        }
    }

    /// The nodes, by partition.
    pub fn nodes(&self) -> &[FleetNode] {
        &self.nodes
    }

    /// How many results the hub has kept.
    pub fn results_kept(&self) -> usize {
        self.results_kept
    }

    /// Has every node connect and join.
    pub fn join_all(&mut self) {
        (0..count(self.nodes.len())).for_each(|partition| self.join(partition));
    }

    /// Has all nodes leave their connections and join another attempt over new ones, as nodes do that start their ranks
    /// again in place.
    pub fn begin_attempt(&mut self, attempt: Attempt) {
        (0..count(self.nodes.len())).for_each(|partition| self.begin_again(partition, attempt));
    }

    fn begin_again(&mut self, partition: u32, attempt: Attempt) {
        self.attempt = attempt;
        self.vanish(partition);
        *self.node(partition) = FleetNode::default();
        self.join(partition);
    }

    /// Has every node do what it was told since the last call: start its ranks, end them, or begin again.
    pub fn follow_orders(&mut self) {
        for partition in 0..count(self.nodes.len()) {
            let node = self.node(partition);
            if let Some(attempt) = node.again.take() {
                self.begin_again(partition, attempt);
            } else if node.stopped.is_some() && !node.is_done {
                node.is_done = true;
                self.end_ranks(partition, &RankState::Stopped);
            } else if node.place.is_some() && !node.runs {
                node.runs = true;
                self.start_ranks_of(partition);
            }
        }
    }

    /// Has a node connect and join.
    pub fn join(&mut self, partition: u32) {
        let mut first = Vec::new();
        wire::encode_json(&NodeMessage::Join(join_of(partition)), &mut first);
        self.to_dial
            .push_back((Role::Control { partition, attempt: self.attempt, task: task_of(partition) }, first));
    }

    /// Has a node tell something; one that has no connection says nothing.
    pub fn tell(&mut self, partition: u32, message: &NodeMessage) {
        let Some(token) = self.node(partition).control else { return };
        let mut frame = Vec::new();
        wire::encode_json(message, &mut frame);
        self.send(token, &frame);
    }

    /// Has every node that waits for no answer ping the hub.
    pub fn ping_all(&mut self) {
        for partition in 0..count(self.nodes.len()) {
            let node = self.node(partition);
            if node.pinged.is_none() && node.control.is_some() {
                node.pinged = Some(Instant::now());
                self.tell(partition, &NodeMessage::Ping);
            }
        }
    }

    /// The ranks that a node has by its place.
    pub fn ranks_of(&self, partition: u32) -> Vec<u32> {
        let place = self.nodes.get(index(partition)).and_then(|node| node.place.as_ref());
        place.map(|place| place.ranks.iter().map(|rank| rank.rank).collect()).unwrap_or_default()
    }

    /// Has every node that has its place tell that its ranks run.
    pub fn start_ranks(&mut self) {
        (0..count(self.nodes.len())).for_each(|partition| self.start_ranks_of(partition));
    }

    fn start_ranks_of(&mut self, partition: u32) {
        for rank in self.ranks_of(partition) {
            self.tell(partition, &NodeMessage::RankStarted { rank, pid: rank + 1, age_us: 0 });
        }
    }

    /// Has a rank write something more, which goes over its node's connection for output.
    pub fn write(&mut self, partition: u32, rank: u32, bytes: &[u8]) {
        let mut frames = Vec::new();
        let attempt = self.attempt;
        let written = &mut self.node(partition).written;
        let at = written.iter().position(|(of, _)| *of == rank).unwrap_or_else(|| {
            written.push((rank, 0));
            written.len() - 1
        });
        for bytes in bytes.chunks(MAX_DATA_BYTES) {
            wire::encode(&Frame::Output { rank, offset: written[at].1, bytes }, &mut frames);
            written[at].1 += bytes.len() as u64;
        }
        let node = self.node(partition);
        match (node.logs, &mut node.unsaid) {
            (Some(token), _) => self.send(token, &frames),
            (None, Some(unsaid)) => unsaid.extend(frames),
            (None, unsaid @ None) => {
                *unsaid = Some(frames);
                self.to_dial.push_back((
                    Role::Logs { partition, attempt, instance: task_of(partition).instance },
                    Vec::new(),
                ));
            }
        }
    }

    /// Has every node that wrote something ask whether all of it has arrived; its connection for output must be there.
    pub fn ask_for_output(&mut self) {
        let mut ping = Vec::new();
        wire::encode_json(&NodeMessage::Ping, &mut ping);
        let logs: Vec<Token> = self.nodes.iter().filter_map(|node| node.logs).collect();
        logs.into_iter().for_each(|token| self.send(token, &ping));
    }

    /// Has the result of a rank brought to the hub.
    pub fn bring_result(&mut self, rank: u32, result: &[u8]) {
        let mut frames = Vec::new();
        result.chunks(MAX_DATA_BYTES).for_each(|piece| wire::encode(&Frame::Data(piece), &mut frames));
        let (attempt, upload, bytes) = (self.attempt, u64::from(rank), result.len() as u64);
        self.to_dial.push_back((Role::Result { rank, attempt, upload, bytes }, frames));
    }

    /// Has a node tell how all its ranks end, and that it is done.
    pub fn end_ranks(&mut self, partition: u32, state: &RankState) {
        for rank in self.ranks_of(partition) {
            self.tell(partition, &ended(rank, partition, state.clone()));
        }
        let written = std::mem::take(&mut self.node(partition).written);
        let total = |(rank, bytes)| OutputTotal { rank, bytes, log_path: format!("rank-{rank}.log") };
        let output = written.into_iter().map(total).collect();
        self.tell(partition, &NodeMessage::Done { problem: None, interrupted: None, output });
    }

    /// Closes what a node has open without a word, as when its host vanishes.
    pub fn vanish(&mut self, partition: u32) {
        let node = self.node(partition);
        let tokens = [node.control.take(), node.logs.take()];
        tokens.into_iter().flatten().for_each(|token| drop(self.lines.remove(&token)));
    }

    /// Moves bytes until `until` says so; panics with `what` if it doesn't by the deadline.
    #[track_caller]
    pub fn play(&mut self, what: &str, deadline: Deadline, mut until: impl FnMut(&mut Fleet) -> bool) {
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; 64 << 10];
        while !until(self) {
            assert!(!deadline.passed(), "not in time: {what}");
            self.dial();
            self.poll.poll(&mut events, Some(Duration::from_millis(20))).expect("an event loop");
            for event in &events {
                self.serve(event.token(), &mut buffer);
            }
        }
    }

    /// Moves bytes for so long, and does `meanwhile` as often as something comes, every 20 ms at least.
    pub fn play_for(&mut self, time: Duration, mut meanwhile: impl FnMut(&mut Fleet)) {
        let end = Instant::now() + time;
        self.play("the time is over", Deadline::never(), |fleet| {
            meanwhile(fleet);
            Instant::now() >= end
        });
    }

    /// Whether something is said that its socket has not taken yet.
    pub fn has_unsent(&self) -> bool {
        !self.to_dial.is_empty() || self.proving > 0 || self.lines.values().any(Line::has_unsent)
    }

    fn node(&mut self, partition: u32) -> &mut FleetNode {
        self.nodes.get_mut(index(partition)).expect("a partition of the job")
    }

    fn dial(&mut self) {
        while self.proving < MAX_DIALLING
            && let Some((role, first)) = self.to_dial.pop_front()
        {
            let token = Token(self.next_token);
            self.next_token += 1;
            let line = Line::dial(self.address, &self.key, role, first, self.poll.registry(), token);
            self.lines.insert(token, line.expect("a connection to the hub of a test"));
            self.proving += 1;
        }
    }

    fn send(&mut self, token: Token, frames: &[u8]) {
        if let Some(line) = self.lines.get_mut(&token)
            && !line.send(frames)
        {
            self.drop_line(token);
        }
    }

    fn serve(&mut self, token: Token, buffer: &mut [u8]) {
        let Some(line) = self.lines.get_mut(&token) else { return };
        let Turn { heard, opened, ended } = line.serve(&self.token, &self.job, buffer);
        let role = line.role();
        if opened {
            self.proving -= 1;
            match role {
                Role::Control { partition, .. } => self.node(partition).control = Some(token),
                Role::Logs { partition, .. } => {
                    self.node(partition).logs = Some(token);
                    let unsaid = self.node(partition).unsaid.take().unwrap_or_default();
                    self.send(token, &unsaid);
                }
                Role::Result { .. } => {}
            }
        }
        for message in heard {
            self.hear(token, role, message);
        }
        if ended {
            self.drop_line(token);
        }
    }

    fn hear(&mut self, token: Token, role: Role, message: HubMessage) {
        let partition = match role {
            Role::Control { partition, .. } => partition,
            Role::Logs { partition, .. } => {
                self.node(partition).output_arrived |= message == HubMessage::Pong;
                return;
            }
            Role::Result { .. } => {
                if message == HubMessage::Released {
                    self.results_kept += 1;
                    self.lines.remove(&token);
                }
                return;
            }
        };
        let node = self.node(partition);
        match message {
            HubMessage::Place(place) => node.place = Some(*place),
            HubMessage::Stop { reason } => node.stopped = Some(reason),
            HubMessage::Released => node.released = true,
            HubMessage::Again { attempt, .. } => node.again = Some(attempt),
            HubMessage::Stacks { request } => node.stacks_asked = Some(request),
            HubMessage::Pong => {
                let took = node.pinged.take().map(|at| at.elapsed()).unwrap_or_default();
                node.slowest_pong = node.slowest_pong.max(took);
            }
            HubMessage::Spare
            | HubMessage::GivenUp { .. }
            | HubMessage::StopServing
            | HubMessage::Freeze { .. }
            | HubMessage::Thaw { .. }
            | HubMessage::Notice(_)
            | HubMessage::Read { .. }
            | HubMessage::Carried(_) => {}
        }
    }

    /// A connection is over. One that had not proved itself is tried again, as a node does.
    fn drop_line(&mut self, token: Token) {
        let Some(line) = self.lines.remove(&token) else { return };
        let role = line.role();
        if let Some(first) = line.into_unproved() {
            self.proving -= 1;
            self.to_dial.push_back((role, first));
        }
        let gone = |of: &mut Option<Token>| _ = of.take_if(|of| *of == token);
        match role {
            Role::Control { partition, .. } => gone(&mut self.node(partition).control),
            Role::Logs { partition, .. } => gone(&mut self.node(partition).logs),
            Role::Result { .. } => {}
        }
    }
}

/// How a node of the fleet tells that a rank ended now.
pub fn ended(rank: u32, partition: u32, state: RankState) -> NodeMessage {
    NodeMessage::RankEnded { exit: Box::new(RankExit::new(rank, host_of(partition), state)) }
}

/// The host of a node of the fleet: each has its own.
pub fn host_of(partition: u32) -> String {
    format!("host-{partition}")
}

fn task_of(partition: u32) -> SparkTask {
    let id = u64::from(partition);
    SparkTask { instance: id + 1, stage: partition, id, ..SparkTask::default() }
}

/// What a node of the fleet says of itself when it joins.
pub fn join_of(partition: u32) -> Join {
    let [_, a, b, c] = partition.to_be_bytes();
    Join {
        partition,
        name: host_of(partition),
        host: host_of(partition),
        address: [10, a, b, c].into(),
        interface: "eth0".into(),
        addresses: vec![[10, a, b, c].into()],
        store_port: 29500,
        store_key: Vec::new(),
        gpus: Vec::new(),
        folder: "/tmp".into(),
    }
}

fn index(partition: u32) -> usize {
    usize::try_from(partition).unwrap_or(usize::MAX)
}

fn count(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}
