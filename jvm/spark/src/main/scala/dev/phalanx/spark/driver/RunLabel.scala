package dev.phalanx.spark.driver

import scala.util.matching.Regex.quoteReplacement

/** What tells the output of several runs of this JVM apart, as DISPLAY-9 says. `display/label.py` does the same of a
  * Python process's runs.
  */
final private[spark] class RunLabel(name: String) {
  @volatile private var label = name

  /** The run's name, or with a number behind it where another run has that. */
  def text: String = label

  /** From now on the run goes on. */
  def begin(): Unit = label = RunLabel.begin(name)

  /** It is over. */
  def end(): Unit = RunLabel.end(label)

  /** What the core gave of this run's output, with the label where other runs go on. */
  def on(output: String): String =
    if (RunLabel.isAlone) output
    else RunLabel.Who.replaceAllIn(output, who => quoteReplacement(s"${who.group(1)}[$label: "))
}

private object RunLabel {
  // The core begins each line, and each state of a progress bar, with who wrote it. It gives whole lines.
  private val Who = "(^|[\n\r])\\[".r

  private var running = Set.empty[String]

  private def begin(name: String): String = synchronized {
    val names = Iterator(name) ++ Iterator.from(2).map(number => s"$name $number")
    val label = names.find(!running.contains(_)).getOrElse(name)
    running += label
    label
  }

  private def end(label: String): Unit = synchronized(running -= label)

  private def isAlone: Boolean = synchronized(running.size < 2)
}
