package dev.phalanx.spark

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, NoSuchFileException, Path, Paths}

/** What one rank gave to `phalanx.set_result`, and how it ended.
  *
  * {{{
  * run.results().foreach(result => println(s"rank ${result.rank} ${result.state}: ${result.json.getOrElse("nothing")}"))
  * }}}
  *
  * RES-3: it is read from a file of the driver's when it is asked for; the file is there as long as this is, and no
  * longer than the application.
  *
  * @param report how the rank ended
  */
final class RankResult private[spark] (
    val report: RankReport,
    private[spark] val path: Option[String],
    @transient private[spark] val folder: ResultFolder
) extends Serializable {
  private lazy val left: RankResult.Left = path.fold(RankResult.Nothing)(RankResult.read)

  def rank: Int = report.rank

  /** How the rank ended, in words. */
  def state: String = report.state

  /** Its result, where it was `bytes`. */
  def bytes: Option[Array[Byte]] = left.bytes

  /** Its result, where it was anything else that JSON can hold. */
  def json: Option[String] = left.json

  /** Why its result could not be brought back, of a rank other than 0: it was too large, or neither bytes nor JSON. */
  def unavailable: Option[String] = left.unavailable

  def getReport: RankReport = report
  def getRank: Int = rank
  def getState: String = state

  /** As `bytes`; null for `None`. */
  def getBytes: Array[Byte] = bytes.orNull

  /** As `json`; null for `None`. */
  def getJson: String = json.orNull

  /** As `unavailable`; null for `None`. */
  def getUnavailable: String = unavailable.orNull

  override def toString: String = s"RankResult($rank, $state)"
}

private[spark] object RankResult {

  final case class Left(
      bytes: Option[Array[Byte]] = None,
      json: Option[String] = None,
      unavailable: Option[String] = None
  )

  val Nothing: Left = Left()

  /** Takes the results out of the hub's folder, which ends with the hub. */
  def keep(reports: Seq[RankReport], hubsFile: Int => Option[String]): Seq[RankResult] = {
    val folder = new ResultFolder
    reports.map { report =>
      val kept = hubsFile(report.rank).map(file => folder.take(Paths.get(file)).toString)
      new RankResult(report, kept, folder)
    }
  }

  private def read(file: String): Left =
    try of(Files.readAllBytes(Paths.get(file)))
    catch {
      case problem: NoSuchFileException =>
        val why = "the results went with the Spark application; ask for them before it stops"
        throw new TrainingException("closed", why, problem)
    }

  /** Reads a rank's file: a line with the kind, then the result; a program of the user's may leave bytes of any form. */
  def of(contents: Array[Byte]): Left = {
    def after(kind: String): Option[Array[Byte]] = {
      val line = s"$kind\n".getBytes(UTF_8)
      if (contents.startsWith(line)) Some(contents.drop(line.length)) else None
    }
    def text(bytes: Array[Byte]) = Some(new String(bytes, UTF_8))
    after("json")
      .map(body => Left(json = text(body)))
      .orElse(after("unavailable").map(body => Left(unavailable = text(body))))
      .getOrElse(Left(bytes = after("bytes").orElse(Some(contents))))
  }
}

/** A folder of results, made for the first, and removed when nothing refers to this any more, or with the
  * application.
  */
final private[spark] class ResultFolder {
  private lazy val path: Path = {
    val made = Files.createTempDirectory(SparkInternals.localDir.toPath, "phalanx-run-")
    SparkInternals.deleteAtShutdown(made.toFile)
    ResultFolder.cleaner.register(this, () => SparkInternals.delete(made.toFile))
    made
  }

  def take(file: Path): Path = Files.move(file, path.resolve(file.getFileName))
}

private object ResultFolder {
  private lazy val cleaner = java.lang.ref.Cleaner.create()
}
