//! Who gives the guard its orders: a guard that is stopped, or hangs in an exec, takes them late.

use crossbeam_channel::Sender;
use phalanx_supervisor::{Guard, Launch, RankPipeEnds};
use phalanx_types::Result;

use crate::node::helpers::helper::Helper;
use crate::node::machine::Event;
use crate::node::news::News;

/// A guard, and the thread that it belongs to. Dropping it kills what is below the guard, and waits until that is done.
pub(crate) struct Guardian(Helper<Order>);

enum Order {
    Launch(Box<(Launch, RankPipeEnds)>),
    Signal { rank: u32, number: i32 },
    Stop,
    End,
}

/// Sends signals to ranks, while their guard lives.
#[derive(Clone)]
pub(crate) struct Signals(Sender<Order>);

impl Guardian {
    /// Has a thread give `guard` its orders. It says when an order to launch fails, and when the guard's process is
    /// gone.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn start(guard: Guard, news: Sender<News>) -> Result<Guardian> {
        let mut guard = Some(guard);
        let say = move |event| drop(news.send(News::Event(event)));
        Helper::start("phalanx-guardian", move |order| match (order, &guard) {
            (Order::Launch(launch), Some(guard)) => {
                let (launch, ends) = *launch;
                if let Err(why) = guard.launch_with(&launch, ends) {
                    say(Event::NotLaunched(why));
                }
            }
            (Order::Signal { rank, number }, Some(guard)) => guard.signal(rank, number),
            (Order::Stop, Some(guard)) => guard.stop(),
            (Order::End, Some(_)) => {
                guard = None;
                say(Event::GuardEnded);
            }
            (Order::Launch(_) | Order::Signal { .. } | Order::Stop | Order::End, None) => {}
        })
        .map(Guardian)
    }

    pub(crate) fn launch(&self, launch: Launch, ends: RankPipeEnds) {
        self.0.give(Order::Launch(Box::new((launch, ends))));
    }

    /// Has every process below the guard end, those that do not at once after the grace.
    pub(crate) fn stop(&self) {
        self.0.give(Order::Stop);
    }

    /// Has the guard's process end.
    pub(crate) fn end(&self) {
        self.0.give(Order::End);
    }

    /// For who asks ranks something by a signal.
    pub(crate) fn signals(&self) -> Option<Signals> {
        self.0.orders().map(Signals)
    }
}

impl Signals {
    pub(crate) fn send(&self, rank: u32, number: i32) {
        // The ranks are gone with their guard.
        let _ = self.0.send(Order::Signal { rank, number });
    }
}
