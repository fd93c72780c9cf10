package dev.phalanx.spark.ui

import scala.xml.{Node, NodeSeq}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

/** All runs of an application, the newest first: `/phalanx/`, and `/phalanx/json`. */
final private[spark] class RunListPage(store: RunStore) extends UiPage {
  import UiPage.Parameters

  // What a run has for its own page.
  private val Long = java.util.List.of("ranks", "lines", "losses")

  override def title(parameters: Parameters): String = "Phalanx: Runs"

  override def html(parameters: Parameters): Seq[Node] = {
    val runs = store.runs
    <div>
      {Shown.style}
      {if (runs.isEmpty) <p>No run has begun yet.</p> else table(runs)}
      {
      if (runs.size == RunStore.MostRuns) <p>These are the newest {RunStore.MostRuns.toString} runs.</p>
      else NodeSeq.Empty
    }
      <p><a href="json">JSON</a></p>
    </div>
  }

  /** Each run without its ranks and lines; with `?id=RUN` all of one. */
  override def json(parameters: Parameters): JsonNode =
    UiPage.parameter(parameters, "id") match {
      case Some(id) => RunPage.jsonOf(store, id)
      case None     =>
        val all = JsonNodeFactory.instance.objectNode().put("version", 1)
        val array = all.putArray("runs")
        store.runs.foreach { run =>
          val one = RunPage.jsonOf(run)
          one.get("snapshot") match {
            case snapshot: ObjectNode => snapshot.remove(Long): Unit
            case _                    => ()
          }
          array.add(one)
        }
        all
    }

  private def table(runs: Seq[StoredRun]): Node =
    <table class="table table-bordered table-sm table-striped sortable">
      <thead><tr>
        <th>Run</th><th>State</th><th>Started</th><th>Duration</th><th>Ranks</th><th>Step</th><th>Restarts</th>
        <th>Stages</th><th>Cause</th>
      </tr></thead>
      <tbody>{runs.map(row)}</tbody>
    </table>

  private def row(run: StoredRun): Node = {
    val snapshot = RunSnapshot.of(run)
    val seconds = snapshot.seconds
    <tr>
      <td><a href={s"run/?id=${Shown.encoded(run.run)}"}>{
      if (snapshot.name.isEmpty) run.run else snapshot.name
    }</a></td>
      <td>{Shown.state(snapshot.state, run.cut)}</td>
      <td sorttable_customkey={run.started.toString}>{Shown.date(run.started / 1e3)}</td>
      <td sorttable_customkey={seconds.toString}>{Shown.duration(seconds)}</td>
      <td>{snapshot.worldSize.toString}</td>
      <td sorttable_customkey={snapshot.step.fold("-1")(_._1.toString)}>{
      snapshot.step.fold("") { case (step, of) => Shown.step(step, of) }
    }</td>
      <td>{snapshot.restarts.toString}</td>
      <td>{Shown.stages(run, "../")}</td>
      <td class="phx-text" style="max-width:40em">{snapshot.cause}</td>
    </tr>
  }
}
