package dev.phalanx.spark.ui

import scala.xml.{Node, NodeSeq}

/** The ranks of a run as a table, the slow ones marked. Columns that no rank has are left out. */
private[spark] object RankTable {

  /** A column: its name, what sorts it, what it shows. */
  final private case class Column(
      name: String,
      key: RankSnapshot => Option[String],
      shows: RankSnapshot => NodeSeq,
      tells: RankSnapshot => Boolean
  )

  def of(snapshot: RunSnapshot): NodeSeq = {
    val columns = columnsOf(snapshot).filter(column => snapshot.ranks.exists(column.tells))
    val left =
      if (snapshot.ranksLeftOut > 0)
        <p>{s"${snapshot.ranksLeftOut} more ranks are left out."}</p>
      else NodeSeq.Empty
    if (snapshot.ranks.isEmpty) <p>No rank has a place yet.</p>
    else
      <table class="table table-bordered table-sm table-striped sortable phx-text">
        <thead><tr>{columns.map(column => <th>{column.name}</th>)}</tr></thead>
        <tbody>{snapshot.ranks.map(row(snapshot, columns, _))}</tbody>
      </table> ++ left
  }

  private def row(snapshot: RunSnapshot, columns: Seq[Column], rank: RankSnapshot): Node = {
    val cells = columns.map { column =>
      column.key(rank).fold(<td>{column.shows(rank)}</td>)(key =>
        <td sorttable_customkey={key}>{column.shows(rank)}</td>
      )
    }
    if (snapshot.slow(rank.rank)) <tr class="phx-slow">{cells}</tr> else <tr>{cells}</tr>
  }

  private def columnsOf(snapshot: RunSnapshot): Seq[Column] = Seq(
    Column(
      "Rank",
      rank => Some(rank.rank.toString),
      rank => text(rank.rank.toString) ++ (if (snapshot.slow(rank.rank)) slow else NodeSeq.Empty),
      _ => true
    ),
    Column("State", _ => None, rank => if (rank.state.isEmpty) NodeSeq.Empty else Shown.state(rank.state), _ => true),
    texts("Host", _.host),
    Column(
      "Executor",
      _ => None,
      rank => if (rank.executor.isEmpty) NodeSeq.Empty else <a href="../../executors/">{rank.executor}</a>,
      _.executor.nonEmpty
    ),
    texts("GPUs", _.gpus),
    Column(
      "Step",
      rank => Some(rank.step.getOrElse(-1L).toString),
      rank => text(rank.step.fold("")(Shown.step(_, rank.of))),
      _.step.nonEmpty
    ),
    Column(
      "Steps/s",
      rank => Some(rank.rate.getOrElse(-1.0).toString),
      rank => text(rank.rate.fold("")(Shown.rate)),
      _.rate.nonEmpty
    ),
    shares("In collectives", _.collectiveShare),
    shares("Waiting for data", _.dataShare),
    texts("Reported", _.values.map { case (name, value) => s"$name=$value" }.mkString(", "))
  )

  private val slow: NodeSeq = text(" ") ++ Shown.badge("slow", "#b35c00")

  private def texts(name: String, of: RankSnapshot => String) =
    Column(name, _ => None, rank => text(of(rank)), of(_).nonEmpty)

  private def shares(name: String, of: RankSnapshot => Option[Double]) =
    Column(name, rank => Some(of(rank).getOrElse(-1.0).toString), rank => Shown.share(of(rank)), of(_).nonEmpty)

  private def text(text: String): NodeSeq = scala.xml.Text(text)
}
