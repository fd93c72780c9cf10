package dev.phalanx.spark

import scala.jdk.CollectionConverters._

/** What a training run left: how each rank ended, and what it gave to `phalanx.set_result`.
  *
  * {{{
  * val result = new TorchDistributor(2, localMode = false, useGpu = false).run("train.py")
  * result.resultJson.foreach(println)                               // set_result({"accuracy": 0.97})
  * result.resultBytes.foreach(bytes => Files.write(path, bytes))    // set_result(buffer.getvalue())
  * result.results.map(_.json)                                       // that of every rank
  * }}}
  *
  * @param ranks a report for every rank, by rank
  * @param results what every rank left, by rank
  * @param phases when the run got where, in order of arrival
  */
final class TrainingResult private[spark] (
    val ranks: Seq[RankReport],
    val results: Seq[RankResult],
    val phases: Seq[Phase]
) {

  /** Rank 0's result, where it was `bytes`. */
  val resultBytes: Option[Array[Byte]] = results.headOption.flatMap(_.bytes)

  /** Rank 0's result, where it was anything else that JSON can hold. */
  val resultJson: Option[String] = results.headOption.flatMap(_.json)

  def getRanks: java.util.List[RankReport] = ranks.asJava
  def getResults: java.util.List[RankResult] = results.asJava
  def getPhases: java.util.List[Phase] = phases.asJava

  /** As `resultBytes`; null for `None`. */
  def getResultBytes: Array[Byte] = resultBytes.orNull

  /** As `resultJson`; null for `None`. */
  def getResultJson: String = resultJson.orNull

  override def toString: String = {
    val result = resultJson.orElse(resultBytes.map(bytes => s"${bytes.length} bytes")).getOrElse("no result")
    s"TrainingResult(${ranks.length} ranks, $result)"
  }
}
