package dev.phalanx.spark

import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

/** What a training run left: how each rank ended, and what rank 0 gave to `phalanx.set_result`.
  *
  * {{{
  * val result = new TorchDistributor(2, localMode = false, useGpu = false).run("train.py")
  * result.resultJson.foreach(println)                               // set_result({"accuracy": 0.97})
  * result.resultBytes.foreach(bytes => Files.write(path, bytes))    // set_result(buffer.getvalue())
  * }}}
  *
  * @param ranks a report for every rank, by rank
  * @param resultBytes rank 0's result, where it was `bytes`
  * @param resultJson rank 0's result, where it was anything else that JSON can hold
  * @param phases when the run got where, in order of arrival
  */
final class TrainingResult private[spark] (
    val ranks: Seq[RankReport],
    val resultBytes: Option[Array[Byte]],
    val resultJson: Option[String],
    val phases: Seq[Phase]
) {
  def getRanks: java.util.List[RankReport] = ranks.asJava
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

private[spark] object TrainingResult {
  private val Bytes = "bytes\n".getBytes(UTF_8)
  private val Json = "json\n".getBytes(UTF_8)

  /** Reads the contents of rank 0's result file; a program of the user's may leave bytes of any form. */
  def of(ranks: Seq[RankReport], contents: Option[Array[Byte]], phases: Seq[Phase]): TrainingResult = {
    val json = contents.filter(_.startsWith(Json)).map(c => new String(c.drop(Json.length), UTF_8))
    val bytes = contents.filterNot(_.startsWith(Json)).map { c =>
      if (c.startsWith(Bytes)) c.drop(Bytes.length) else c
    }
    new TrainingResult(ranks, bytes, json, phases)
  }
}
