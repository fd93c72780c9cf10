package dev.phalanx.spark

import java.io.InputStream
import java.nio.file.{Files, Paths}

import scala.util.control.NonFatal

import dev.phalanx.spark.driver.ResultFile
import dev.phalanx.spark.internal.TempFolder

/** What one rank gave to `phalanx.set_result`, and how it ended.
  *
  * {{{
  * run.results().foreach { result =>
  *   println((result.rank, result.state, result.json.getOrElse("nothing")))
  * }
  * Using.resource(run.results().head.stream().get)(Files.copy(_, path))    // a large one
  * }}}
  *
  * JAR-6 (read-late): the result is read from a file of the driver's when it is asked for. The file is there as long
  * as this object is, and no longer than the application. After that, asking throws `IllegalStateException`. A result
  * of at most 1 MiB is kept in memory once it has been asked for. A larger one is read again each time.
  *
  * @param outcome how the rank ended
  */
final class RankResult private[spark] (
    val outcome: RankOutcome,
    private[spark] val path: Option[String],
    @transient private[spark] val folder: TempFolder
) extends Serializable {
  private lazy val file: Option[ResultFile] = path.map(ResultFile.at)

  def rank: Int = outcome.rank

  /** How the rank ended, in words. */
  def state: String = outcome.state

  /** Its result, where it was `bytes`; throws `IllegalStateException` for one of 2 GiB or more. */
  def bytes: Option[Array[Byte]] = of("bytes").map(_.bytes)

  /** Its result, where it was anything else that JSON can hold. */
  def json: Option[String] = of("json").map(_.text)

  /** Why its result could not be brought back, of a rank other than 0: it was too large, or neither bytes nor JSON. */
  def unavailable: Option[String] = of("unavailable").map(_.text)

  /** Its result as a stream, of any size, which the caller closes: the `bytes`, or the JSON in UTF-8. */
  def stream(): Option[InputStream] = result.map(_.stream())

  /** How many bytes `stream` has; 0 where there is no result. */
  def size: Long = result.fold(0L)(_.size)

  def getOutcome: RankOutcome = outcome
  def getRank: Int = rank
  def getState: String = state

  /** As `bytes`; null for `None`. */
  def getBytes: Array[Byte] = bytes.orNull

  /** As `json`; null for `None`. */
  def getJson: String = json.orNull

  /** As `unavailable`; null for `None`. */
  def getUnavailable: String = unavailable.orNull

  /** As `stream`; null for `None`. */
  def getStream(): InputStream = stream().orNull

  def getSize: Long = size

  override def toString: String = s"RankResult($rank, $state)"

  private def of(kind: String) = file.filter(_.kind == kind)

  private[spark] def result: Option[ResultFile] = file.filter(_.kind != "unavailable")
}

private[spark] object RankResult {

  /** Takes the results out of the hub's folder, which ends with the hub. Rank 0's outlives the application if it is
    * small: people stop Spark, and then print it.
    */
  def keep(outcomes: Seq[RankOutcome], hubsFile: Int => Option[String]): Seq[RankResult] = {
    val folder = new TempFolder("phalanx-run-")
    val kept = outcomes.map { outcome =>
      val file = hubsFile(outcome.rank).map(Paths.get(_)).map { file =>
        Files.move(file, folder.path.resolve(file.getFileName)).toString
      }
      new RankResult(outcome, file, folder)
    }
    try kept.headOption.foreach(_.file)
    catch { case NonFatal(_) => () } // whoever asks for it hears of it
    kept
  }
}
