//! What the hub asks of a node beside its ranks' run (NODE-17).

use phalanx_types::Carrier;
use phalanx_types::message::NodeMessage;
use phalanx_types::rank_file::PieceWanted;
use phalanx_types::stacks::RankStacks;

use super::{Action, Draining, Machine, Preparing, State};

impl Machine {
    pub(super) fn asked_for_stacks(&mut self, request: u32, out: &mut Vec<Action>) {
        let answer = |ranks| Action::Send(NodeMessage::Stacks { request, ranks });
        match &self.state {
            State::Preparing(Preparing { placement, .. }) => {
                let not_yet = |rank| RankStacks { rank, text: "(it has not started yet)".into() };
                out.push(answer(placement.ranks.iter().map(|place| not_yet(place.rank)).collect()));
            }
            State::Running(ranks) | State::Ending(ranks, _) | State::Draining(Draining { ranks, .. }) => {
                let ranks = ranks.living();
                let is_none = ranks.is_empty();
                out.push(if is_none { answer(Vec::new()) } else { Action::AskStacks { request, ranks } });
            }
            // It has none that runs.
            State::Reaching | State::Joining { .. } | State::Leaving(_) | State::Over(_) => {
                out.push(answer(Vec::new()));
            }
        }
    }

    pub(super) fn asked_to_read(&mut self, request: u32, wanted: PieceWanted, out: &mut Vec<Action>) {
        let no = |why: String| Action::Send(NodeMessage::Piece { request, piece: Err(why) });
        let rank = wanted.rank;
        out.push(match &self.state {
            State::Reaching | State::Joining { .. } | State::Preparing(_) => {
                no(format!("rank {rank} has not started yet"))
            }
            State::Running(ranks) | State::Ending(ranks, _) | State::Draining(Draining { ranks, .. }) => {
                Action::Read { request, wanted, runs: ranks.runs(rank) }
            }
            // Its files stay for as long as the node does.
            State::Leaving(_) | State::Over(_) => Action::Read { request, wanted, runs: false },
        });
    }

    /// The hub says it again and again, so it may pass before there are ranks to tell.
    pub(super) fn carried(&mut self, carrier: Carrier, out: &mut Vec<Action>) {
        if self.ranks().is_some() {
            out.push(Action::TellCarrier(carrier));
        }
    }
}
