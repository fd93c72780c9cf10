//! Why a Spark stage failed, in a sentence, from what Spark said.
//!
//! Spark and py4j wrap a task's own words in several layers, and have no fields for them. So this is the one place that
//! looks into the texts of others.

use phalanx_types::FailureKind;

const MAX_CHARS: usize = 500;
const TRACEBACK: &str = "Traceback (most recent call last):";
/// Between them Spark has what a Python worker said that could not start, two columns to the right
/// (`PythonWorkerFactory.scala`).
const WORKER_SAID: &str = "\nError from python worker:\n";
const WORKER_PATH: &str = "\nPYTHONPATH was:\n";
const OWN_EXCEPTION: &str = "dev.phalanx.spark.TrainingException";
const ABORTED: &str = "Job aborted due to stage failure: ";

/// Names of Spark's error conditions for a job that somebody cancelled, as its messages carry them; the second is Spark
/// Connect's.
const CANCELLED: [&str; 2] = ["[SPARK_JOB_CANCELLED]", "[OPERATION_CANCELED]"];
/// What Spark 3.5, which has no such names, says between a cancelled job's number and the reason.
const CANCELLED_JOB: (&str, &str) = ("Job ", " cancelled ");
/// A reason that is no cancel, in any version.
const SHUT_DOWN: &str = "because SparkContext was shut down";

/// How Spark says that a container was killed as a whole, by the kernel (`memory.oom.group`) or by its manager.
const OUT_OF_MEMORY: [&str; 4] =
    ["exit code 137", "exited with code 137", "OOMKilled", "exceeding physical memory limits"];
/// Where ranks' memory is.
const OVERHEAD: &str = "spark.executor.memoryOverhead";
const HINT: &str =
    " (perhaps out of memory: raise spark.executor.memoryOverhead, which the ranks' memory comes from)";
/// What Spark refuses of a stage whose tasks start together, half a sentence before a list
/// (`DAGScheduler.checkBarrierStageWithRDDChainPattern`); and what that means.
const OF_OTHERS: (&str, &str) = (
    "does not allow the following pattern of RDD chain within a barrier stage",
    "Spark can't start all tasks of this DataFrame together, because it is read through a coalesce, union or \
     limit; repartition it (df.repartition), which shuffles its rows",
);
/// How Spark's own reason of a task's end begins where its executor is gone.
const LOST_EXECUTOR: &str = "ExecutorLostFailure (";

/// An exception, as its language shows it.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// The name of its class.
    pub class: &'a str,
    /// Its message.
    pub text: &'a str,
}

/// Why a stage ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageFailure {
    /// [`FailureKind::Cancelled`] where somebody cancelled the Spark job (its group, its tag, its stage, or all jobs),
    /// [`FailureKind::LostNode`] where Spark names a lost executor, else [`FailureKind::Start`].
    pub kind: FailureKind,
    /// A sentence or two: what the task raised or threw, where that is in the text; else what Spark says.
    pub sentence: String,
}

/// What an exception says of the stage that it ended; `said` has the exception first, then its causes.
pub fn explain(said: &[Said<'_>]) -> StageFailure {
    let cancelled = said.iter().any(|one| is_cancel(one.text));
    let sentence = said.first().map_or_else(String::new, sentence);
    let kind = match cancelled {
        true => FailureKind::Cancelled,
        false if names_lost_executor(&sentence) => FailureKind::LostNode,
        false => FailureKind::Start,
    };
    let for_want_of_memory = OUT_OF_MEMORY.iter().any(|words| sentence.contains(words));
    let hint = if for_want_of_memory && !sentence.contains(OVERHEAD) { HINT } else { "" };
    let sentence = match sentence.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &sentence[..end]),
        None => sentence,
    };
    StageFailure { kind, sentence: sentence + hint }
}

fn is_cancel(text: &str) -> bool {
    let first = without_wrapping(text.lines().next().unwrap_or("").trim());
    let number_and_reason =
        first.strip_prefix(CANCELLED_JOB.0).and_then(|rest| rest.split_once(CANCELLED_JOB.1));
    let without_name = number_and_reason.is_some_and(|(number, reason)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) && reason != SHUT_DOWN
    });
    without_name || CANCELLED.iter().any(|condition| text.contains(condition))
}

/// Whether a stage ended since one of its executors is gone, by a sentence of [`explain`].
pub fn names_lost_executor(sentence: &str) -> bool {
    sentence.contains(LOST_EXECUTOR)
}

fn sentence(said: &Said<'_>) -> String {
    let lines: Vec<&str> = said.text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let Some(&first) = lines.first() else { return said.class.to_string() };
    if said.text.contains(OF_OTHERS.0) {
        return OF_OTHERS.1.to_string();
    }
    if ["Py4JNetworkError", "Py4JError"].contains(&said.class) {
        return match lines.get(1) {
            // py4j's trace of a call that the JVM refused.
            Some(refused) => format!("the driver's JVM refused the call: {refused}"),
            None => format!("the driver's JVM did not answer ({first}); has it ended, or run out of memory?"),
        };
    }
    if let Some(why) = worker_that_did_not_start(said.text) {
        return format!("a Python worker could not start: {why}");
    }
    if let Some(raised) = raised_in_python(said.text) {
        return raised.to_string();
    }
    if first.contains("RPC that terminated with") {
        let details = quoted_details(said.text).or(lines.last().copied()).unwrap_or(first);
        return format!("the Spark Connect server did not answer: {details}");
    }
    let bare = without_wrapping(first);
    // Of a barrier stage Spark's first line only says that a task failed; the next one says why.
    let of_barrier =
        bare.contains("Most recent failure reason:") || bare.ends_with("finished unsuccessfully.");
    match lines.get(1) {
        Some(why) if of_barrier => thrown(without_wrapping(why)),
        _ => bare.to_string(),
    }
}

/// What Python said where it ended before it was Spark's worker: an exception's own line, else the last line.
fn worker_that_did_not_start(text: &str) -> Option<String> {
    let (_, after) = text.split_once(WORKER_SAID)?;
    let (said, _) = after.split_once(WORKER_PATH)?;
    let lines: Vec<&str> = said.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    let why = raised_in_python(&lines.join("\n")).map(str::to_string);
    why.or_else(|| Some(lines.iter().rfind(|line| !line.trim().is_empty())?.to_string()))
}

/// The exception's own line of the last traceback: it begins at the margin, and Spark puts the JVM's frames behind it.
fn raised_in_python(text: &str) -> Option<&str> {
    let trace = &text[text.rfind(TRACEBACK)?..];
    trace.lines().skip(1).find(|line| line.starts_with(char::is_alphabetic) && line.contains(':'))
}

/// `details = "..."` of a failed call of Spark Connect.
fn quoted_details(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("details = \"")?;
    let line = rest.lines().next()?;
    line.rfind('"').map(|end| &line[..end]).filter(|details| !details.is_empty())
}

/// A line without the classes of Spark's and ours around what they say, from the JVM and from Spark Connect.
fn without_wrapping(line: &str) -> &str {
    let mut bare = line;
    while let Some(rest) = unwrapped(bare) {
        bare = rest;
    }
    bare
}

fn unwrapped(line: &str) -> Option<&str> {
    // Of a task that Spark has tried often enough: which it was, and what it threw last.
    if let Some((_, rest)) = line.strip_prefix(ABORTED).and_then(|line| line.split_once(OWN_EXCEPTION)) {
        return rest.strip_prefix(": ");
    }
    let word = |c: char| c.is_alphanumeric() || c == '_';
    if let Some((class, rest)) = line.strip_prefix('(').and_then(|line| line.split_once(") ")) {
        let is_class = !class.is_empty() && class.chars().all(|c| word(c) || c == '.' || c == '$');
        return is_class.then_some(rest);
    }
    let (class, rest) = line.split_once(": ")?;
    let of_spark = |class: &str| {
        let name = class.strip_prefix("org.apache.spark.Spark")?.strip_suffix("Exception")?;
        name.chars().all(word).then_some(())
    };
    (class == OWN_EXCEPTION || of_spark(class).is_some()).then_some(rest)
}

/// A throwable's first line with its class by the last name only; any other line as it is.
fn thrown(line: &str) -> String {
    let of_class = |line: &str| {
        let (class, message) = line.split_once(": ")?;
        let (package, name) = class.rsplit_once('.')?;
        let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$');
        let is_throwable = (name.ends_with("Exception") || name.ends_with("Error")) && is_name(name);
        let is_package = package.split('.').all(|part| !part.is_empty() && is_name(part));
        (is_throwable && is_package).then(|| format!("{name}: {message}"))
    };
    of_class(line).unwrap_or_else(|| line.to_string())
}
