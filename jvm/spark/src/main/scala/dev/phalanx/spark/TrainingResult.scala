package dev.phalanx.spark

import java.io.InputStream

import scala.jdk.CollectionConverters._

/** What a training run left: how each rank ended, and what it gave to `phalanx.set_result`.
  *
  * {{{
  * val result = new TorchDistributor(2, localMode = false, useGpu = false).run("train.py")
  * result.resultJson.foreach(println)                               // set_result({"accuracy": 0.97})
  * result.resultBytes.foreach(bytes => Files.write(path, bytes))    // set_result(buffer.getvalue())
  * result.resultStream().foreach(Files.copy(_, path))               // the same, of any size
  * result.results.map(_.json)                                       // that of every rank
  * }}}
  *
  * @param ranks how every rank ended, by rank
  * @param results what every rank left, by rank
  * @param phases when the run reached which phase, in order of arrival
  */
final class TrainingResult private[spark] (
    val ranks: Seq[RankOutcome],
    val results: Seq[RankResult],
    val phases: Seq[Phase]
) {

  /** Rank 0's result, where it was `bytes`; as [[RankResult.bytes]]. */
  def resultBytes: Option[Array[Byte]] = results.headOption.flatMap(_.bytes)

  /** Rank 0's result, where it was anything else that JSON can hold. */
  def resultJson: Option[String] = results.headOption.flatMap(_.json)

  /** Rank 0's result as a stream; as [[RankResult.stream]]. */
  def resultStream(): Option[InputStream] = results.headOption.flatMap(_.stream())

  def getRanks: java.util.List[RankOutcome] = ranks.asJava
  def getResults: java.util.List[RankResult] = results.asJava
  def getPhases: java.util.List[Phase] = phases.asJava

  /** As `resultBytes`; null for `None`. */
  def getResultBytes: Array[Byte] = resultBytes.orNull

  /** As `resultJson`; null for `None`. */
  def getResultJson: String = resultJson.orNull

  /** As `resultStream`; null for `None`. */
  def getResultStream(): InputStream = resultStream().orNull

  override def toString: String = {
    val result = results.headOption.flatMap(_.result) match {
      case Some(file) if file.kind == "json" && file.size <= TrainingResult.ShownBytes => file.text
      case Some(file)                                                                  => s"${file.size} bytes"
      case None                                                                        => "no result"
    }
    s"TrainingResult(${ranks.length} ranks, $result)"
  }
}

private object TrainingResult {
  val ShownBytes = 1000L
}
