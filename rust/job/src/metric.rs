//! What can be counted of nodes and of runs, declared once for all languages.

/// A thing that is counted; its number is its place in [`Metric::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Ranks whose processes run now.
    RanksRunning,
    /// Ranks' processes that were started.
    RanksStarted,
    /// Of these, those that failed; being told to end is no failure.
    RanksFailed,
    /// Of these, those that an attempt before had, too.
    RanksRestarted,
    /// Lines that ranks wrote.
    LogsLines,
    /// Bytes that they wrote.
    LogsBytes,
    /// A node's start until all nodes had joined.
    JoinLatency,
    /// A node's start until a rank's process was there.
    StartLatency,
    /// Restarts after which as many ranks run as before.
    RestartsReplaced,
    /// Restarts with more tasks, or with those that are left.
    RestartsResized,
    /// Restarts since a host was to go.
    RestartsPreempted,
    /// Reported steps that came after the checkpoint from which ranks went on.
    LostSteps,
    /// Time in which no rank worked, between attempts.
    LostTime,
}

/// Who tells a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricSource {
    /// The nodes, each what it has seen.
    Node,
    /// The driver, of a run.
    Run,
}

/// How the changes of a metric add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A level: changes go up and down, and those of a node that is gone are taken back.
    Gauge,
    /// A number that only grows.
    Counter,
    /// Single values.
    Histogram,
}

impl Metric {
    /// Every metric, in the order of its numbers.
    pub const ALL: [Metric; 13] = [
        Metric::RanksRunning,
        Metric::RanksStarted,
        Metric::RanksFailed,
        Metric::RanksRestarted,
        Metric::LogsLines,
        Metric::LogsBytes,
        Metric::JoinLatency,
        Metric::StartLatency,
        Metric::RestartsReplaced,
        Metric::RestartsResized,
        Metric::RestartsPreempted,
        Metric::LostSteps,
        Metric::LostTime,
    ];

    /// Its name in Spark's metrics, its kind and its unit.
    pub fn declaration(self) -> (&'static str, MetricKind, &'static str) {
        match self {
            Metric::RanksRunning => ("ranks.running", MetricKind::Gauge, "ranks"),
            Metric::RanksStarted => ("ranks.started", MetricKind::Counter, "ranks"),
            Metric::RanksFailed => ("ranks.failed", MetricKind::Counter, "ranks"),
            Metric::RanksRestarted => ("ranks.restarted", MetricKind::Counter, "ranks"),
            Metric::LogsLines => ("logs.lines", MetricKind::Counter, "lines"),
            Metric::LogsBytes => ("logs.bytes", MetricKind::Counter, "bytes"),
            Metric::JoinLatency => ("join.latency", MetricKind::Histogram, "ms"),
            Metric::StartLatency => ("start.latency", MetricKind::Histogram, "ms"),
            Metric::RestartsReplaced => ("restarts.replaced", MetricKind::Counter, "restarts"),
            Metric::RestartsResized => ("restarts.resized", MetricKind::Counter, "restarts"),
            Metric::RestartsPreempted => ("restarts.preempted", MetricKind::Counter, "restarts"),
            Metric::LostSteps => ("lost.steps", MetricKind::Counter, "steps"),
            Metric::LostTime => ("lost.time", MetricKind::Counter, "ms"),
        }
    }

    /// Who tells it.
    pub fn source(self) -> MetricSource {
        match self {
            Metric::RestartsReplaced
            | Metric::RestartsResized
            | Metric::RestartsPreempted
            | Metric::LostSteps
            | Metric::LostTime => MetricSource::Run,
            _ => MetricSource::Node,
        }
    }

    /// Its number, by which a binding tells it.
    pub fn number(self) -> usize {
        self as usize
    }
}

impl MetricKind {
    /// The kind's name in the bindings.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
            MetricKind::Histogram => "histogram",
        }
    }
}

impl MetricSource {
    /// The source's name in the bindings.
    pub fn name(self) -> &'static str {
        match self {
            MetricSource::Node => "node",
            MetricSource::Run => "run",
        }
    }
}

/// A metric, and by how much it changed; of a histogram the new value.
pub type MetricChange = (Metric, i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metrics_number_is_its_place() {
        for (number, metric) in Metric::ALL.into_iter().enumerate() {
            assert_eq!(metric.number(), number);
        }
    }
}
